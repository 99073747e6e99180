"""Registers and leases through the client, with servers that go away and answers that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from proxy import Proxy

import loomlog
from loomlog import Cluster, Versioned, connect, errors, limits
from loomlog.testing import LocalCluster


@asynccontextmanager
async def behind_proxy(request_timeout_s: float = 10.0) -> AsyncIterator[tuple[Cluster, Proxy]]:
    """Connect a client whose answers can be dropped."""
    servers = LocalCluster(nodes=0)
    async with servers, Proxy() as proxy:
        proxy.target = servers.address
        async with await connect(proxy.address, request_timeout_s=request_timeout_s) as cluster:
            yield cluster, proxy


async def test_a_register_from_nothing_to_nothing() -> None:
    async with LocalCluster(nodes=0) as cluster:
        register = cluster.register("pipelines/counts")
        assert await register.get() is None
        first = await register.swap(b"one", expected=0)
        assert await register.get() == Versioned(b"one", first)
        with pytest.raises(errors.Conflict, match="pipelines/counts"):
            await register.swap(b"two", expected=0)
        second = await register.swap(b"", expected=first)
        other = await cluster.register("other").swap(b"x", expected=0)
        assert await cluster.registers() == {
            "other": Versioned(b"x", other),
            "pipelines/counts": Versioned(b"", second),
        }
        assert list(await cluster.registers("pipelines/")) == ["pipelines/counts"]
        assert await register.swap(None, expected=second) > second
        assert await register.get() is None


async def test_a_lease_changes_hands_and_the_old_holder_is_fenced() -> None:
    async with LocalCluster(nodes=0) as cluster:
        assert await cluster.lease("runner") is None
        first = await cluster.acquire_lease("runner", "site-1", ttl_s=60.0)
        assert first is not None
        assert (first.name, first.holder, first.epoch, first.ttl_s) == ("runner", "site-1", 1, 60.0)
        assert await cluster.acquire_lease("runner", "site-2", ttl_s=60.0) is None
        register = cluster.register("progress")
        version = await register.swap(b"1", 0, lease=first)
        await first.renew()
        await first.release()
        await first.release()
        second = await cluster.acquire_lease("runner", "site-2", ttl_s=60.0)
        assert second is not None
        with pytest.raises(errors.Fenced, match="'site-2' has it in epoch 2"):
            await first.renew()
        with pytest.raises(errors.Fenced):
            await register.swap(b"old", version, lease=first)
        await register.swap(b"2", version, lease=second)
        found = await cluster.lease("runner")
        assert found is not None
        assert (found.holder, found.epoch, found.ttl_s) == ("site-2", 2, 60.0)
        assert 0 < found.left_s <= 60.0
        await cluster.acquire_lease("runner-2", "site-1", ttl_s=60.0)
        assert [lease.name for lease in await cluster.leases("run")] == ["runner", "runner-2"]


async def test_a_lease_that_is_not_renewed_goes_to_who_waits() -> None:
    async with LocalCluster(nodes=0) as cluster:
        assert await cluster.acquire_lease("runner", "dead", ttl_s=0.05)
        async with asyncio.timeout(20):
            while (lease := await cluster.acquire_lease("runner", "alive", ttl_s=60.0)) is None:
                pass
        assert lease.epoch == 2


async def test_everything_is_there_after_a_restart_of_the_metadata_repository() -> None:
    servers = LocalCluster(nodes=0)
    async with servers as cluster:
        lease = await cluster.acquire_lease("runner", "site-1", ttl_s=60.0)
        assert lease is not None
        register = cluster.register("progress")
        version = await register.swap(b"1", 0, lease)
        await servers.stop_metadata()
        pending = asyncio.ensure_future(register.swap(b"2", version, lease))
        await servers.start_metadata()
        assert await pending > version
        await lease.renew()
        assert await cluster.acquire_lease("runner", "site-2", ttl_s=60.0) is None


@pytest.mark.parametrize("value", [b"new", None])
async def test_a_swap_whose_answer_is_lost_happens_once_and_is_answered(
    value: bytes | None,
) -> None:
    async with behind_proxy() as (cluster, proxy):
        register = cluster.register("r")
        version = await register.swap(b"old", 0)
        proxy.answers_pass = False
        pending = asyncio.ensure_future(register.swap(value, version))
        await asyncio.wait_for(proxy.swallowed.wait(), 20)
        proxy.heal()
        swapped = await pending
        assert swapped == version + 1  # one write of the store
        assert await register.get() == (None if value is None else Versioned(value, swapped))


async def test_a_swap_that_is_never_answered_is_unknown() -> None:
    async with behind_proxy(request_timeout_s=0.2) as (cluster, proxy):
        proxy.answers_pass = False
        with pytest.raises(errors.SwapUnknown, match=r"'r'.*may or may not have happened: read it"):
            await cluster.register("r").swap(b"x", 0)


async def test_a_lease_whose_answer_is_lost_is_acquired_in_a_later_epoch() -> None:
    async with behind_proxy() as (cluster, proxy):
        proxy.answers_pass = False
        pending = asyncio.ensure_future(cluster.acquire_lease("runner", "site-1", ttl_s=60.0))
        await asyncio.wait_for(proxy.swallowed.wait(), 20)
        proxy.heal()
        lease = await pending
        assert lease is not None
        assert lease.epoch == 2
        await lease.renew()


async def test_more_than_fits_into_one_answer_is_listed() -> None:
    async with LocalCluster(nodes=0) as cluster:
        value = bytes(limits.REGISTER_BYTES_MAX)
        names = [f"large-{n}" for n in range(9)]
        for name in names:
            await cluster.register(name).swap(value, 0)
        found = await cluster.registers()
        assert list(found) == names
        assert all(item.value == value for item in found.values())


@pytest.mark.parametrize(
    ("name", "value", "expected", "told"),
    [
        ("", b"", 0, "must be a non-empty text"),
        ("r", bytes(limits.REGISTER_BYTES_MAX + 1), 0, "at most 1048576 bytes"),
        ("r", b"", -1, "0 if there is none"),
        ("r", b"", None, "0 if there is none"),
    ],
)
async def test_nonsense_is_refused(name: str, value: bytes, expected: int, told: str) -> None:
    async with LocalCluster(nodes=0) as cluster:
        with pytest.raises(errors.InvalidArgument, match=told):
            await cluster.register(name).swap(value, expected)


async def test_the_same_names_without_an_event_loop() -> None:
    servers = LocalCluster(nodes=0)

    def story() -> None:
        with loomlog.connect_sync(servers.address) as cluster:
            lease = cluster.acquire_lease("runner", "site-1", ttl_s=60.0)
            assert lease is not None
            assert cluster.acquire_lease("runner", "site-2", ttl_s=60.0) is None
            register = cluster.register("progress")
            assert register.get() is None
            version = register.swap(b"1", 0, lease=lease)
            assert register.get() == Versioned(b"1", version)
            assert cluster.registers("pro") == {"progress": Versioned(b"1", version)}
            lease.renew()
            assert [info.epoch for info in cluster.leases()] == [lease.epoch]
            lease.release()
            info = cluster.lease("runner")
            assert info is not None
            assert (info.holder, info.left_s) == ("", 0.0)
            with pytest.raises(errors.Fenced):
                register.swap(b"2", version, lease=lease)

    async with servers:
        await asyncio.to_thread(story)
