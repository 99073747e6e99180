"""Subscriptions: one order over all streams, no entry lost or doubled, back-pressure."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest
from fake_cluster import FakeCluster, until

from loomlog import batch, columns, connect, errors
from loomlog.client.cluster import Cluster
from loomlog.client.loglets.ordered import feed, part
from loomlog.errors import Unavailable


async def fill(cluster: Cluster, count: int, first: int = 1) -> None:
    """Single appends to random streams, so that they interleave."""
    log = cluster.log("events")
    for number in range(first, first + count):
        await log.append(b"%d" % number)


async def test_the_streams_are_merged_into_one_order() -> None:
    async with (
        FakeCluster() as fake,
        await connect(fake.address, rng=random.Random(5)) as cluster,
    ):
        events = fake.add_log("events", streams=3)
        await fill(cluster, 200)
        assert all(stream.batches for stream in events.streams)
        log = cluster.log("events")
        entries = [entry async for entry in log.subscribe(start=1, stop=200, gaps=False)]
        assert [e.position for e in entries] == list(range(1, 201))
        assert [int(e.value) for e in entries] == list(range(1, 201))


async def test_start_and_stop_may_fall_within_batches() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        await log.append_many([b"%d" % n for n in range(1, 101)])
        entries = [entry.position async for entry in log.subscribe(start=30, stop=70)]
        assert entries == list(range(30, 71))
        arrow = [found async for found in log.subscribe_arrow(start=30, stop=70)]
        assert [p for found in arrow for p in found["position"].to_pylist()] == entries
        assert arrow[0].schema == columns.SCHEMA
        assert [entry async for entry in log.subscribe(start=5, stop=4)] == []


async def test_a_subscriber_follows_the_tail() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events", streams=2)
        await fill(cluster, 10)
        log = cluster.log("events")
        async with aclosing(log.subscribe("latest")) as latest:
            waiting = asyncio.ensure_future(anext(latest))
            await until(lambda: len(fake.subscribers) == 2)
            await fill(cluster, 1, first=11)
            assert (await waiting).position == 11


async def test_leaving_a_subscription_ends_it_at_the_servers() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events", streams=2)
        await fill(cluster, 10)
        async with aclosing(cluster.log("events").subscribe()) as entries:
            async for entry in entries:
                if entry.position == 5:
                    break
        await until(lambda: not fake.subscribers)


async def test_a_slow_reader_holds_its_servers_back() -> None:
    async with (
        FakeCluster() as fake,
        await connect(fake.address, read_ahead_bytes=20_000) as cluster,
    ):
        events = fake.add_log("events")
        log = cluster.log("events")
        for _ in range(100):
            await log.append(bytes(1000))
        async with aclosing(log.subscribe(stop=100)) as entries:
            await anext(entries)
            sent = fake.subscribers[0].at
            assert sent < len(events.streams[0].batches) / 2
            assert len([entry async for entry in entries]) == 99


async def test_batches_below_the_start_do_not_use_up_the_credit() -> None:
    """A replica that lagged may send much that was delivered before."""
    async with (
        FakeCluster() as fake,
        await connect(fake.address, read_ahead_bytes=5_000) as cluster,
    ):
        fake.add_log("events")
        log = cluster.log("events")
        async with aclosing(log.subscribe(start=50)) as entries:
            waiting = asyncio.ensure_future(anext(entries))
            await until(lambda: bool(fake.subscribers))
            for _ in range(50):
                await log.append(bytes(1000))
            assert (await waiting).position == 50


async def test_a_broken_connection_is_not_noticed_by_the_reader() -> None:
    async with (
        FakeCluster() as fake,
        await connect(fake.address, read_ahead_bytes=2_000) as cluster,
    ):
        fake.add_log("events", streams=2)
        await fill(cluster, 300)
        seen = []
        async with aclosing(cluster.log("events").subscribe(stop=300)) as entries:
            async for entry in entries:
                seen.append(entry.position)
                if entry.position % 60 == 0:
                    for subscriber in list(fake.subscribers):
                        subscriber.connection.abort(Unavailable("cut by the test"))
                    fake.subscribers.clear()
        assert seen == list(range(1, 301))


async def test_a_reader_goes_on_at_another_replica_when_a_node_dies() -> None:
    async with (
        FakeCluster(nodes=2) as fake,
        await connect(fake.address, read_ahead_bytes=2_000) as cluster,
    ):
        fake.add_log("events", streams=2)
        await fill(cluster, 200)
        seen = []
        async with aclosing(cluster.log("events").subscribe(stop=200)) as entries:
            async for entry in entries:
                seen.append(entry.position)
                if entry.position == 50:
                    fake.subscribers.clear()
                    await fake.nodes[0].stop()
        assert seen == list(range(1, 201))


async def test_a_stream_that_is_added_is_found() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        events = fake.add_log("events")
        log = cluster.log("events")
        await log.append(b"1")
        async with aclosing(log.subscribe()) as entries:
            assert (await anext(entries)).position == 1
            new = fake.add_stream(events)
            async with await connect(fake.address) as other:
                await other.log("events").append(b"2", stream=new.id)
            fake.push()
            assert (await anext(entries)).stream == new.id


async def test_a_replica_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "STALL_S", 0.02)
    monkeypatch.setattr(part, "SILENT_S", 0.02)
    monkeypatch.setattr(part, "IDLE_S", 0.1)
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        await fill(cluster, 1)
        async with aclosing(cluster.log("events").subscribe()) as entries:
            await anext(entries)
            fake.subscribers.clear()  # it sends nothing any more, and the connection stays
            await fill(cluster, 1, first=2)
            assert (await anext(entries)).position == 2


async def test_a_damaged_batch_is_taken_from_another_replica() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        events = fake.add_log("events")
        await fill(cluster, 3)
        stored = events.streams[0].batches[1]
        whole = bytes(stored)
        stored[batch.HEADER_BYTES] ^= 1
        async with aclosing(cluster.log("events").subscribe(stop=3)) as entries:
            assert (await anext(entries)).position == 1
            stored[:] = whole
            assert [entry.position async for entry in entries] == [2, 3]


async def test_damage_at_every_replica_is_told() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        events = fake.add_log("events")
        await fill(cluster, 1)
        events.streams[0].batches[0][batch.HEADER_BYTES] ^= 1
        with pytest.raises(errors.Corrupt):
            await anext(cluster.log("events").subscribe())


async def test_what_was_trimmed_is_told_with_where_to_go_on() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events", streams=2)
        await fill(cluster, 10)
        log = cluster.log("events")
        await log.trim(4)
        with pytest.raises(errors.Trimmed, match="first one kept is 5"):
            await anext(log.subscribe())
        entries = [entry.position async for entry in log.subscribe("earliest", stop=10)]
        assert entries == [5, 6, 7, 8, 9, 10]


async def test_one_stream_by_its_own_order() -> None:
    async with (
        FakeCluster() as fake,
        await connect(fake.address, rng=random.Random(3)) as cluster,
    ):
        events = fake.add_log("events", streams=2)
        await fill(cluster, 50)
        log = cluster.log("events")
        second = events.streams[1]
        found = [e async for e in log.subscribe_stream(second.id, 3, second.entries)]
        assert [e.llsn for e in found] == list(range(3, second.entries + 1))
        assert {e.stream for e in found} == {second.id}
        with pytest.raises(errors.NotFound):
            await anext(log.subscribe_stream(9))


async def test_nonsense_is_refused_when_it_is_asked_for() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        for start in (0, -1, "first", None):
            with pytest.raises(errors.InvalidArgument):
                log.subscribe(start)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument):
            log.subscribe(1, "last")  # type: ignore[call-overload]
        with pytest.raises(errors.NotFound):
            await anext(cluster.log("nothing").subscribe())


async def test_closing_the_client_wakes_its_readers() -> None:
    async with FakeCluster() as fake:
        cluster = await connect(fake.address)
        fake.add_log("events")
        waiting = asyncio.ensure_future(anext(cluster.log("events").subscribe()))
        await until(lambda: bool(fake.subscribers))
        await cluster.close()
        with pytest.raises(errors.Unavailable, match="closed"):
            await waiting


@pytest.mark.parametrize("step", ["_choose", "_take"])
async def test_a_feed_that_dies_of_something_unexpected_ends_the_subscription(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(feed.Feed, step, fail)
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        await fill(cluster, 1)
        async with asyncio.timeout(10):
            with pytest.raises(ZeroDivisionError):
                await anext(cluster.log("events").subscribe())


async def test_what_a_position_may_be_is_said() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        log = await cluster.create_log("events")
        for start in ("foo", 0, True, 2**63, None):
            with pytest.raises(
                errors.InvalidArgument,
                match=f"from 1 to {2**63 - 1} or 'earliest' or 'latest', not {start!r}",
            ):
                log.subscribe(start=start)  # type: ignore[arg-type]
        for stop in ("foo", True):
            with pytest.raises(errors.InvalidArgument, match=f"stop must be .*, not {stop!r}"):
                log.subscribe(stop=stop)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match=f"from 1 to {2**63 - 1}, not {2**64}"):
            await log.read(2**64)
        for position in ("7", True, -1, 2**63):
            with pytest.raises(errors.InvalidArgument, match=f"first, not {position!r}"):
                await log.checkpoint("r").set(position)  # type: ignore[arg-type]
