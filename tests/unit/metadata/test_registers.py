"""Registers: swaps that happen once, however often they are sent, and only under their lease."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from faulty_store import FaultyStore
from small_cluster import SmallCluster

from loomlog import limits
from loomlog.errors import Conflict, Corrupt, Fenced, InvalidArgument, NotLeader, Unavailable
from loomlog.metadata.leases import ClusterLeases
from loomlog.metadata.registers import ClusterRegisters
from loomlog.metadata.store.contract import Fence, FencedStore, MetaStore
from loomlog.wire import loomlog_pb2 as pb

tokens = count(1)


class Desk:
    """Registers and leases on one store, and short ways to ask for something."""

    def __init__(self, store: MetaStore | None = None) -> None:
        self.store = store or FaultyStore()
        self.leases = ClusterLeases(self.store)
        self.registers = ClusterRegisters(self.store, self.leases)

    async def get(self, name: str = "r") -> tuple[bytes, int]:
        found = await self.registers.get(pb.GetRegister(name=name))
        return found.value, found.version

    async def swap(self, value: bytes | None, expected: int, name: str = "r", **more: Any) -> int:
        request = pb.SwapRegister(
            name=name,
            value=value or b"",
            delete=value is None,
            expected=expected,
            **{"token": next(tokens), **more},
        )
        return (await self.registers.swap(request)).version

    async def names(self, prefix: str = "") -> list[str]:
        found = await self.registers.list(pb.ListRegisters(prefix=prefix))
        return [register.name for register in found.registers]

    async def acquire(self, holder: str) -> int:
        request = pb.ChangeLease(action=pb.ChangeLease.ACQUIRE, name="l", holder=holder, ttl_s=1e-9)
        return (await self.leases.change(request)).epoch

    async def release(self, epoch: int) -> None:
        request = pb.ChangeLease(action=pb.ChangeLease.RELEASE, name="l", epoch=epoch)
        await self.leases.change(request)


# ---- versions


async def test_what_was_swapped_in_is_read_back_with_its_version() -> None:
    desk = Desk()
    assert await desk.get() == (b"", 0)
    value = b'any\nbytes\x00\xff{"'
    version = await desk.swap(value, 0)
    assert await desk.get() == (value, version)
    assert await desk.swap(b"", version) > version
    assert (await desk.get())[0] == b""


async def test_only_the_expected_version_is_replaced() -> None:
    desk = Desk()
    with pytest.raises(Conflict, match="'r' is at version none, not 7"):
        await desk.swap(b"x", 7)
    version = await desk.swap(b"x", 0)
    with pytest.raises(Conflict, match=f"at version {version}, not none: read it again"):
        await desk.swap(b"y", 0)
    assert await desk.get() == (b"x", version)


async def test_a_deleted_register_is_absent_and_its_versions_never_come_back() -> None:
    desk = Desk()
    first = await desk.swap(b"x", 0)
    gone = await desk.swap(None, first)
    assert await desk.get() == (b"", 0)
    assert await desk.names() == []
    with pytest.raises(Conflict):
        await desk.swap(b"y", gone)
    assert first < gone < await desk.swap(b"y", 0)


async def test_of_many_who_swap_at_once_one_wins() -> None:
    desk = Desk()
    results = await asyncio.gather(
        *(desk.swap(bytes([n]), 0) for n in range(10)), return_exceptions=True
    )
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 9


async def test_many_counters_in_one_register_lose_nothing() -> None:
    desk = Desk()

    async def add_one() -> None:
        while True:
            value, version = await desk.get()
            try:
                await desk.swap(bytes([(value or b"\0")[0] + 1]), version)
                return
            except Conflict:
                pass

    await asyncio.gather(*(add_one() for _ in range(20)))
    assert (await desk.get())[0] == bytes([20])


# ---- swaps sent again


async def test_a_swap_sent_again_happens_once_and_gets_the_first_answer() -> None:
    desk = Desk()
    first = await desk.swap(b"mine", 0, token=111)
    assert await desk.swap(b"mine", 0, token=111) == first
    second = await desk.swap(b"another's", first)
    assert await desk.swap(b"mine", 0, token=111) == first
    gone = await desk.swap(None, second, token=222)
    assert await desk.swap(None, second, token=222) == gone
    await desk.swap(b"new", 0)
    assert await desk.swap(None, second, token=222) == gone
    assert (await desk.get())[0] == b"new"


async def test_copies_of_one_swap_under_way_at_once_happen_once() -> None:
    desk = Desk()
    versions = await asyncio.gather(*(desk.swap(b"x", 0, token=111) for _ in range(5)))
    assert len(set(versions)) == 1
    assert await desk.get() == (b"x", versions[0])


async def test_so_many_swaps_are_remembered() -> None:
    desk = Desk()
    first = version = await desk.swap(b"", 0, token=111)
    for _ in range(limits.REGISTER_SWAPS_REMEMBERED):
        version = await desk.swap(b"", version)
    assert await desk.swap(b"", 0, token=111) == first
    await desk.swap(b"", version)
    with pytest.raises(Conflict):
        await desk.swap(b"", 0, token=111)


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_a_swap_that_the_store_did_not_answer_is_settled_when_it_is_sent_again(
    lost: str,
) -> None:
    store = FaultyStore()
    desk = Desk(store)
    store.loses = lost
    with pytest.raises(Unavailable, match="try again"):
        await desk.swap(b"x", 0, token=111)
    version = await desk.swap(b"x", 0, token=111)
    assert await desk.get() == (b"x", version)
    assert version == 1  # the store's first write: there was one


async def test_markers_of_deleted_registers_are_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REGISTER_MARKERS_MAX", 3)
    desk = Desk()
    for name in "abcd":
        await desk.swap(None, await desk.swap(b"x", 0, name), name, token=ord(name))
    await desk.swap(b"again", 0, "b")
    restarted = Desk(desk.store)
    for name in "efg":
        await restarted.swap(None, await restarted.swap(b"x", 0, name), name, token=ord(name))
    assert list(await desk.store.list("register/")) == [f"register/{n}" for n in "befg"]
    assert await restarted.names() == ["b"]


async def test_registers_and_what_they_remember_survive_a_restart(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:

        async def ask(value: bytes, expected: int, token: int) -> int:
            request = pb.SwapRegister(name="r", value=value, expected=expected, token=token)
            return (
                await cluster.client.ask(pb.Frame(swap_register=request))
            ).register_value.version

        first = await ask(b"one", 0, 111)
        second = await ask(b"two", first, 222)
        await cluster.restart_repository()
        assert await ask(b"one", 0, 111) == first
        assert await ask(b"two", first, 222) == second
        answer = await cluster.client.ask(pb.Frame(get_register=pb.GetRegister(name="r")))
        assert answer.register_value == pb.RegisterValue(name="r", version=second, value=b"two")
        assert await ask(b"three", second, 333) > second


# ---- under a lease


async def test_a_swap_under_a_lease_needs_its_epoch() -> None:
    desk = Desk()
    epoch = await desk.acquire("a")
    version = await desk.swap(b"x", 0, lease="l", lease_epoch=epoch)
    await desk.acquire("b")
    with pytest.raises(Fenced, match=r"epoch 1 is over, 'b' has it in epoch 2: stop"):
        await desk.swap(b"y", version, lease="l", lease_epoch=epoch)
    await desk.release(2)
    for over in (1, 2, 3):
        with pytest.raises(Fenced, match="it is free"):
            await desk.swap(b"y", version, lease="l", lease_epoch=over)
    with pytest.raises(Fenced):
        await desk.swap(b"y", version, lease="never", lease_epoch=0)
    assert await desk.get() == (b"x", version)


async def test_a_lease_whose_time_is_over_protects_until_another_has_it() -> None:
    desk = Desk()
    epoch = await desk.acquire("a")  # for a nanosecond
    await desk.swap(b"x", 0, lease="l", lease_epoch=epoch)


async def test_a_lease_that_changes_hands_during_a_swap_stops_it() -> None:
    store = FaultyStore()
    desk = Desk(store)
    epoch = await desk.acquire("a")
    store.before = lambda: desk.acquire("b")
    with pytest.raises(Fenced):
        await desk.swap(b"x", 0, lease="l", lease_epoch=epoch)
    assert await desk.get() == (b"", 0)


async def test_a_swap_that_happened_under_its_lease_is_answered_so_when_that_is_lost() -> None:
    desk = Desk()
    epoch = await desk.acquire("a")
    version = await desk.swap(b"x", 0, lease="l", lease_epoch=epoch, token=111)
    await desk.acquire("b")
    assert await desk.swap(b"x", 0, lease="l", lease_epoch=epoch, token=111) == version


async def test_a_repository_that_does_not_lead_any_more_says_so() -> None:
    store = FaultyStore()
    leader = await store.compare_and_swap("leader", 0, b"1")
    desk = Desk(FencedStore(store, Fence("leader", leader)))
    epoch = await desk.acquire("a")
    await store.compare_and_swap("leader", leader, b"2")
    with pytest.raises(NotLeader):
        await desk.swap(b"x", 0, lease="l", lease_epoch=epoch)
    with pytest.raises(NotLeader):
        await desk.swap(b"x", 0)


# ---- lists and bounds


async def test_lists_take_a_prefix_and_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    for name in ("p/b", "p/a", "q", "p/c", "p"):
        await desk.swap(name.encode() * 10, 0, name)
    assert await desk.names() == ["p", "p/a", "p/b", "p/c", "q"]
    assert await desk.names("p/") == ["p/a", "p/b", "p/c"]
    monkeypatch.setattr(limits, "LIST_BYTES", 100)
    part = await desk.registers.list(pb.ListRegisters(prefix="p/"))
    assert ([r.name for r in part.registers], part.more) == (["p/a", "p/b"], True)
    part = await desk.registers.list(pb.ListRegisters(prefix="p/", after="p/b"))
    assert [(r.name, r.value) for r in part.registers] == [("p/c", b"p/c" * 10)]
    assert not part.more
    monkeypatch.setattr(limits, "LIST_BYTES", 1)  # one at least, whatever its size
    part = await desk.registers.list(pb.ListRegisters())
    assert ([r.name for r in part.registers], part.more) == (["p"], True)


@pytest.mark.parametrize("name", ["", "x" * 341, "a\nb", "\x00"])
async def test_a_name_that_is_none_is_refused(name: str) -> None:
    desk = Desk()
    with pytest.raises(InvalidArgument, match="not a valid name of a register"):
        await desk.get(name)
    with pytest.raises(InvalidArgument, match="not a valid name of a register"):
        await desk.swap(b"x", 0, name)


async def test_a_value_has_a_bound() -> None:
    desk = Desk()
    await desk.swap(bytes(limits.REGISTER_BYTES_MAX), 0, "ä" * 200)
    with pytest.raises(InvalidArgument, match="at most 1048576 bytes, not 1048577"):
        await desk.swap(bytes(limits.REGISTER_BYTES_MAX + 1), 0)


async def test_metadata_of_another_shape_is_named() -> None:
    desk = Desk()
    await desk.store.compare_and_swap("register/r", 0, b"{}\nsurprise")
    with pytest.raises(Corrupt, match="register/r"):
        await desk.get()


async def test_a_damaged_register_is_unusable_and_the_others_are_not() -> None:
    store = FaultyStore()
    desk = Desk(store)
    version = await desk.swap(b"1", 0, "damaged")
    whole = await desk.swap(b"2", 0, "whole")
    store.damage("register/damaged")
    with pytest.raises(Corrupt, match="'register/damaged' is damaged"):
        await desk.get("damaged")
    for expected in (0, version):
        with pytest.raises(Corrupt, match="'register/damaged' is damaged"):
            await desk.swap(b"3", expected, "damaged")
    assert await desk.get("whole") == (b"2", whole)
    assert await desk.names("w") == ["whole"]
