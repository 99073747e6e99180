"""A log that is switched to other settings while it is written and read, on real servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.core.segments import Settings
from loomlog.errors import InvalidArgument, NotFound, Trimmed
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.offline import embedded
from loomlog.metadata.ordered.records import StreamRecords
from loomlog.testing import LocalCluster

WRITERS = 3


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    local = LocalCluster(nodes=3, directory=tmp_path, sync="none")
    async with local:
        yield local


class Load:
    """Writers and a subscriber that never stop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.acknowledged: dict[int, bytes] = {}
        self.read: dict[int, bytes] = {}
        self._stop = False
        self._tasks = [asyncio.ensure_future(self._write(n)) for n in range(WRITERS)]
        self._reading = asyncio.ensure_future(self._follow())

    async def _write(self, writer: int) -> None:
        number = 0
        while not self._stop:
            value = b"%d-%d" % (writer, number)
            self.acknowledged[(await self._log.append(value)).position] = value
            number += 1

    async def _follow(self) -> None:
        async for entry in self._log.subscribe():
            assert entry.position == len(self.read) + 1
            self.read[entry.position] = entry.value

    async def more(self, entries: int = 20) -> None:
        """Wait until this many more entries are acknowledged and read."""
        acknowledged, read = len(self.acknowledged), len(self.read)
        async with asyncio.timeout(30):
            while min(len(self.acknowledged) - acknowledged, len(self.read) - read) < entries:
                self._raise_failures()
                await asyncio.sleep(0.005)

    def _raise_failures(self) -> None:
        for task in (*self._tasks, self._reading):
            if task.done():
                task.result()

    async def end(self) -> None:
        """Check that every acknowledged entry was read once, at its position."""
        self._stop = True
        await asyncio.gather(*self._tasks)
        async with asyncio.timeout(30):
            while len(self.read) < len(self.acknowledged):  # noqa: ASYNC110 - entries arrive
                await asyncio.sleep(0.005)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        assert self.read == self.acknowledged


async def segments_of(cluster: Cluster, name: str) -> list[tuple[int, int, int, int | None]]:
    info = await cluster.log(name).describe()
    return [(s.streams, s.replicas, s.start, s.end) for s in info.segments]


async def test_a_log_is_switched_while_it_is_written_and_read(local: LocalCluster) -> None:
    cluster = await local.connect()
    log = await cluster.create_log("events", streams=1, replicas=3)
    load = Load(log)
    await load.more()
    await cluster.switch_log("events", streams=3)
    await load.more()
    await cluster.switch_log("events", streams=2, replicas=2)
    await load.more()
    await load.end()
    one, two, three = await segments_of(cluster, "events")
    assert [one[:3], two[:2], three[:2]] == [(1, 3, 1), (3, 3), (2, 2)]
    assert (two[2], three[2], three[3]) == ((one[3] or 0) + 1, (two[3] or 0) + 1, None)
    info = await log.describe()
    active = [s for s in info.streams if s.segment == info.segments[-1].id]
    assert [len(stream.replicas) for stream in active] == [2, 2]
    for position in (1, one[3], two[2], two[3], three[2]):
        assert position is not None
        assert (await log.read(position)).value == load.acknowledged[position]


async def test_what_runs_already_is_not_switched(local: LocalCluster) -> None:
    cluster = await local.connect()
    await cluster.create_log("events", streams=2, replicas=3)
    change = await cluster.switch_log("events", streams=2)
    assert "already" in change.done
    assert len(await segments_of(cluster, "events")) == 1


async def test_two_switches_at_once_end_in_one_chain(local: LocalCluster) -> None:
    cluster = await local.connect()
    log = await cluster.create_log("events", replicas=2)
    await log.append(b"a")
    await asyncio.gather(
        *(cluster.switch_log("events", streams=streams) for streams in (2, 3, 2, 3))
    )
    segments = await segments_of(cluster, "events")
    assert sorted({streams for streams, *_ in segments}) == [1, 2, 3]
    for one, next_ in itertools.pairwise(segments):
        assert one[3] is not None
        assert next_[2] == one[3] + 1
    assert (await log.append(b"b")).position == 2


async def test_a_switch_that_cannot_be_made_leaves_the_log_as_it_was(local: LocalCluster) -> None:
    cluster = await local.connect()
    log = await cluster.create_log("events", replicas=2)
    before = await log.describe()
    with pytest.raises(InvalidArgument, match="stays as it is: 4 replicas need as many nodes"):
        await cluster.switch_log("events", replicas=4)
    assert await log.describe() == before
    assert (await log.append(b"a")).position == 1


async def test_what_is_asked_wrongly_is_refused(local: LocalCluster) -> None:
    cluster = await local.connect()
    await cluster.create_log("events", replicas=2)
    with pytest.raises(InvalidArgument, match="no protocol 'paxos'"):
        await cluster.switch_log("events", protocol="paxos")
    with pytest.raises(InvalidArgument, match="streams must be a number"):
        await cluster.switch_log("events", streams=0)
    with pytest.raises(NotFound):
        await cluster.switch_log("nothing", streams=2)


async def test_an_ended_segment_stays_sealed_over_restarts(local: LocalCluster) -> None:
    cluster = await local.connect()
    log = await cluster.create_log("events", replicas=2)
    await log.append_many([b"%d" % number for number in range(5)])
    (old,) = (await log.describe()).streams
    await cluster.switch_log("events", streams=2)
    for change in (cluster.seal_stream, cluster.unseal_stream):
        with pytest.raises(InvalidArgument, match="not active"):
            await change(old.id)
    await local.stop_metadata()
    await local.start_metadata()
    assert (await log.append(b"after")).position == 6
    assert [entry.value async for entry in log.subscribe(1, 6)][-2:] == [b"4", b"after"]
    info = await log.describe()
    assert {s.id: s.entries for s in info.streams}[old.id] == 5
    assert [(s.start, s.end) for s in info.segments] == [(1, 5), (6, None)]


@pytest.mark.parametrize("stopped", ["prepared", "made", "ready"])
async def test_who_leads_next_finishes_a_switch(
    local: LocalCluster, tmp_path: Path, stopped: str
) -> None:
    """Whatever the step before which the metadata repository died."""
    cluster = await local.connect()
    log = await cluster.create_log("events", replicas=2)
    await log.append_many([b"%d" % number for number in range(5)])
    await local.stop_metadata()
    async with embedded.opened(str(tmp_path / "vmr")) as store:
        catalog = await Catalog.load(store, "local", str)
        before = catalog.log("events").layout
        prepared = before.prepare(await catalog.new_loglet(), Settings("ordered", 2, 2))
        await catalog.swap_layout("events", before, prepared)
        assert prepared.successor is not None
        if stopped != "prepared":
            streams = await StreamRecords.load(store, catalog)
            loglet = prepared.successor.loglet
            await streams.add_streams(catalog.log("events"), loglet, [(1, 2)] * 2)
        if stopped == "ready":
            await catalog.swap_layout("events", prepared, prepared.ready())
    await local.start_metadata()
    async with asyncio.timeout(30):
        while len((await log.describe()).segments) == 1:  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.01)
    assert await segments_of(cluster, "events") == [(1, 2, 1, 5), (2, 2, 6, None)]
    assert (await log.append(b"after")).position == 6
    assert len((await log.describe()).streams) == 3


async def test_streams_of_a_switch_that_was_given_up_are_gone(
    local: LocalCluster, tmp_path: Path
) -> None:
    cluster = await local.connect()
    log = await cluster.create_log("events", replicas=2)
    await local.stop_metadata()
    async with embedded.opened(str(tmp_path / "vmr")) as store:
        catalog = await Catalog.load(store, "local", str)
        streams = await StreamRecords.load(store, catalog)
        loglet = await catalog.new_loglet()
        await streams.add_streams(catalog.log("events"), loglet, [(1, 2)])
    await local.start_metadata()
    assert len((await log.describe()).streams) == 1
    assert (await log.append(b"a")).position == 1


async def test_a_trim_reaches_over_segments(local: LocalCluster) -> None:
    cluster = await local.connect()
    log = await cluster.create_log("events", replicas=2)
    await log.append_many([b"%d" % number for number in range(5)])
    await cluster.switch_log("events", streams=2)
    await log.append_many([b"%d" % number for number in range(5, 10)])
    await log.trim(7)
    with pytest.raises(Trimmed):
        await log.read(3)
    assert [e.position async for e in log.subscribe("earliest", 10)] == [8, 9, 10]
    info = await log.describe()
    assert [(segment.start, segment.end) for segment in info.segments] == [(6, None)]
    assert [stream.segment for stream in info.streams] == [info.segments[0].id] * 2
    assert (await log.append(b"goes on")).position == 11


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_who_missed_a_switch_and_a_trim_finds_what_is_kept(
    local: LocalCluster, protocol: str
) -> None:
    cluster = await local.connect()
    await cluster.create_log("events", replicas=2, protocol=protocol)
    log, other = cluster.log("events"), (await local.connect()).log("events")
    last = (await log.append_many([b"old"] * 3))[-1].position
    await other.read(last)  # so it knows the first segment
    await cluster.switch_log("events", streams=2, protocol="ordered")
    first = (await log.append(b"new")).position
    await log.trim(last)
    async with asyncio.timeout(30):
        while len(await segments_of(cluster, "events")) > 1:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    assert (await other.read(first)).value == b"new"
    with pytest.raises(Trimmed):
        await other.read(last)


async def test_a_stream_is_added_to_the_active_segment(local: LocalCluster) -> None:
    cluster = await local.connect()
    log = await cluster.create_log("events", replicas=2)
    await cluster.switch_log("events", streams=2)
    added = (await cluster.add_stream("events")).stream
    info = await log.describe()
    assert {s.id: s.segment for s in info.streams}[added or 0] == info.segments[-1].id
    assert (await log.append(b"there", stream=added)).position == 1


async def test_an_empty_log_is_switched_as_often_as_one_likes(local: LocalCluster) -> None:
    """Each time it would have more streams, until there are too many."""
    async with await local.connect() as cluster, await local.connect() as unaware:
        await cluster.create_log("events", replicas=2)
        log, stale = cluster.log("events"), unaware.log("events")
        await stale.describe()
        follower = asyncio.ensure_future(anext(stale.subscribe()))
        for _, protocol in zip(range(8), itertools.cycle(("chained", "copyset", "ordered"))):
            await cluster.switch_log("events", protocol=protocol)
            info = await log.describe()
            assert len(info.segments) == 2
        place = await stale.append(b"at last")
        async with asyncio.timeout(30):
            assert (await follower).value == b"at last"
        assert (await log.read(place.position)).value == b"at last"
        assert len((await log.describe()).streams) == 2


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_what_a_trim_took_with_its_segment_is_trimmed(
    local: LocalCluster, protocol: str
) -> None:
    """Whatever the protocol of the segment that is the first one now: it has never had that."""
    cluster = await local.connect()
    log = await cluster.create_log("events", streams=1, replicas=2)
    last = (await log.append_many([b"a", b"b", b"c"]))[-1].position
    await cluster.switch_log("events", protocol=protocol, replicas=3)
    first = (await log.append(b"d")).position
    await log.trim(last)
    assert len((await log.describe()).segments) == 1
    for position in range(1, last + 1):
        with pytest.raises(Trimmed, match=f"position {position} .*the first one kept is"):
            await log.read(position)
    assert (await log.read(first)).value == b"d"
