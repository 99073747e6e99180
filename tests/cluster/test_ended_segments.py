"""Segments of an `ordered` log that have ended: their replicas hear of no more commits, wherever
they are by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.testing import LocalCluster
from loomlog.wire.info import StreamInfo

pytestmark = pytest.mark.timeout(120)

WAIT_S = 30


@pytest.fixture
async def local() -> AsyncIterator[LocalCluster]:
    local = LocalCluster(nodes=2)
    async with local:
        yield local


async def two_streams(cluster: Cluster, local: LocalCluster) -> tuple[Log, StreamInfo]:
    """Make a log whose first segment has a stream with only a few old entries, on a node that knows
    nothing later; return the log and the stream."""
    log = await cluster.create_log("events", streams=2, replicas=1)
    quiet, busy = (await log.describe()).streams
    [replica] = quiet.replicas
    await log.append(b"1", stream=quiet.id)
    await local.stop_node(replica.node)
    for number in range(2, 11):
        await log.append(b"%d" % number, stream=busy.id)
    switching = asyncio.create_task(cluster.switch_log("events", protocol="chained", replicas=1))
    while not (await log.describe()).switching:  # noqa: ASYNC110 - it can only be asked
        await asyncio.sleep(0.01)
    await local.start_node(replica.node)
    await switching
    return log, quiet


async def check(log: Log, quiet: StreamInfo) -> None:
    async with asyncio.timeout(WAIT_S):
        for position in range(1, 11):
            assert (await log.locate(position))[quiet.id] == (1 if position == 1 else 2)
            entry = await log.read(position)
            assert entry.value == b"%d" % position
            assert await log.find_time(entry.timestamp) <= position


async def test_every_place_is_found_after_a_restart(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log, quiet = await two_streams(cluster, local)
        await check(log, quiet)
        for node in (1, 2):
            await local.stop_node(node)
            await local.start_node(node)
        await check(log, quiet)


async def test_every_place_is_found_after_a_move(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log, quiet = await two_streams(cluster, local)
        await move(cluster, log, quiet)
        await check(log, quiet)


async def test_a_stream_without_entries_is_found_empty_after_a_move(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log = await cluster.create_log("events", streams=2, replicas=1)
        empty, busy = (await log.describe()).streams
        for number in range(10):
            await log.append(b"%d" % number, stream=busy.id)
        await cluster.switch_log("events", protocol="ordered")
        await move(cluster, log, empty)
        async with asyncio.timeout(WAIT_S):
            assert [(await log.locate(at))[empty.id] for at in range(1, 11)] == [1] * 10


async def move(cluster: Cluster, log: Log, stream: StreamInfo) -> None:
    [replica] = stream.replicas
    await cluster.move_stream(stream.id, replica.node, 3 - replica.node)
    async with asyncio.timeout(WAIT_S):
        while await place(log, stream) == replica.node:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.01)


async def place(log: Log, quiet: StreamInfo) -> int:
    [stream] = [stream for stream in (await log.describe()).streams if stream.id == quiet.id]
    return stream.replicas[0].node
