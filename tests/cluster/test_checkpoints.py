"""Checkpoints: where readers are, kept by the cluster."""

from __future__ import annotations

import asyncio

import pytest

import loomlog
from loomlog import errors
from loomlog.testing import LocalCluster


async def test_a_reader_goes_on_where_it_was() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_many([b"%d" % n for n in range(10)])
        checkpoint = log.checkpoint("billing")
        assert await checkpoint.get() is None
        async for entry in log.subscribe(stop=4):
            await checkpoint.set(entry.position)
        again = log.checkpoint("billing")
        at = await again.get()
        assert at == 4
        assert [entry.position async for entry in log.subscribe(at + 1, 10)] == list(range(5, 11))


async def test_it_moves_back_only_if_asked_to() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_many([b"x"] * 9)
        first, second = log.checkpoint("reader"), log.checkpoint("reader")
        assert await first.set(5) == 5
        assert await second.set(9) == 9
        assert await first.set(7) == 9, "it was overtaken"
        assert await second.get() == 9
        assert await first.set(0, back=True) == 0
        assert await second.get() == 0


async def test_all_checkpoints_of_a_log_and_of_no_other() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        other = await cluster.create_log("events2", replicas=1)
        await log.append_many([b"x"] * 3)
        await other.append_many([b"x"] * 3)
        await log.checkpoint("b").set(2)
        await log.checkpoint("a/with a slash").set(1)
        await other.checkpoint("a").set(3)
        found = await log.checkpoints()
        assert {name: info.position for name, info in found.items()} == {
            "a/with a slash": 1,
            "b": 2,
        }
        assert found["b"].changed.tzinfo is not None
        await log.checkpoint("b").delete()
        await log.checkpoint("b").delete()
        assert list(await log.checkpoints()) == ["a/with a slash"]


async def test_they_go_with_their_log() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_many([b"x"] * 7)
        checkpoint = log.checkpoint("reader")
        await checkpoint.set(7)
        leftover = await cluster.registers("checkpoint/")
        await cluster.delete_log("events")
        assert not await cluster.registers("checkpoint/")
        # As if the client had died before it could take that away.
        for name, found in leftover.items():
            await cluster.register(name).swap(found.value, 0)
        again = await cluster.create_log("events", replicas=1)
        assert await again.checkpoint("reader").get() is None
        assert await again.checkpoints() == {}
        await again.append(b"x")
        assert await again.checkpoint("reader").set(1) == 1


async def test_many_at_once_end_at_the_furthest() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_many([b"x"] * 20)
        await asyncio.gather(*(log.checkpoint("reader").set(n) for n in range(1, 21)))
        assert await log.checkpoint("reader").get() == 20


@pytest.mark.parametrize("position", [-1, 1.5, "7", None, 1 << 63])
async def test_what_is_no_position_is_refused(position: object) -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        with pytest.raises(errors.InvalidArgument, match="position"):
            await log.checkpoint("reader").set(position)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_a_position_that_is_not_written_is_refused(protocol: str) -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", protocol, replicas=1)
        last = (await log.append_many([b"a", b"b"]))[-1].position
        with pytest.raises(errors.InvalidArgument, match=f"events ends at {last}"):
            await log.checkpoint("reader").set(last + 1)
        assert await log.checkpoint("reader").set(last) == last


async def test_names_and_logs_that_are_none() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = cluster.log("events")
        for name in ("", "x" * 101, "a\nb", 7):
            with pytest.raises(errors.InvalidArgument, match="1 to 100 printable characters"):
                log.checkpoint(name)  # type: ignore[arg-type]
        with pytest.raises(errors.NotFound, match="events"):
            await log.checkpoint("reader").get()


async def test_without_an_event_loop() -> None:
    servers = LocalCluster(nodes=1)

    def use(address: str) -> None:
        with loomlog.connect_sync(address) as cluster:
            log = cluster.create_log("events", replicas=1)
            log.append(b"one")
            checkpoint = log.checkpoint("reader")
            assert checkpoint.get() is None
            assert checkpoint.set(1) == 1
            assert log.checkpoints()["reader"].position == 1
            assert checkpoint.set(0, back=True) == 0
            checkpoint.delete()
            assert log.checkpoints() == {}

    async with servers:
        await asyncio.to_thread(use, servers.address)
