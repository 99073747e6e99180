"""Appends to chained logs that were given up leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest
from node_services import chained_on

import loomlog
from loomlog.client.append.carriers import Carrier
from loomlog.client.log import Log
from loomlog.client.loglets.chained.carrier import ChainedCarrier
from loomlog.core.chained.messages import Refused
from loomlog.errors import Timeout, Unavailable
from loomlog.node import StorageNode
from loomlog.storage.chained.block_table import BlockTable
from loomlog.testing import LocalCluster

FOREVER_S = 1000.0


async def test_who_gave_up_waiting_for_a_place_is_not_given_one(tmp_path: Path) -> None:
    """Else every append that timed out would leave a hole, and readers would wait for each."""
    local = LocalCluster(nodes=2, directory=tmp_path)
    async with local as cluster, asyncio.timeout(60):
        await cluster.create_log("events", protocol="chained", streams=1, replicas=2)
        async with await loomlog.connect(local.address, append_timeout_s=2.0) as client:
            log = client.log("events")
            await log.append(b"one")
            await local.stop_metadata()
            with pytest.raises(Timeout, match="nobody took it in time"):
                await log.append(b"there is nobody to give it a place")
            [carrier] = [c for c in carriers(log) if isinstance(c, ChainedCarrier)]
            await asyncio.wait_for(asyncio.gather(*carrier.tasks(), return_exceptions=True), 1)
            await local.start_metadata()
            assert (await log.append(b"two")).position == await log.tail() == 2


async def test_an_append_that_was_refused_each_time_is_certainly_not_there(tmp_path: Path) -> None:
    """No node can replace the only replica, whose disk failed."""
    local = LocalCluster(nodes=1, directory=tmp_path)
    async with local as cluster, asyncio.timeout(60):
        await cluster.create_log("events", protocol="chained", streams=1, replicas=1)
        async with await loomlog.connect(local.address, append_timeout_s=2.0) as client:
            log = client.log("events")
            await log.append(b"one")
            fail_disk(local.nodes[1])
            with pytest.raises(Unavailable, match="not appended within 2 s, last: the disk failed"):
                await log.append(b"two")
        await local.stop_node(1)
        await local.start_node(1)
        log = cluster.log("events")
        await log.append(b"three")
        last = await log.tail()
        assert [entry.value async for entry in log.subscribe(1, last)] == [b"one", b"three"]


async def test_who_reads_is_told_at_once_that_the_client_was_closed(tmp_path: Path) -> None:
    local = LocalCluster(nodes=1, directory=tmp_path)
    async with local as cluster, asyncio.timeout(60):
        await cluster.create_log("events", protocol="chained", streams=1, replicas=1)
        async with await loomlog.connect(local.address, request_timeout_s=FOREVER_S) as client:
            log = client.log("events")
            await log.append(b"one")
            await local.stop_node(1)
            reading = asyncio.ensure_future(log.read(1))
            await asyncio.wait([reading], timeout=0.5)
        with pytest.raises(Unavailable, match="this client was closed"):
            await asyncio.wait_for(reading, 5)


def fail_disk(node: StorageNode) -> None:
    """Let the node refuse all requests about chains from now on."""
    (volume,) = chained_on(node)._volumes._volumes
    assert volume.store is not None
    volume._open_table = _cannot_open
    volume.store.failed = Refused("the disk failed")


def _cannot_open(path: str, was_used: bool) -> BlockTable:
    raise OSError("the disk failed")


def carriers(log: Log) -> Collection[Carrier]:
    return log._parts.appender._delivery._carriers.values()
