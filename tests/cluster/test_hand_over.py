"""A storage node announces that it stops, and others take over while it is still running."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loomlog.client.log import Log
from loomlog.testing import LocalCluster
from loomlog.types import NodeId

PATIENCE_S = 30.0
PROTOCOLS = ("ordered", "chained", "copyset")


async def serves(log: Log, node: NodeId) -> bool:
    """Return whether appends need the node: as the sequencer, or for all running streams."""
    running = [s for s in (await log.describe()).streams if s.state == "running"]
    if any(stream.sequencer for stream in running):
        return any(stream.sequencer == node for stream in running)
    return all(node in {replica.node for replica in stream.replicas} for stream in running)


async def test_logs_do_without_it_before_it_is_gone(tmp_path: Path) -> None:
    local = LocalCluster(4, directory=tmp_path, sync="none")
    async with local as cluster, asyncio.timeout(PATIENCE_S):
        logs = [await cluster.create_log(name, name) for name in PROTOCOLS]
        for log in logs:
            await log.append(b"before")
        for log in logs:
            [node, *_] = [node for node in (1, 2, 3, 4) if await serves(log, node)]
            await local.nodes[node].hand_over()
            assert not await serves(log, node)
            assert local.metadata is not None
            assert local.metadata.term is not None
            assert local.metadata.term.nodes.connected(node)
            await log.append(b"after")
            await local.stop_node(node)
            await local.start_node(node)
            await log.append(b"again")
            tail = await log.tail()
            values = [entry.value async for entry in log.subscribe(start=1, stop=tail)]
            assert values == [b"before", b"after", b"again"]


async def test_the_last_node_does_not_wait_for_others(tmp_path: Path) -> None:
    local = LocalCluster(1, directory=tmp_path, sync="none")
    async with local as cluster:
        log = await cluster.create_log("events", "copyset", replicas=1)
        await log.append(b"x")
        begun = asyncio.get_running_loop().time()
        await local.nodes[1].hand_over()
        assert asyncio.get_running_loop().time() - begun < 0.9
