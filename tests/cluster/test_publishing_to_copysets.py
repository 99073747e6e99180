"""Publications to copyset logs appear once and as a whole, whichever process dies, in any epoch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dying_writers import Crash, Dying, own_loglet

from loomlog.client.log import Log
from loomlog.client.publish import writer_state
from loomlog.client.publish.writer import Published, writers_prefix
from loomlog.core.copyset.record import epoch_of
from loomlog.testing import LocalCluster

pytestmark = pytest.mark.timeout(120)

WAIT_S = 30


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    local = LocalCluster(nodes=4, directory=tmp_path, sync="none")
    async with local:
        yield local


@pytest.fixture
async def log(local: LocalCluster) -> AsyncIterator[Log]:
    async with await local.connect() as cluster:
        yield await cluster.create_log("events", protocol="copyset", replicas=2)


def rows(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"%d" % n for n in range(first, first + count)]})


async def values(log: Log) -> list[int]:
    found = [entry async for entry in log.subscribe("earliest", stop=await log.tail())]
    places = [entry.position for entry in found]
    assert places == sorted(set(places))
    return [int(entry.value) for entry in found]


async def end_epoch(local: LocalCluster, log: Log) -> None:
    """End the epoch by killing the sequencing node, and start that again."""
    [stream] = (await log.describe()).active_streams
    assert stream.copyset is not None
    assert stream.copyset.sequencer is not None
    await local.stop_node(stream.copyset.sequencer)
    await local.start_node(stream.copyset.sequencer)


async def test_rows_are_published_between_appends(log: Log) -> None:
    await log.append(b"1")
    writer = await log.writer("w")
    published = await writer.publish(1, await log.stage(rows(2, 1000)))
    assert published.last - published.first == 999
    await log.append(b"1002")
    assert await values(log) == list(range(1, 1003))
    assert (await log.read(published.first + 500)).value == b"502"
    assert await writer.publish(1, await log.stage(rows(7, 7))) == published
    assert await writer.publish(2, await log.stage(rows(1003, 5))) > published
    assert await values(log) == list(range(1, 1008))


@pytest.mark.parametrize("epoch_ends", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])  # decide, append, done
async def test_a_writer_that_dies_anywhere_is_continued_by_another(
    local: LocalCluster, log: Log, step: int, after: bool, epoch_ends: bool
) -> None:
    first = await log.writer("w")
    await first.publish(1, await log.stage(rows(1, 100)))
    staged = await log.stage(rows(101, 50))
    Dying(first, step, after=after)
    with pytest.raises(Crash):
        await first.publish(2, staged)
    if epoch_ends:
        await end_epoch(local, log)

    async with await local.connect() as client:
        theirs = client.log("events")
        again = await theirs.stage(rows(101, 50))
        second = await theirs.writer("w")
        published = await second.publish(2, again)
        assert published.last - published.first == 49
        assert await second.publish(3, await theirs.stage(rows(151, 5))) > published
        assert await values(theirs) == list(range(1, 156))


@pytest.mark.parametrize("epoch_ends", [False, True])
async def test_a_process_that_slept_while_another_published_adds_nothing(
    local: LocalCluster, log: Log, epoch_ends: bool
) -> None:
    """The process wakes up after its last check, just before it sends the batch."""
    zombie = await log.writer("w")
    asleep, awake = asyncio.Event(), asyncio.Event()
    sequencers = own_loglet(zombie, "copyset")._sequencers
    ask = sequencers.ask

    async def late(view: Any, frame: Any, timeout_s: float, payload: Any = ()) -> Any:
        if payload and not awake.is_set():
            asleep.set()
            await awake.wait()
        return await ask(view, frame, timeout_s, payload)

    sequencers.ask = late
    work = asyncio.create_task(zombie.publish(1, await log.stage(rows(1, 10))))
    await asyncio.wait_for(asleep.wait(), WAIT_S)
    async with await local.connect() as client:
        theirs = client.log("events")
        writer = await theirs.writer("w")
        assert await writer.sequence() == 1  # what was decided is carried out
        if epoch_ends:
            await end_epoch(local, theirs)
            await writer.publish(2, await theirs.stage(rows(11, 10)))
        awake.set()
        published = await asyncio.wait_for(work, WAIT_S)
        assert published == Published(0, 0) if epoch_ends else published.first
        assert await values(theirs) == list(range(1, 21 if epoch_ends else 11))


async def test_what_was_decided_for_an_epoch_that_is_over_goes_to_another(
    local: LocalCluster, log: Log
) -> None:
    writer = await log.writer("w")
    before = await writer.publish(1, await log.stage(rows(1, 3)))
    Dying(writer, 1, after=True)
    with pytest.raises(Crash):
        await writer.publish(2, await log.stage(rows(4, 3)))
    await end_epoch(local, log)
    again = await log.writer("w")
    published = await again.publish(2, await log.stage(rows(4, 3)))
    assert epoch_of(published.first) > epoch_of(before.first)
    assert await values(log) == list(range(1, 7))


@pytest.mark.parametrize("to", ["ordered", "chained", "copyset"])
@pytest.mark.parametrize("step", [1, 2])
async def test_a_switch_between_decision_and_end_doubles_nothing(
    local: LocalCluster, log: Log, step: int, to: str
) -> None:
    writer = await log.writer("w")
    staged = await log.stage(rows(1, 9))
    Dying(writer, step, after=True)
    with pytest.raises(Crash):
        await writer.publish(1, staged)
    async with await local.connect() as cluster:
        await cluster.switch_log("events", protocol=to, replicas=2)
        theirs = cluster.log("events")
        again = await theirs.writer("w")
        assert await again.sequence() == 1
        await again.publish(2, await theirs.stage(rows(10, 3)))
        assert await values(theirs) == list(range(1, 13))


async def test_what_is_decided_is_in_the_register_with_its_epoch(
    local: LocalCluster, log: Log
) -> None:
    writer = await log.writer("w")
    staged = await log.stage(rows(1, 3))
    Dying(writer, 1, after=True)
    with pytest.raises(Crash):
        await writer.publish(1, staged)
    async with await local.connect() as cluster:
        found = await cluster.register(writers_prefix("events") + "w").get()
        assert found is not None
        intent = writer_state.decode(found.value).intent
        assert intent is not None
        place = await cluster.log("events").append(b"in the same epoch")
        assert intent.fixed.place == epoch_of(place.position) > 0


async def test_a_trim_carries_out_what_is_decided_below(local: LocalCluster, log: Log) -> None:
    writer = await log.writer("w")
    Dying(writer, 1, after=True)
    with pytest.raises(Crash):
        await writer.publish(1, await log.stage(rows(1, 3)))
    place = (await log.append(b"4")).position
    async with await local.connect() as cluster:
        theirs = cluster.log("events")
        await theirs.trim(place)
        assert await (await theirs.writer("w")).sequence() == 1
        await theirs.append(b"5")
        assert await values(theirs) == [1, 2, 3, 5]
