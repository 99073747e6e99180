"""Locations on a whole cluster: where replicas are placed, and where lost ones are restored."""

from __future__ import annotations

import asyncio

import pytest

from loomlog import Log
from loomlog.testing import LocalCluster

PATIENCE_S = 30.0
LOCATIONS = ["rack=a", "rack=a", "rack=b", "rack=b"]


async def nodes_of(log: Log) -> list[int]:
    stream, *_ = (await log.describe()).streams  # one more may have come to its relief
    return sorted(replica.node for replica in stream.replicas)


@pytest.mark.parametrize("protocol", ["ordered", "chained"])
async def test_a_lost_replica_is_made_anew_where_it_was_lost(protocol: str) -> None:
    servers = LocalCluster(4, locations=LOCATIONS, failure_detection_s=2.5)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol, replicas=2)
        await log.append(b"one")
        (left, right) = await nodes_of(log)
        assert left in (1, 2)
        assert right in (3, 4)
        await servers.stop_node(right)
        async with asyncio.timeout(PATIENCE_S):
            while await nodes_of(log) != [left, 7 - right]:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
        await log.append(b"two")
        assert [entry.value async for entry in log.subscribe(1, await log.tail())] == [
            b"one",
            b"two",
        ]


async def test_a_copyset_log_does_without_a_location_that_is_lost() -> None:
    servers = LocalCluster(5, locations=["rack=a", "rack=b", "rack=c", "rack=a", "rack=b"])
    async with servers as cluster:
        log = await cluster.create_log("events", "copyset", replicas=3)
        await log.append(b"one")
        under_way = [asyncio.ensure_future(log.append(b"many")) for _ in range(20)]
        await servers.stop_node(3)
        async with asyncio.timeout(PATIENCE_S / 2):
            await asyncio.gather(*under_way)
            last = await log.append(b"two")
            values = [entry.value async for entry in log.subscribe(1, last.position)]
        assert values == [b"one", *[b"many"] * 20, b"two"]
