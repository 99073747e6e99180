"""Copies of copyset logs are made again: nodes are lost, come back empty, or are drained."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from poll import until

from loomlog import Cluster, ClusterStatus, connect
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses
from loomlog.client.log import Log
from loomlog.types import Glsn

pytestmark = pytest.mark.timeout(180)


@asynccontextmanager
async def running(directory: Path, nodes: int) -> AsyncIterator[tuple[LocalProcesses, Cluster]]:
    plan = ClusterPlan(directory, nodes=nodes, rebuild_after_s=1.0, rebuild_rate_mb_s=0.0)
    processes = LocalProcesses(plan)
    await processes.start()
    try:
        async with await connect(processes.address) as cluster:
            yield processes, cluster
    finally:
        await processes.stop()


async def append(log: Log, count: int, values: dict[Glsn, bytes]) -> None:
    for number in range(count):
        value = b"%d" % (len(values) + number)
        values[(await log.append(value)).position] = value


async def read(log: Log) -> dict[Glsn, bytes]:
    return {e.position: e.value async for e in log.subscribe(1, await log.tail())}


def is_refilled(status: ClusterStatus) -> bool:
    return any(each.kind == "rebuild" for each in status.conditions)


def is_calm(status: ClusterStatus) -> bool:
    """Return whether nothing is under way. What was recovered with fewer nodes may have fewer
    copies."""
    found = {each.kind for each in status.conditions}
    return not status.rebuilds and not found - {"under-replicated"}


async def until_unused(cluster: Cluster, node: int) -> None:
    """Wait until the node has no copies that count."""
    await until(
        cluster.status, lambda status: not any(n.replicas for n in status.nodes if n.id == node)
    )


async def test_a_node_that_comes_back_empty_gets_its_copies_again(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=3) as (processes, cluster):
        log = await cluster.create_log("events", protocol="copyset", replicas=3)
        values: dict[Glsn, bytes] = {}
        await append(log, 30, values)
        for node in (1, 2, 3):
            await processes.end(f"vsn-{node}", signal.SIGKILL)
            shutil.rmtree(tmp_path / f"vsn-{node}")
            (tmp_path / f"vsn-{node}").mkdir()
            while any(n.alive for n in (await cluster.status()).nodes if n.id == node):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await cluster.replace_node(node)
            await processes.start_again(f"vsn-{node}")
            await until(cluster.status, is_refilled)
            await until(cluster.status, is_calm)
            await append(log, 5, values)
            assert await read(log) == values


async def test_all_nodes_are_lost_one_after_the_other(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=4) as (processes, cluster):
        log = await cluster.create_log("events", protocol="copyset", replicas=2)
        values: dict[Glsn, bytes] = {}
        await append(log, 40, values)
        for node in (1, 2, 3, 4):
            await processes.end(f"vsn-{node}", signal.SIGKILL)
            shutil.rmtree(tmp_path / f"vsn-{node}")
            await append(log, 5, values)
            await until_unused(cluster, node)
            await cluster.remove_node(node)
            assert await read(log) == values
            (tmp_path / f"vsn-{node}").mkdir()  # another machine, with a number that is free
            await processes.start_again(f"vsn-{node}")


async def test_a_node_is_drained_under_load(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=4) as (processes, cluster):
        log = await cluster.create_log("events", protocol="copyset", replicas=3)
        values: dict[Glsn, bytes] = {}
        await append(log, 30, values)
        is_over = asyncio.Event()

        async def load() -> None:
            while not is_over.is_set():
                await append(log, 1, values)

        loading = asyncio.create_task(load())
        await cluster.drain_node(2)
        await until_unused(cluster, 2)
        is_over.set()
        await loading
        await cluster.remove_node(2)
        await processes.end("vsn-2", signal.SIGKILL)
        assert await read(log) == values
