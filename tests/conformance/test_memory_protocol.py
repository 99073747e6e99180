"""A protocol that src/ does not know does what the others do, once it is in three tables."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from memory_protocol import NAME, SHELVES, MemoryLoglet
from memory_protocol import memory_protocol as memory_protocol

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.client.loglets.registry import FACTORIES
from loomlog.errors import (
    InvalidArgument,
    NotFound,
    NotYetWritten,
    Trimmed,
    Unavailable,
    VersionMismatch,
)
from loomlog.testing import LocalCluster
from loomlog.types import Buffer, LogId


@pytest.fixture
async def local(tmp_path: Path, memory_protocol: None) -> AsyncIterator[LocalCluster]:
    local = LocalCluster(nodes=3, directory=tmp_path, sync="none", retention_interval_s=0.02)
    async with local:
        yield local


@pytest.fixture
async def cluster(local: LocalCluster) -> Cluster:
    return await local.connect()


@pytest.fixture
async def log(cluster: Cluster) -> Log:
    return await cluster.create_log("events", protocol=NAME, replicas=2)


async def values(log: Log, start: int = 1) -> list[bytes]:
    return [entry.value async for entry in log.subscribe(start, await log.tail())]


async def append_at(log: Log, second: int) -> int:
    times = pa.array([second * 1_000_000], pa.timestamp("us", "UTC"))
    rows = pa.record_batch({"value": pa.array([b"%d" % second], pa.binary()), "timestamp": times})
    return (await log.append_arrow(rows))[0].position


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


async def test_a_time_is_found_in_it_and_in_what_follows(cluster: Cluster, log: Log) -> None:
    positions = [await append_at(log, second) for second in (10, 20, 30)]
    await cluster.switch_log("events", protocol="ordered", replicas=2)
    positions += [await append_at(log, second) for second in (40, 50)]
    for number, position in enumerate(positions, 1):
        assert await log.find_time(10.0 * number) == position
    assert await log.find_time(25.0) == positions[2]
    assert await log.find_time(35.0) == positions[3]


async def test_it_survives_restarts_of_a_node_and_of_the_vmr(
    local: LocalCluster, cluster: Cluster, log: Log
) -> None:
    follower = log.subscribe()
    written = [b"%d" % number for number in range(20)]
    for number, value in enumerate(written):
        if number == 5:
            await local.stop_node(1)
        if number == 10:
            await local.stop_metadata()
            await local.start_metadata()
        if number == 15:
            await local.start_node(1)
        await log.append(value)
    assert [(await anext(follower)).value for _ in written] == written
    await follower.aclose()
    await cluster.switch_log("events", protocol="chained", replicas=2)
    await local.stop_metadata()
    await local.start_metadata()
    await log.append(b"last")
    assert await values(log) == [*written, b"last"]
    assert [segment.protocol for segment in (await log.describe()).segments] == [NAME, "chained"]


async def test_an_append_is_resolved_though_no_node_is_listed_for_a_while(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vmr that was just restarted lists no node until the first one is back."""
    ask, errors = MemoryLoglet.ask, [Unavailable("cut off"), NotFound("no node is listed")]

    async def interrupted(
        self: MemoryLoglet, loglet: LogId, what: str, content: Buffer = b"", **more: Any
    ) -> bytes:
        answer = await ask(self, loglet, what, content, **more)
        if what == "append" and errors:
            raise errors.pop(0)
        return answer

    monkeypatch.setattr(MemoryLoglet, "ask", interrupted)
    async with asyncio.timeout(10):
        await log.append(b"once")
    assert not errors
    assert await values(log) == [b"once"]


async def test_a_publication_that_a_restart_interrupts_is_there_once(
    local: LocalCluster, cluster: Cluster, log: Log
) -> None:
    writer = await log.writer("w")
    staged = await log.stage(pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())}))
    publishing = asyncio.ensure_future(writer.publish(1, staged))
    await asyncio.sleep(0)
    await local.stop_metadata()
    await local.start_metadata()
    published = await publishing
    other = await local.connect()
    again = await (await other.log("events").writer("w")).publish(1, staged)
    assert again == published
    await cluster.switch_log("events", protocol="copyset", replicas=2)
    assert await (await other.log("events").writer("w")).publish(1, staged) == published
    assert await values(log) == [b"a", b"b"]


async def test_it_is_shown_by_status_metrics_and_commands(
    local: LocalCluster, cluster: Cluster, log: Log
) -> None:
    await log.append(b"a")
    assert local.metadata is not None
    [shown] = (await local.metadata.status())["logs"]
    assert [stream["protocol"] for stream in shown["streams"]] == [NAME]
    assert 'log="events"' in await local.metadata.metrics()
    [info] = await cluster.logs()
    assert [stream.protocol for stream in info.streams] == [NAME]
    for arguments in (("status",), ("log", "list"), ("log", "describe", "events")):
        said = await loom(local, *arguments)
        assert "events" in said
    assert NAME in said
    assert NAME in await loom(local, "log", "describe", "events", "--json")


async def loom(local: LocalCluster, *arguments: str) -> str:
    """Run a command, which does not know the protocol."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loomlog.cli.loom", *arguments),
        env=os.environ | {"LOOM_CLUSTER": local.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return said.decode()


async def test_nodes_are_drained_removed_and_wiped(
    local: LocalCluster, cluster: Cluster, log: Log
) -> None:
    await log.append(b"a")
    await cluster.drain_node(3)
    await local.stop_node(3)
    await cluster.remove_node(3, force=True)
    await local.wipe_node(2)
    await local.start_node(2)
    await log.append(b"b")
    assert await values(log) == [b"a", b"b"]


@pytest.mark.usefixtures("arrived_long_ago")
async def test_old_entries_of_it_expire(log: Log) -> None:
    await append_at(log, 10)
    await log.append(b"young")
    await log.set_retention("1h")
    async with asyncio.timeout(30):
        while await log.head() < 2:  # noqa: ASYNC110 - retention looks now and then
            await asyncio.sleep(0.01)
    assert await values(log, 2) == [b"young"]


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
