"""Copyset logs on a whole cluster: sequencers move, nodes and disks come and go, and everything
that was acknowledged is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from loomlog.client.log import Log
from loomlog.testing import LocalCluster
from loomlog.types import Glsn

DETECTION_S = 2.5  # two heartbeats and more: nobody is missed who is there


@asynccontextmanager
async def copyset(
    directory: Path, *, nodes: int = 4, replicas: int = 2
) -> AsyncIterator[tuple[LocalCluster, Log]]:
    local = LocalCluster(nodes=nodes, directory=directory, failure_detection_s=DETECTION_S)
    async with local as cluster, asyncio.timeout(90):
        await cluster.create_log("events", protocol="copyset", replicas=replicas)
        yield local, cluster.log("events")


async def append(log: Log, values: Iterable[int]) -> dict[Glsn, bytes]:
    wanted = [b"%d" % value for value in values]
    places = await asyncio.gather(*map(log.append, wanted))
    return {at.position: value for at, value in zip(places, wanted, strict=True)}


async def entries(log: Log) -> dict[Glsn, bytes]:
    return {entry.position: entry.value async for entry in log.subscribe(1, await log.tail())}


async def sequencer(log: Log) -> int:
    [stream] = (await log.describe()).streams
    assert stream.copyset is not None
    assert stream.copyset.sequencer is not None
    return stream.copyset.sequencer


async def test_another_node_sequences_when_one_is_gone(tmp_path: Path) -> None:
    async with copyset(tmp_path) as (local, log):
        appended = await append(log, range(100))
        first = await sequencer(log)
        await local.stop_node(first)
        appended |= await append(log, range(100, 200))
        assert await sequencer(log) != first
        assert await entries(log) == appended
        await local.start_node(first)
        appended |= await append(log, range(200, 300))
        assert await entries(log) == appended


async def test_a_cluster_that_was_stopped_shows_all_that_it_has(tmp_path: Path) -> None:
    async with copyset(tmp_path, nodes=3) as (local, log):
        appended = await append(log, range(50))
        for node in list(local.nodes):
            await local.stop_node(node)
        await asyncio.gather(*map(local.start_node, (1, 2, 3)))
        assert await entries(log) == appended
        appended |= await append(log, range(50, 60))
        assert await entries(log) == appended


async def test_nothing_is_lost_with_one_disk(tmp_path: Path) -> None:
    async with copyset(tmp_path, nodes=3) as (local, log):
        appended = await append(log, range(100))
        node = 3 if await sequencer(log) != 3 else 2
        await local.wipe_node(node)
        await local.start_node(node)
        assert await entries(log) == appended
        appended |= await append(log, range(100, 200))
        assert await entries(log) == appended


async def test_the_disk_of_the_sequencer_is_lost_with_it(tmp_path: Path) -> None:
    async with copyset(tmp_path, nodes=4) as (local, log):
        appended = await append(log, range(100))
        node = await sequencer(log)
        await local.wipe_node(node)
        appended |= await append(log, range(100, 150))
        await local.start_node(node)
        appended |= await append(log, range(150, 200))
        assert await entries(log) == appended
