"""A `copyset` log that cannot be recovered without nodes that are away does not hold up others."""

from __future__ import annotations

import signal
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from poll import until
from rebuilding_processes import running

from loomlog import Cluster, Entry, Log
from loomlog.errors import InvalidArgument
from loomlog.types import Glsn, NodeId

pytestmark = pytest.mark.timeout(180)


async def logs_on(cluster: Cluster, *nodesets: set[NodeId]) -> list[Log]:
    """Create logs until there is one with each of the nodesets."""
    found: dict[int, Log] = {}
    for number in count():
        log = await cluster.create_log(f"log-{number}", protocol="copyset", replicas=2, nodeset=3)
        nodes = {replica.node for replica in (await log.describe()).streams[0].replicas}
        index = nodesets.index(nodes) if nodes in nodesets else -1
        if index < 0 or index in found:
            await cluster.delete_log(log.name)
        else:
            found[index] = log
        if len(found) == len(nodesets):
            break
    return [found[index] for index in range(len(nodesets))]


async def append(log: Log, count: int) -> dict[Glsn, bytes]:
    values = [b"<entry %04d>" % number for number in range(count)]
    return {(await log.append(value)).position: value for value in values}


async def read(log: Log, last: Glsn) -> dict[Glsn, bytes]:
    items = [item async for item in log.subscribe(1, last, gaps=True)]
    return {item.position: item.value for item in items if isinstance(item, Entry)}


async def is_removed(cluster: Cluster, node: NodeId) -> bool:
    """Remove a node without force, if nothing depends on it any more."""
    try:
        await cluster.remove_node(node)
    except InvalidArgument:
        return False
    return True


async def test_the_nodes_of_other_logs_are_rebuilt_and_the_log_follows(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=6) as (processes, cluster):
        stuck, other = await logs_on(cluster, {1, 2, 6}, {3, 4, 5})
        values = {log.name: await append(log, 20) for log in (stuck, other)}
        for node in (1, 2, 3):
            await processes.end(f"vsn-{node}", signal.SIGKILL)
        await until(partial(is_removed, cluster, 3))
        assert await read(other, max(values[other.name])) == values[other.name]
        status = await cluster.status()
        waiting = {c.log for c in status.conditions if c.kind in ("reads-wait", "appends-wait")}
        assert waiting == {stuck.name}
        assert {each.node for each in status.rebuilds} == {1, 2}

        await processes.start_again("vsn-1")
        await until(partial(is_removed, cluster, 2))
        assert await read(stuck, max(values[stuck.name])) == values[stuck.name]
        await until(cluster.status, lambda status: not status.conditions)
