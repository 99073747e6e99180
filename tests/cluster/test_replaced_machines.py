"""All machines of a cluster, drained or lost ones, are replaced one after the other while logs of
every protocol are written. No entry is lost, and no append fails."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cli_rig import Loom
from number_writer import NumberWriter
from poll import until

from loomlog import Cluster, ClusterStatus, connect
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED

pytestmark = pytest.mark.timeout(240)

PROTOCOLS = (ORDERED, CHAINED, COPYSET)
REPLICAS = 3


@asynccontextmanager
async def written(directory: Path, nodes: int) -> AsyncIterator[tuple[LocalProcesses, Cluster]]:
    """Run a cluster in which a log of each protocol is written; check them at the end."""
    plan = ClusterPlan(directory, nodes=nodes, rebuild_after_s=1.0, rebuild_rate_mb_s=0.0)
    servers = LocalProcesses(plan)
    await servers.start()
    try:
        async with await connect(servers.address) as cluster:
            writers = [NumberWriter(await cluster.create_log(name, name)) for name in PROTOCOLS]
            yield servers, cluster
            for writer in writers:
                await writer.stop()
                await writer.check()
    finally:
        await servers.stop()


async def whole(cluster: Cluster) -> None:
    """Wait until the status shows no condition: then every entry has all its copies. A node that
    was slow once is avoided for minutes, but has what it should."""
    await until(
        cluster.status,
        lambda status: all(each.kind == "node-avoided" for each in status.conditions),
    )


async def start_empty(servers: LocalProcesses, directory: Path, node: int) -> None:
    """Start another machine with the number of one that is gone."""
    (directory / f"vsn-{node}").mkdir()
    await servers.start_again(f"vsn-{node}")


async def test_all_are_lost_and_others_take_their_place(tmp_path: Path) -> None:
    """The copies of a lost node are rebuilt on the others before another node joins."""

    def is_rebuilt(status: ClusterStatus) -> bool:
        return not any(each.replicas for each in status.nodes if each.id == node)

    async with written(tmp_path, nodes=REPLICAS + 1) as (servers, cluster):
        for node in range(1, REPLICAS + 2):
            await whole(cluster)
            await servers.end(f"vsn-{node}", signal.SIGKILL)
            shutil.rmtree(tmp_path / f"vsn-{node}")
            await until(cluster.status, is_rebuilt)
            await cluster.remove_node(node)
            await whole(cluster)
            await start_empty(servers, tmp_path, node)


async def test_all_lose_their_disks_and_are_filled_again(tmp_path: Path) -> None:
    """There is no spare, so a node is filled again when it is back with an empty disk."""

    def is_away(status: ClusterStatus) -> bool:
        return not any(each.alive for each in status.nodes if each.id == node)

    async with written(tmp_path, nodes=REPLICAS) as (servers, cluster):
        for node in range(1, REPLICAS + 1):
            await whole(cluster)
            await servers.end(f"vsn-{node}", signal.SIGKILL)
            shutil.rmtree(tmp_path / f"vsn-{node}")
            await until(cluster.status, is_away)
            await cluster.replace_node(node)
            await start_empty(servers, tmp_path, node)
        await whole(cluster)


async def test_all_are_drained_and_removed(tmp_path: Path) -> None:
    async with written(tmp_path, nodes=REPLICAS + 1) as (servers, cluster):
        loom = Loom(servers.address)
        for node in range(1, REPLICAS + 2):
            await whole(cluster)
            drain = ("node", "drain", str(node), "--wait", "--timeout", "50")
            said = await asyncio.to_thread(loom.says, *drain)
            assert f"node {node} is empty: stop its vsn" in said
            await servers.end(f"vsn-{node}", signal.SIGTERM)
            shutil.rmtree(tmp_path / f"vsn-{node}")
            await cluster.remove_node(node)
            await whole(cluster)
            await start_empty(servers, tmp_path, node)
