"""Leases: one holder at a time, in epochs that only grow."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from faulty_store import FaultyStore
from small_cluster import SmallCluster

from loomlog import limits
from loomlog.errors import Corrupt, Fenced, InvalidArgument, LoomError, Unavailable
from loomlog.metadata.leases import ClusterLeases
from loomlog.metadata.store.contract import Fence, FencedStore, MetaStore
from loomlog.wire import loomlog_pb2 as pb

TTL_S = 10.0


class Desk:
    """Leases, and short ways to ask for them; time passes by setting their clocks back."""

    def __init__(self, leases: ClusterLeases) -> None:
        self.leases = leases

    async def acquire(self, holder: str, ttl_s: float = TTL_S, name: str = "l") -> pb.Lease:
        return await self.leases.change(
            pb.ChangeLease(action=pb.ChangeLease.ACQUIRE, name=name, holder=holder, ttl_s=ttl_s)
        )

    async def renew(self, epoch: int, name: str = "l") -> pb.Lease:
        return await self.leases.change(
            pb.ChangeLease(action=pb.ChangeLease.RENEW, name=name, epoch=epoch)
        )

    async def release(self, epoch: int, name: str = "l") -> pb.Lease:
        return await self.leases.change(
            pb.ChangeLease(action=pb.ChangeLease.RELEASE, name=name, epoch=epoch)
        )

    def list(self, prefix: str = "", after: str = "") -> list[tuple[str, str, int]]:
        found = self.leases.list(pb.ListLeases(prefix=prefix, after=after)).leases
        return [(lease.name, lease.holder, lease.epoch) for lease in found]

    def pass_time(self, seconds: float) -> None:
        for lease in self.leases._leases.values():
            lease.renewed_s -= seconds


async def desk_on(store: MetaStore) -> Desk:
    return Desk(await ClusterLeases.load(store))


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
async def desk(store: FaultyStore) -> Desk:
    return await desk_on(store)


async def test_one_has_it_and_the_others_hear_who(desk: Desk) -> None:
    mine = await desk.acquire("a")
    assert (mine.name, mine.holder, mine.epoch, mine.ttl_s) == ("l", "a", 1, TTL_S)
    theirs = await desk.acquire("b", ttl_s=99.0)
    assert (theirs.holder, theirs.epoch, theirs.ttl_s) == ("a", 1, TTL_S)
    assert 0 < theirs.left_s <= TTL_S
    await desk.renew(1)


async def test_of_many_who_ask_at_once_one_gets_it(desk: Desk) -> None:
    answers = await asyncio.gather(*(desk.acquire(f"holder-{n}") for n in range(10)))
    assert {(lease.holder, lease.epoch) for lease in answers} == {("holder-0", 1)}


async def test_who_does_not_renew_loses_it_to_the_next_who_asks(desk: Desk) -> None:
    await desk.acquire("a")
    desk.pass_time(9.0)
    assert (await desk.renew(1)).left_s > 9.0
    desk.pass_time(9.0)
    assert (await desk.acquire("b")).holder == "a"
    desk.pass_time(2.0)
    assert desk.list() == [("l", "a", 1)]  # nobody asked yet
    taken = await desk.acquire("b")
    assert (taken.holder, taken.epoch) == ("b", 2)
    with pytest.raises(Fenced, match="'b' has it in epoch 2"):
        await desk.renew(1)


async def test_who_is_late_keeps_what_nobody_took(desk: Desk) -> None:
    await desk.acquire("a")
    desk.pass_time(100.0)
    assert (await desk.renew(1)).left_s > 9.0


async def test_a_holder_that_asks_again_fences_its_old_life(desk: Desk) -> None:
    await desk.acquire("a")
    again = await desk.acquire("a", ttl_s=5.0)
    assert (again.holder, again.epoch, again.ttl_s) == ("a", 2, 5.0)
    with pytest.raises(Fenced):
        await desk.renew(1)
    await desk.renew(2)


async def test_a_released_lease_is_free_at_once_and_its_epochs_go_on(desk: Desk) -> None:
    await desk.acquire("a")
    free = await desk.release(1)
    assert (free.holder, free.epoch, free.left_s) == ("", 1, 0.0)
    assert (await desk.release(1)).holder == ""  # sent again
    with pytest.raises(Fenced, match="it is free"):
        await desk.renew(1)
    assert (await desk.acquire("b")).epoch == 2
    assert (await desk.release(1)).holder == "b"  # sent again, late: it is not his any more
    await desk.renew(2)


async def test_what_nobody_ever_had_is_nobodys(desk: Desk) -> None:
    with pytest.raises(Fenced):
        await desk.renew(0)
    assert (await desk.release(0)).epoch == 0
    assert desk.list() == []


async def test_renewals_are_not_written(desk: Desk, store: FaultyStore) -> None:
    await desk.acquire("a")
    before = await store.list("")
    for _ in range(10):
        await desk.renew(1)
    assert await store.list("") == before


async def test_after_a_restart_the_holder_has_its_full_time(desk: Desk, store: FaultyStore) -> None:
    await desk.acquire("a")
    desk.pass_time(9.0)
    again = await desk_on(store)
    found = await again.acquire("b")
    assert (found.holder, found.epoch) == ("a", 1)
    assert found.left_s > 9.0
    await again.renew(1)
    again.pass_time(11.0)
    assert (await again.acquire("b")).epoch == 2


async def test_leases_survive_a_restart_of_the_repository(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:

        async def ask(action: pb.ChangeLease.Action, holder: str = "", epoch: int = 0) -> pb.Lease:
            request = pb.ChangeLease(
                action=action, name="l", holder=holder, ttl_s=600.0, epoch=epoch
            )
            return (await cluster.client.ask(pb.Frame(change_lease=request))).lease

        assert (await ask(pb.ChangeLease.ACQUIRE, "a")).epoch == 1
        await cluster.restart_repository()
        assert (await ask(pb.ChangeLease.ACQUIRE, "b")).holder == "a"
        await ask(pb.ChangeLease.RENEW, epoch=1)
        await ask(pb.ChangeLease.RELEASE, epoch=1)
        await cluster.restart_repository()
        assert (await ask(pb.ChangeLease.ACQUIRE, "b")).epoch == 2
        with pytest.raises(Fenced):
            await ask(pb.ChangeLease.RENEW, epoch=1)
        listed = await cluster.client.ask(pb.Frame(list_leases=pb.ListLeases()))
        assert [(lease.holder, lease.epoch) for lease in listed.lease_list.leases] == [("b", 2)]


async def test_who_leads_no_more_does_not_fence_a_holder_it_has_not_heard_of(
    desk: Desk, store: FaultyStore
) -> None:
    replaced = await desk_on(store)
    await desk.acquire("a", name="new")
    assert (await replaced.renew(1, name="new")).holder == "a"
    await replaced.acquire("a")
    leads = await desk_on(store)
    await leads.acquire("a")
    assert (await replaced.renew(2)).epoch == 2
    assert await replaced.leases.fence("l", 2) == await leads.leases.fence("l", 2)
    with pytest.raises(Fenced):
        await replaced.renew(3)


@pytest.mark.parametrize(("lost", "epoch"), [("request", 1), ("answer", 2)])
async def test_a_lease_that_the_store_may_have_given_is_asked_for_again(
    desk: Desk, store: FaultyStore, lost: str, epoch: int
) -> None:
    store.loses = lost
    with pytest.raises(Unavailable, match="try again"):
        await desk.acquire("a")
    assert (await desk.acquire("a")).epoch == epoch
    assert (await desk.acquire("b")).holder == "a"


async def test_a_lease_that_another_may_have_is_his_until_the_store_says_no(
    desk: Desk, store: FaultyStore
) -> None:
    store.loses = "answer"
    with pytest.raises(Unavailable):
        await desk.acquire("a")
    found = await desk.acquire("b")
    assert (found.holder, found.epoch) == ("a", 1)


async def test_lists_take_a_prefix_and_come_in_parts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("p/b", "p/a", "q"):
        await desk.acquire("holder", name=name)
    assert desk.list() == [("p/a", "holder", 1), ("p/b", "holder", 1), ("q", "holder", 1)]
    assert [name for name, _, _ in desk.list("p/")] == ["p/a", "p/b"]
    monkeypatch.setattr(limits, "LIST_BYTES", 1)
    part = desk.leases.list(pb.ListLeases(prefix="p/"))
    assert ([lease.name for lease in part.leases], part.more) == (["p/a"], True)
    part = desk.leases.list(pb.ListLeases(prefix="p/", after="p/a"))
    assert ([lease.name for lease in part.leases], part.more) == (["p/b"], False)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (
            pb.ChangeLease(action=pb.ChangeLease.ACQUIRE, holder="a", ttl_s=1),
            "name of a lease",
        ),
        (
            pb.ChangeLease(action=pb.ChangeLease.ACQUIRE, name="l", ttl_s=1),
            "name of a holder",
        ),
        (pb.ChangeLease(action=pb.ChangeLease.ACQUIRE, name="l", holder="a"), "above 0"),
        (
            pb.ChangeLease(action=pb.ChangeLease.ACQUIRE, name="l", holder="a", ttl_s=86_401),
            "at most 86400 s",
        ),
        (
            pb.ChangeLease(action=pb.ChangeLease.ACQUIRE, name="l", holder="a", ttl_s=float("nan")),
            "not nan",
        ),
        (pb.ChangeLease(name="l"), "acquire, renew or release"),
    ],
)
async def test_nonsense_is_refused_and_changes_nothing(
    desk: Desk, request_: pb.ChangeLease, told: str
) -> None:
    with pytest.raises(InvalidArgument, match=told):
        await desk.leases.change(request_)
    assert desk.list() == []


async def test_a_store_that_refuses_leaves_the_lease_as_it_was(
    desk: Desk, store: FaultyStore
) -> None:
    await desk.acquire("a")
    leader = await store.compare_and_swap("leader", 0, b"1")
    old = await desk_on(FencedStore(store, Fence("leader", leader)))
    await store.compare_and_swap("leader", leader, b"2")
    with pytest.raises(LoomError):
        await old.acquire("a")
    await old.renew(1)


async def test_a_damaged_lease_is_unusable_and_the_others_are_not(store: FaultyStore) -> None:
    desk = await desk_on(store)
    await desk.acquire("a", name="damaged")
    epoch = (await desk.acquire("a", name="whole")).epoch
    store.damage("lease/damaged")
    again = await desk_on(store)
    with pytest.raises(Corrupt, match="'lease/damaged' is damaged"):
        await again.acquire("b", name="damaged")
    with pytest.raises(Corrupt, match="'lease/damaged' is damaged"):
        again.list()
    assert (await again.renew(epoch, name="whole")).holder == "a"
    assert again.list("w") == [("whole", "a", epoch)]
