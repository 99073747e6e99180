"""A node that is drained becomes empty, also of what is not written any more."""

from __future__ import annotations

import asyncio

import pytest

from loomlog.client.cluster import Cluster
from loomlog.testing import LocalCluster

PATIENCE_S = 30.0


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_segments_that_have_ended_move_away(protocol: str) -> None:
    async with LocalCluster(nodes=3) as cluster:
        log = await cluster.create_log("events", protocol, replicas=2)
        await log.append_many([b"%d" % number for number in range(20)])
        await cluster.switch_log("events", protocol="ordered", streams=2)
        before, *_ = (await log.describe()).streams
        drained = before.replicas[0].node
        await cluster.drain_node(drained)
        async with asyncio.timeout(PATIENCE_S):
            while drained in await holders(cluster):  # noqa: ASYNC110 - it can only be asked
                await asyncio.sleep(0.01)
        entries = [entry.value async for entry in log.subscribe(1, await log.tail())]
        assert entries == [b"%d" % number for number in range(20)]


async def holders(cluster: Cluster) -> set[int]:
    streams = (await cluster.log("events").describe()).streams
    return {replica.node for stream in streams for replica in stream.replicas}
