"""Appends: batching, outcomes, retries, bounds."""

from __future__ import annotations

import asyncio
import gc
from typing import Literal

import pytest
from fake_cluster import FakeCluster, ignore, refuse, until

from loomlog import connect, errors, limits
from loomlog.client.append import delivery, refresher
from loomlog.core.backoff import Backoff
from loomlog.types import Position


async def test_an_append_is_answered_with_its_place() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        log = await cluster.create_log("events")
        first = await log.append(b"hello")
        second = await log.append(b"world", key=b"k")
        assert first == Position(1, 101, 1)
        assert second == Position(2, 101, 2)
        assert (await log.read(2)).key == b"k"


async def test_a_burst_travels_as_few_batches() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        values = [b"%06d" % n for n in range(10_000)]
        positions = await asyncio.gather(*map(log.append, values))
        assert fake.appends < 10
        assert [at.position for at in positions] == list(range(1, 10_001))
        assert [entry.value async for entry in log.subscribe(stop=10_000)] == values


async def test_batches_grow_while_others_are_under_way() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")

        async def writer() -> None:
            for _ in range(20):
                await log.append(b"x")

        await asyncio.gather(*(writer() for _ in range(100)))
        assert fake.logs["events"].tail == 2000
        assert fake.appends <= 100


async def test_append_many_is_one_batch_at_consecutive_positions() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events", streams=2)
        log = cluster.log("events")
        both = await asyncio.gather(
            log.append_many([b"a", b"b", b"c"], keys=[b"1", None, b"3"]),
            log.append_many([bytes(100)] * 50),
        )
        assert fake.appends == 2
        for positions in both:
            first = positions[0].position
            assert [p.position for p in positions] == list(range(first, first + len(positions)))
            assert len({p.stream for p in positions}) == 1
        assert [(await log.read(p.position)).key for p in both[0]] == [b"1", None, b"3"]
        assert await log.append_many([]) == []


async def test_an_arrow_batch_is_appended_as_it_is() -> None:
    import pyarrow as pa

    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        positions = await log.append_arrow(pa.record_batch({"value": [b"a", b"b"]}))
        assert [p.position for p in positions] == [1, 2]
        assert (await log.read(2)).value == b"b"


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
async def test_compressed_batches_read_the_same(
    compression: Literal["none", "lz4", "zstd"],
) -> None:
    async with (
        FakeCluster() as fake,
        await connect(fake.address, compression=compression) as cluster,
    ):
        fake.add_log("events")
        log = cluster.log("events")
        await log.append_many([b"x" * 1000] * 20)
        assert (await log.read(20)).value == b"x" * 1000


async def test_a_bad_record_fails_alone() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        results = await asyncio.gather(
            log.append(b"good"),
            log.append("text"),  # type: ignore[arg-type]
            log.append(b"good", key=7),  # type: ignore[arg-type]
            log.append(bytes(limits.RECORD_BYTES_MAX + 1)),
            log.append(b"", key=bytes(limits.RECORD_BYTES_MAX + 1)),
            log.append(bytearray(b"good")),
            return_exceptions=True,
        )
        kinds = [type(result) for result in results]
        bad = errors.InvalidArgument
        assert kinds == [Position, bad, bad, bad, bad, Position]


async def test_a_batch_that_is_too_big_says_to_split_it() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        with pytest.raises(errors.InvalidArgument, match="split"):
            await log.append_many([bytes(8 * limits.MIB)] * 5)
        with pytest.raises(errors.InvalidArgument):
            await log.append_many(["text"])  # type: ignore[list-item]
        with pytest.raises(errors.InvalidArgument):
            await log.append_many([1])  # type: ignore[list-item]
        assert (await log.append(b"still works")).position == 1


async def test_a_record_of_the_largest_size_passes() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        small = log.append(b"small")
        await log.append(bytes(limits.RECORD_BYTES_MAX))
        await small
        assert len((await log.read(2)).value) == limits.RECORD_BYTES_MAX


async def test_cancelling_one_append_leaves_the_others_alone() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        appends = [asyncio.ensure_future(log.append(b"%d" % n)) for n in range(3)]
        appends[1].cancel()
        assert (await appends[0]).position == 1
        assert (await appends[2]).position == 3


async def test_an_append_alone_that_is_cancelled_at_once_leaves_nothing_behind() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        append = asyncio.ensure_future(cluster.log("events").append(b"1", timeout_s=10))
        append.cancel()
        await asyncio.gather(append, return_exceptions=True)
        assert await cluster.log("events").tail() == 0
    gc.collect()  # a coroutine that never began would warn


async def test_append_waits_for_room_when_much_is_buffered() -> None:
    async with (
        FakeCluster() as fake,
        await connect(
            fake.address, append_buffer_bytes_max=10_000, append_batch_bytes=2_000
        ) as cluster,
    ):
        fake.add_log("events")
        log = cluster.log("events")
        appends = [asyncio.ensure_future(log.append(bytes(900))) for _ in range(100)]
        cancelled = appends.pop(50)
        cancelled.cancel()
        positions = await asyncio.gather(*appends)
        assert len({at.position for at in positions}) == 99


async def test_a_sealed_stream_is_left_for_another() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        events = fake.add_log("events", streams=2)
        log = cluster.log("events")
        await log.append(b"learn the streams")
        events.streams[0].running = False
        positions = [await log.append(b"x") for _ in range(20)]
        assert {at.stream for at in positions} == {events.streams[1].id}
        events.streams[0].running = True


@pytest.mark.parametrize(
    "error",
    [errors.Busy("full"), errors.Sealed("sealed"), errors.Unavailable("no"), errors.NotFound("?")],
)
async def test_what_was_certainly_not_appended_is_tried_again(error: errors.LoomError) -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        fake.faults.extend([refuse(error)] * 2)
        log = cluster.log("events")
        assert (await log.append(b"x")).position == 1
        assert fake.appends == 3
        assert fake.sequences == [3]  # a new number each time


class TimePasses(Backoff):
    """A pause after a refusal in which a minute passes."""

    def late_s(self, waited_s: float, rng: object = None) -> float:
        loop = asyncio.get_running_loop()
        before = loop.time
        setattr(loop, "time", lambda: before() + 60.0)  # noqa: B010
        return 1000.0


async def test_a_stream_that_has_moved_makes_an_append_unavailable_not_its_log_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "BACKOFF", TimePasses(1.0, 1.0))
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        fake.faults.append(refuse(errors.NotFound("no such replica")))
        with pytest.raises(errors.Unavailable, match="last: no such replica"):
            await cluster.log("events").append(b"x")


async def test_a_stream_that_has_no_room_to_the_end_makes_an_append_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "BACKOFF", TimePasses(1.0, 1.0))
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        fake.faults.append(refuse(errors.Busy("node 2: its volume is full")))
        with pytest.raises(errors.Busy, match="within 30 s: node 2: its volume is full"):
            await cluster.log("events").append(b"x")


async def test_an_error_that_a_retry_cannot_mend_is_raised_as_it_is() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        fake.faults.append(refuse(errors.InvalidArgument("bad batch")))
        with pytest.raises(errors.InvalidArgument, match="bad batch"):
            await cluster.log("events").append(b"x")


async def test_a_batch_that_was_damaged_on_its_way_is_sent_again() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        fake.faults.append(refuse(errors.Corrupt("the body does not match its checksum")))
        assert (await cluster.log("events").append(b"x")).position == 1
        assert fake.appends == 2


async def test_a_sealed_log_says_so_in_the_end() -> None:
    async with (
        FakeCluster() as fake,
        await connect(fake.address, append_timeout_s=1.0) as cluster,
    ):
        fake.add_log("events").streams[0].running = False
        with pytest.raises(errors.Sealed, match="loom status"):
            await cluster.log("events").append(b"x")


async def test_a_stream_that_runs_again_is_noticed() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        stream = fake.add_log("events").streams[0]
        stream.running = False
        append = cluster.log("events").append(b"x")
        await until(lambda: fake.describes >= 3)
        stream.running = True
        assert (await append).position == 1


async def test_a_dead_node_is_left_for_another_stream() -> None:
    async with FakeCluster(nodes=2) as fake, await connect(fake.address) as cluster:
        events = fake.add_log("events", streams=2)
        await fake.nodes[0].stop()
        log = cluster.log("events")
        positions = [await log.append(b"x") for _ in range(5)]
        assert {at.stream for at in positions} == {events.streams[1].id}


async def test_a_named_stream_is_the_only_one_tried() -> None:
    async with (
        FakeCluster() as fake,
        await connect(fake.address, append_timeout_s=1.0) as cluster,
    ):
        events = fake.add_log("events", streams=2)
        log = cluster.log("events")
        assert {(await log.append(b"x", stream=102)).stream for _ in range(10)} == {102}
        events.streams[1].running = False
        with pytest.raises(errors.Sealed):
            await log.append(b"x", stream=102)
        with pytest.raises(errors.NotFound, match="no stream 9"):
            await log.append(b"x", stream=9)
        with pytest.raises(errors.NotFound, match="no stream 9"):
            await log.append_many([b"x"], stream=9)


async def test_what_an_operator_sealed_is_not_waited_for() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        events = fake.add_log("events", streams=2)
        log = cluster.log("events")
        await log.append(b"x", stream=102)
        events.streams[1].seal()
        events.streams[1].held = True
        async with asyncio.timeout(10):  # not 30: nothing will change
            with pytest.raises(errors.Sealed, match="loom stream unseal 102"):
                await log.append(b"x", stream=102)
            assert (await log.append(b"y")).stream == 101
            events.streams[0].seal()
            events.streams[0].held = True
            with pytest.raises(errors.Sealed, match="loom stream unseal"):
                await log.append(b"x")


async def test_a_log_that_lost_rounds_is_not_waited_for() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        (stream,) = fake.add_log("events").streams
        log = cluster.log("events")
        await log.append(b"x")
        stream.hangs = True
        sent = log.append(b"sent")
        await until(lambda: fake.appends == 2)
        stream.running, stream.rolled_back = False, "rounds are lost: restore them"
        async with asyncio.timeout(10):  # not 30: nothing will change
            with pytest.raises(errors.AppendUnknown, match="rounds are lost: restore them"):
                await sent
            with pytest.raises(errors.RolledBack, match="rounds are lost: restore them"):
                await log.append(b"queued")


async def test_metadata_that_went_back_in_time_is_not_waited_for() -> None:
    """An append that was sent waited for its deadline, though nothing could commit it."""
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        (stream,) = fake.add_log("events").streams
        log = cluster.log("events")
        await log.append(b"x")
        stream.hangs = True
        sent = log.append(b"sent")
        await until(lambda: fake.appends == 2)
        fake.metadata_faults.extend([refuse(errors.RolledBack("it went back in time"))] * 5)
        async with asyncio.timeout(10):  # not 30
            with pytest.raises(errors.AppendUnknown, match="it went back in time"):
                await sent
            with pytest.raises(errors.RolledBack, match="it went back in time"):
                await log.append(b"queued")


async def test_a_stream_that_does_not_exist_need_not_wait_for_one_that_is_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The refresher dozed for the sealed stream, and the other append ended as Sealed."""
    async with FakeCluster() as fake:
        fake.add_log("events", streams=2).streams[1].running = False
        cluster = await connect(fake.address)
        log = cluster.log("events")
        monkeypatch.setattr(refresher, "BACKOFF", Backoff(3600.0, 3600.0))
        sealed = log.append(b"x", stream=102)
        await log.append(b"streams are known, and the refresher dozes")
        with pytest.raises(errors.NotFound, match="no stream 9"):
            await log.append(b"x", stream=9)
        await cluster.close()
        with pytest.raises(errors.Unavailable):
            await sealed


async def test_an_unknown_log_is_not_found_at_once() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        with pytest.raises(errors.NotFound, match="create it first"):
            await cluster.log("nothing").append(b"x")


async def test_an_unknown_log_is_not_found_at_once_by_those_that_wait_for_room() -> None:
    async with (
        FakeCluster() as fake,
        await connect(fake.address, append_buffer_bytes_max=1_000) as cluster,
        asyncio.timeout(10),
    ):
        log = cluster.log("nothing")
        appends = [log.append_many([bytes(900)]) for _ in range(3)]
        for outcome in await asyncio.gather(*appends, return_exceptions=True):
            assert isinstance(outcome, errors.NotFound)


async def test_closing_settles_everything() -> None:
    async with FakeCluster() as fake:
        cluster = await connect(fake.address, append_buffer_bytes_max=1_000)
        fake.add_log("events")
        log = cluster.log("events")
        await log.append(b"connect")
        fake.faults.append(ignore)
        sent = log.append(b"sent")
        await until(lambda: fake.appends >= 2)
        waiting = log.append(bytes(900))
        late = log.append(bytes(900))
        log.append(b"nobody waits for this one")
        await cluster.close()
        with pytest.raises(errors.AppendUnknown):
            await sent
        for append in (waiting, late, log.append(b"too late")):
            with pytest.raises((errors.Unavailable, errors.AppendUnknown)):
                await append
        await cluster.close()


async def test_a_log_that_is_first_used_while_the_client_closes_fails_at_once() -> None:
    async with FakeCluster() as fake, asyncio.timeout(10):
        cluster = await connect(fake.address)
        fake.add_log("events")
        fake.add_log("others")
        appending = cluster.log("events").append(b"x")  # the client learns its streams first
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(cluster.close())
        await asyncio.sleep(0)
        assert not closing.done()
        with pytest.raises(errors.Unavailable, match="closed"):
            await cluster.log("others").append(b"y")
        await closing
        with pytest.raises(errors.Unavailable, match="closed"):
            await appending
