"""A protocol that src/ does not know does what the others do, once it is in three tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest
from memory_protocol import NAME, SHELVES
from memory_protocol import memory_protocol as memory_protocol

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.client.loglets.registry import FACTORIES
from loomlog.errors import InvalidArgument, NotYetWritten, Trimmed, VersionMismatch
from loomlog.testing import LocalCluster


@pytest.fixture
async def cluster(tmp_path: Path, memory_protocol: None) -> AsyncIterator[Cluster]:
    async with LocalCluster(nodes=3, directory=tmp_path, sync="none") as cluster:
        yield cluster


@pytest.fixture
async def log(cluster: Cluster) -> Log:
    return await cluster.create_log("events", protocol=NAME, replicas=2)


async def values(log: Log, start: int = 1) -> list[bytes]:
    return [entry.value async for entry in log.subscribe(start, await log.tail())]


async def test_a_log_is_made_appended_to_read_followed_trimmed_and_deleted(
    cluster: Cluster, log: Log
) -> None:
    follower = log.subscribe()
    appended = [await log.append(b"%d" % number, b"key") for number in range(20)]
    assert [place.position for place in appended] == list(range(1, 21))
    assert (await log.read(7)).value == b"6"
    assert [(await anext(follower)).value for _ in range(20)] == [b"%d" % n for n in range(20)]
    await follower.aclose()
    with pytest.raises(NotYetWritten):
        await log.read(21)
    await log.trim(15)
    with pytest.raises(Trimmed):
        await log.read(15)
    assert (await log.head(), await log.tail()) == (16, 20)
    assert await values(log, 16) == [b"%d" % number for number in range(15, 20)]
    [stream] = (await log.describe()).streams
    assert (stream.protocol, stream.state, stream.last_llsn) == (NAME, "running", 20)
    await cluster.delete_log("events")
    assert not SHELVES


async def test_a_log_is_switched_to_it_and_from_it_while_it_is_used(cluster: Cluster) -> None:
    log = await cluster.create_log("events", replicas=2)
    acknowledged: dict[int, bytes] = {}
    read: dict[int, bytes] = {}
    is_over = asyncio.Event()

    async def write(writer: int) -> None:
        number = 0
        while not is_over.is_set():
            value = b"%d-%d" % (writer, number)
            acknowledged[(await log.append(value)).position] = value
            number += 1

    async def follow() -> None:
        async for entry in log.subscribe():
            read[entry.position] = entry.value

    tasks = [asyncio.ensure_future(work) for work in (write(1), write(2), follow())]
    for protocol in (NAME, "chained", NAME, "copyset", NAME, "ordered"):
        enough = len(read) + 20
        async with asyncio.timeout(30):
            while len(read) < enough:
                assert not any(task.done() for task in tasks)
                await asyncio.sleep(0.005)
        await cluster.switch_log("events", protocol=protocol, replicas=2)
    is_over.set()
    await asyncio.gather(*tasks[:2])
    last = (await log.append(b"last")).position
    async with asyncio.timeout(30):
        while last not in read:  # noqa: ASYNC110 - it follows
            await asyncio.sleep(0.005)
    tasks[2].cancel()
    assert acknowledged.items() <= read.items()
    assert len(set(read.values())) == len(read)
    for position in list(acknowledged)[::7]:
        assert (await log.read(position)).value == acknowledged[position]
    info = await log.describe()
    assert [segment.protocol for segment in info.segments][1::2] == [NAME, NAME, NAME]
    await log.trim(last - 1)
    assert not SHELVES
    assert await values(log, last) == [b"last"]


async def test_rows_are_published_to_it_once(cluster: Cluster, log: Log) -> None:
    writer = await log.writer("w")
    staged = await log.stage(pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())}))
    published = await writer.publish(1, staged)
    assert await writer.publish(1, staged) == published == (1, 2)
    await log.append(b"c")
    assert await values(log) == [b"a", b"b", b"c"]
    assert (await log.read(2)).value == b"b"


async def test_who_does_not_know_it_says_so(
    cluster: Cluster, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(b"a")
    monkeypatch.delitem(FACTORIES, NAME)
    with pytest.raises(InvalidArgument, match="available are ordered, chained, copyset"):
        await cluster.create_log("other", protocol="unheard-of")
    stranger = Cluster([cluster._metadata._address], cluster._client.settings)
    try:
        with pytest.raises(VersionMismatch, match=f"protocol '{NAME}', which this client"):
            await stranger.log("events").read(1)
        with pytest.raises(VersionMismatch, match="upgrade"):
            await anext(stranger.log("events").subscribe())
        with pytest.raises(VersionMismatch, match="upgrade"):
            await stranger.log("events").append(b"b")
    finally:
        await stranger.close()
