"""A small cluster with a stream that operators change."""

from __future__ import annotations

from pathlib import Path

from scripted_node import ScriptedNode
from small_cluster import SmallCluster, told, write_all


def quick(tmp_path: Path) -> SmallCluster:
    return SmallCluster(tmp_path, failure_detection_s=0.4, heartbeat_s=0.05)


async def started(
    cluster: SmallCluster, nodes: int, replicas: int = 2, entries: int = 3
) -> list[ScriptedNode]:
    found = await cluster.add_beating_nodes(nodes)
    await cluster.create(replicas=replicas)
    for count in range(1, entries + 1):
        write_all(found[:replicas], 1, 1)
        for node in found[:replicas]:
            await told(node, 1, count)
    return found


async def goes_on(cluster: SmallCluster, nodes: list[ScriptedNode], stream_id: int = 1) -> None:
    _, tail = await cluster.bounds()
    write_all(nodes, stream_id, 1)
    for node in nodes:
        await told(node, stream_id, tail + 1)
