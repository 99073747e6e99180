"""A client of chained logs on real servers: appending, reading and following, also with holes,
after the loss of nodes, and across switches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from loglets_of import chains_of

import loomlog
from loomlog import Gap
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.client.loglets.chained.fixed_append import reserve
from loomlog.errors import NotFound, NotYetWritten, Trimmed
from loomlog.testing import LocalCluster
from loomlog.types import Entry, Glsn

HOLE_S = 0.1


@asynccontextmanager
async def chained(
    directory: Path, *, chains: int = 2, replicas: int = 2, failure_detection_s: float = 10.0
) -> AsyncIterator[tuple[LocalCluster, Cluster, Log]]:
    """Run a cluster that is slow to count nodes as dead: a new epoch voids positions that were
    handed out."""
    local = LocalCluster(nodes=3, directory=directory, failure_detection_s=failure_detection_s)
    async with local as cluster, asyncio.timeout(60):
        await cluster.create_log("events", protocol="chained", streams=chains, replicas=replicas)
        async with await loomlog.connect(local.address, hole_timeout_s=HOLE_S) as client:
            yield local, client, client.log("events")


async def leave_hole(log: Log, count: int = 1) -> Glsn:
    """Reserve a position and never write there."""
    stream = (await log.describe()).active_streams[0].id
    fixed = await reserve(chains_of(log), stream, count)
    return fixed.above + 1


async def values(log: Log, first: Glsn, last: Glsn) -> dict[Glsn, bytes]:
    return {entry.position: entry.value async for entry in log.subscribe(first, last)}


async def test_what_is_appended_is_read_wherever_somebody_looks(tmp_path: Path) -> None:
    async with chained(tmp_path) as (_, _, log):
        at = await log.append(b"one", key=b"k")
        assert at.llsn == at.position == 1
        many = await log.append_many([b"two", b"three"])
        await asyncio.gather(*(log.append(b"%d" % number) for number in range(500)))
        assert (await log.read(1)).key == b"k"
        assert (await log.read(many[1].position)).value == b"three"
        tail = await log.tail()
        found = await values(log, 1, tail)
        assert list(found) == list(range(1, 504)) == list(range(1, tail + 1))
        assert set(found.values()) >= {b"%d" % number for number in range(500)}
        rows = [batch async for batch in log.subscribe_arrow(200, 300)]
        assert pa.Table.from_batches(rows)["position"].to_pylist() == list(range(200, 301))
        by_stream = [e async for e in log.subscribe_stream(at.stream, 2, 10)]
        assert [entry.llsn for entry in by_stream] == list(range(2, 11))
        assert await log.locate(7) == {at.stream: 7}
        with pytest.raises(NotYetWritten):
            await log.read(tail + 1)


async def test_the_description_names_chains_and_protocol(tmp_path: Path) -> None:
    async with chained(tmp_path) as (_, _, log):
        [stream] = (await log.describe()).streams
        assert stream.protocol == "chained"
        assert [len(chain) for chain in stream.chains] == [2, 2]


async def test_a_subscriber_hears_of_appends_as_they_come(tmp_path: Path) -> None:
    async with chained(tmp_path) as (_, _, log):
        await log.append(b"before")
        async with aclosing(log.subscribe("latest")) as entries:
            waiting = asyncio.ensure_future(anext(entries))
            await asyncio.sleep(0)
            for number in range(3):
                await log.append(b"%d" % number)
            assert (await waiting).position in (2, 3, 4)


async def test_what_is_read_ahead_is_bounded(tmp_path: Path) -> None:
    async with chained(tmp_path) as (local, _, log):
        for _ in range(40):
            await log.append(bytes(100_000))
        async with await loomlog.connect(local.address, read_ahead_bytes=300_000) as slow:
            assert len(await values(slow.log("events"), 1, 40)) == 40


# ---- holes


@pytest.mark.parametrize("count", [1, 5])
async def test_a_hole_is_filled_and_told_to_who_asks(tmp_path: Path, count: int) -> None:
    async with chained(tmp_path) as (_, _, log):
        await log.append(b"before")
        hole = await leave_hole(log, count)
        await log.append(b"after")
        found: list[Entry | Gap] = [
            item async for item in log.subscribe(stop=hole + count, gaps=True)
        ]
        assert found[1] == Gap(hole, hole + count - 1, "hole")
        assert [item.value for item in (found[0], found[2]) if isinstance(item, Entry)] == [
            b"before",
            b"after",
        ]
        assert await values(log, 1, hole + count) == {1: b"before", hole + count: b"after"}


async def test_nothing_is_found_in_a_hole(tmp_path: Path) -> None:
    async with chained(tmp_path) as (_, _, log):
        hole = await leave_hole(log)
        with pytest.raises(NotFound):
            await log.read(hole)
        assert (await log.append(b"on")).position > hole


async def test_a_hole_at_the_end_does_not_keep_a_reader(tmp_path: Path) -> None:
    async with chained(tmp_path) as (_, _, log):
        await log.append(b"before")
        hole = await leave_hole(log, 3)
        assert await log.tail() == 1
        assert await values(log, 1, hole + 2) == {1: b"before"}
        assert [row async for row in log.subscribe_arrow(hole, hole + 2)] == []


async def test_a_writer_that_was_overtaken_appends_elsewhere(tmp_path: Path) -> None:
    """If a position is filled while its batch is in flight, entries are neither lost nor
    duplicated."""
    async with chained(tmp_path, chains=1) as (local, _, log):
        await log.append(b"before")
        hole = await leave_hole(log)
        await log.append(b"after")
        async with await loomlog.connect(local.address, hole_timeout_s=0.0) as hasty:
            writing = [log.append(b"%d" % number) for number in range(50)]
            async with aclosing(hasty.log("events").subscribe(1, hole + 51)) as entries:
                async for _ in entries:
                    pass
            at = await asyncio.gather(*writing)
        tail = await log.tail()
        found = await values(log, 1, tail)
        assert found == {
            1: b"before",
            hole + 1: b"after",
            **{place.position: b"%d" % number for number, place in enumerate(at)},
        }


# ---- trim


async def test_a_trim_takes_the_prefix_also_from_who_reads_it(tmp_path: Path) -> None:
    async with chained(tmp_path) as (_, _, log):
        for number in range(10):
            await log.append(b"%d" % number)
        await leave_hole(log)
        await log.append(b"after")
        await log.trim(5)
        assert await log.head() == 6
        with pytest.raises(Trimmed):
            await log.read(5)
        with pytest.raises(Trimmed):
            await anext(log.subscribe(3))
        assert [e.position async for e in log.subscribe("earliest", 12)] == [6, 7, 8, 9, 10, 12]


# ---- failures


async def append_all(log: Log, count: int, name: bytes) -> dict[Glsn, bytes]:
    places = {}
    for number in range(count):
        value = b"%s-%d" % (name, number)
        places[(await log.append(value)).position] = value
    return places


@pytest.mark.parametrize("victim", [0, 1, 2], ids=["head", "middle", "tail"])
async def test_a_node_dies_under_appends(tmp_path: Path, victim: int) -> None:
    async with chained(tmp_path, chains=1, replicas=3, failure_detection_s=0.5) as (local, _, log):
        followed: dict[Glsn, bytes] = {}

        async def follow() -> None:
            async for entry in log.subscribe():
                followed[entry.position] = entry.value

        following = asyncio.ensure_future(follow())
        [stream] = (await log.describe()).streams
        first = await append_all(log, 20, b"first")
        writing = [asyncio.ensure_future(append_all(log, 60, b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0)
        await local.stop_node(stream.chains[0][victim])
        appended = dict(first)
        for places in await asyncio.gather(*writing):
            appended |= places
        assert len(appended) == 200
        tail = await log.tail()
        assert await values(log, 1, tail) == appended
        async with asyncio.timeout(20):
            while followed != appended:  # noqa: ASYNC110 - it is another task's
                await asyncio.sleep(0.01)
        following.cancel()
        assert stream.chains[0][victim] not in (await log.describe()).streams[0].chains[0]


async def test_the_tail_does_not_fall_when_places_were_given_and_a_node_dies(
    tmp_path: Path,
) -> None:
    """Otherwise a subscriber from "latest" on might miss later appends."""
    async with chained(tmp_path, chains=1, replicas=3, failure_detection_s=0.5) as (local, _, log):
        await log.append(b"before")
        await leave_hole(log, 10)
        tail = await log.tail()
        [stream] = (await log.describe()).streams
        await local.stop_node(stream.chains[0][0])
        assert (await log.append(b"after")).position > tail


async def test_the_metadata_repository_starts_anew_under_appends(tmp_path: Path) -> None:
    async with chained(tmp_path) as (local, _, log):
        first = await append_all(log, 10, b"first")
        writing = [asyncio.ensure_future(append_all(log, 50, b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0)
        await local.stop_metadata()
        await local.start_metadata()
        appended = dict(first)
        for places in await asyncio.gather(*writing):
            appended |= places
        assert len(appended) == 160
        assert await values(log, 1, await log.tail()) == appended
        assert (await log.describe()).streams[0].epoch > 1


async def test_a_writer_that_slept_through_an_epoch_goes_on(tmp_path: Path) -> None:
    async with chained(tmp_path) as (local, _, log):
        async with await loomlog.connect(local.address) as zombie:
            await zombie.log("events").append(b"it knows the first epoch")
            await local.stop_metadata()
            await local.start_metadata()
            await log.append(b"meanwhile")
            at = await zombie.log("events").append(b"late")
        assert (await log.read(at.position)).value == b"late"


# ---- logs that are switched


async def test_writers_and_readers_cross_switches_unaware(tmp_path: Path) -> None:
    async with chained(tmp_path, chains=1) as (local, client, log):
        appended: dict[Glsn, bytes] = {}
        followed: dict[Glsn, bytes] = {}
        over = asyncio.Event()

        async def write(name: int) -> None:
            async with await loomlog.connect(local.address) as writer:
                number = 0
                while not over.is_set():
                    value = b"%d-%d" % (name, number)
                    appended[(await writer.log("events").append(value)).position] = value
                    number += 1

        async def follow() -> None:
            async for entry in log.subscribe():
                assert entry.position > max(followed, default=0)
                followed[entry.position] = entry.value

        tasks = [asyncio.ensure_future(write(number)) for number in range(3)]
        following = asyncio.ensure_future(follow())
        for protocol, streams in (("ordered", 2), ("chained", 2), ("chained", 1), ("ordered", 1)):
            reached = len(appended) + 50
            while len(appended) < reached:  # noqa: ASYNC110 - it is other tasks'
                await asyncio.sleep(0.01)
            await client.switch_log("events", protocol=protocol, streams=streams)
        over.set()
        await asyncio.gather(*tasks)
        last = await log.append(b"the last one")
        appended[last.position] = b"the last one"
        while last.position not in followed:  # noqa: ASYNC110 - it is another task's
            await asyncio.sleep(0.01)
        following.cancel()
        assert followed == appended
        info = await log.describe()
        assert [s.protocol for s in info.segments] == [
            *("chained", "ordered", "chained", "chained", "ordered")
        ]
        assert await values(log, 1, info.reached) == appended
        await check_places(log, appended)


async def check_places(log: Log, appended: dict[Glsn, bytes]) -> None:
    """Check that every way to find an entry finds the same one."""
    info = await log.describe()
    for segment in info.segments:
        inside = [p for p in appended if p >= segment.start and p <= (segment.end or info.reached)]
        for position in (min(inside), max(inside)):
            entry = await log.read(position)
            assert entry.value == appended[position]
            assert (await log.locate(position))[entry.stream] == entry.llsn
            [found] = [e async for e in log.subscribe_stream(entry.stream, entry.llsn, entry.llsn)]
            assert found == entry
    by_stream = {
        entry.position: entry.value
        for stream, end in (await log.locate(info.reached + 1)).items()
        for begin in [(await log.locate(1))[stream]]
        if begin < end
        async for entry in log.subscribe_stream(stream, begin, end - 1)
    }
    assert by_stream == appended


async def test_a_reader_may_stop_within_an_older_segment(tmp_path: Path) -> None:
    async with chained(tmp_path) as (_, client, log):
        for protocol in ("ordered", "chained"):
            await append_all(log, 5, b"x")
            await client.switch_log("events", protocol=protocol)
        await append_all(log, 5, b"x")
        for first, last in ((1, 3), (2, 7), (6, 10), (4, 12)):
            assert list(await values(log, first, last)) == list(range(first, last + 1))


async def test_a_trim_may_take_whole_segments(tmp_path: Path) -> None:
    async with chained(tmp_path) as (_, client, log):
        for protocol in ("ordered", "chained"):
            await append_all(log, 5, b"x")
            await client.switch_log("events", protocol=protocol)
        await append_all(log, 5, b"x")
        for position, head in ((3, 4), (7, 8), (12, 13)):
            await log.trim(position)
            assert await log.head() == head
            assert [e.position async for e in log.subscribe("earliest", 15)] == [*range(head, 16)]
            with pytest.raises(Trimmed):
                await log.read(position)


# ---- publishing


def rows(*given: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([v.encode() for v in given], pa.binary())})


async def test_staged_rows_are_published_as_one_block(tmp_path: Path) -> None:
    async with chained(tmp_path) as (_, _, log):
        writer = await log.writer("w")
        await log.append(b"before")
        staged = await log.stage([rows("a", "b"), rows("c")])
        published = await writer.publish(1, staged)
        assert await writer.publish(1, staged) == published
        await log.append(b"after")
        assert published == (2, 4)
        assert list((await values(log, 1, 5)).values()) == [b"before", b"a", b"b", b"c", b"after"]
        assert (await log.read(3)).value == b"b"


async def test_a_publication_whose_place_was_filled_goes_elsewhere_once(tmp_path: Path) -> None:
    """Two processes find the same intent; its place is filled before they write."""
    async with chained(tmp_path, chains=1) as (local, _, log):
        await log.append(b"before")
        writer = await log.writer("w")
        staged = await log.stage(rows("a", "b"))
        decided = await writer._decide(await writer._load(), 1, staged)
        intent = decided[0].intent
        assert intent is not None
        await log.append(b"after")
        hole = intent.fixed.above + 1
        assert list(await values(log, 1, hole + 2)) == [1, hole + 2]
        async with (
            await loomlog.connect(local.address) as one,
            await loomlog.connect(local.address) as two,
        ):
            writers = [await c.log("events").writer("w") for c in (one, two)]
            assert await asyncio.gather(*(w.sequence() for w in writers)) == [1, 1]
        tail = await log.tail()
        found = await values(log, 1, tail)
        assert sorted(found.values()) == [b"a", b"after", b"b", b"before"]


async def test_publications_cross_switches(tmp_path: Path) -> None:
    async with chained(tmp_path) as (_, client, log):
        writer = await log.writer("w")
        for number, protocol in enumerate(("ordered", "chained", "ordered"), 1):
            staged = await log.stage(rows(f"{number}-a", f"{number}-b"))
            await writer.publish(2 * number - 1, staged)
            staged = await log.stage(rows(f"{number}-c"))
            await writer._decide(await writer._load(), 2 * number, staged)
            await client.switch_log("events", protocol=protocol)
            assert await writer.sequence() == 2 * number
        found = await values(log, 1, await log.tail())
        assert list(found.values()) == [b"%d-%c" % (n, c) for n in (1, 2, 3) for c in b"abc"]
