"""Appends continue while at least `min_replicas` nodes are alive. Missing replicas are made once
more nodes are back."""

from __future__ import annotations

import asyncio

import pytest
from poll import until

from loomlog import Cluster, Log, LogInfo
from loomlog.errors import LoomError, Unavailable
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing import LocalCluster

DETECTION_S = 0.5
PATIENCE_S = 20.0

PROTOCOLS = [ORDERED, CHAINED, COPYSET]


def runs_complete(info: LogInfo) -> bool:
    """Return whether every stream runs with all its replicas."""
    return all(
        stream.state == "running"
        and len(stream.replicas) == info.replicas
        and "copies" not in stream.condition
        for stream in info.active_streams
    )


def appends_continue(info: LogInfo) -> bool:
    """Return whether no stream has a condition that says how to let appends continue."""
    return not any("loom log switch" in stream.condition for stream in info.streams)


async def values(log: Log, last: int) -> list[bytes]:
    return [entry.value async for entry in log.subscribe(start=1, stop=last)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dead", [1, 2, 3])
async def test_a_log_of_three_replicas_outlives_any_of_three_nodes(
    protocol: str, dead: int
) -> None:
    servers = LocalCluster(nodes=3, failure_detection_s=DETECTION_S)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol)
        await log.append(b"before")
        await servers.stop_node(dead)
        async with asyncio.timeout(PATIENCE_S):
            at = await log.append(b"meanwhile")
        assert await values(log, at.position) == [b"before", b"meanwhile"]
        await servers.start_node(dead)
        await until(log.describe, runs_complete)
        at = await log.append(b"after")
        assert await values(log, at.position) == [b"before", b"meanwhile", b"after"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_was_appended_to_fewer_replicas_is_completed(protocol: str) -> None:
    servers = LocalCluster(nodes=3, failure_detection_s=DETECTION_S)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol)
        await servers.stop_node(3)
        async with asyncio.timeout(PATIENCE_S):
            at = await log.append(b"meanwhile")
        await until(log.describe, appends_continue)
        await servers.start_node(3)
        await until(log.describe, runs_complete)
        await servers.stop_node(1)
        await servers.stop_node(2)
        async with asyncio.timeout(PATIENCE_S):
            assert (await log.read(at.position)).value == b"meanwhile"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_fewer_nodes_than_a_log_needs_take_nothing(protocol: str) -> None:
    servers = LocalCluster(nodes=3, failure_detection_s=DETECTION_S)
    async with servers as cluster:
        impatient = await servers.connect()
        await cluster.create_log("events", protocol, min_replicas=3)
        log = impatient.log("events")
        await log.append(b"before")
        await servers.stop_node(3)
        with pytest.raises((Unavailable, TimeoutError)):
            async with asyncio.timeout(3 * DETECTION_S):
                await log.append(b"not on two nodes")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_log_is_created_while_a_node_is_away(protocol: str) -> None:
    servers = LocalCluster(nodes=3, failure_detection_s=DETECTION_S)
    async with servers as cluster:
        await servers.stop_node(2)
        log = await _created(cluster, protocol)
        at = await log.append(b"on two nodes")
        await servers.start_node(2)
        await until(log.describe, runs_complete)
        assert (await log.read(at.position)).value == b"on two nodes"


async def _created(cluster: Cluster, protocol: str) -> Log:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await cluster.create_log("events", protocol)
            except Unavailable:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_cluster_that_never_had_enough_nodes_is_refused(protocol: str) -> None:
    async with LocalCluster(nodes=2) as cluster:
        with pytest.raises(LoomError, match="3 replicas need as many nodes, and 2 are alive"):
            await cluster.create_log("events", protocol)
