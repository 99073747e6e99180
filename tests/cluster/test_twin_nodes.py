"""Two live processes with the data of one node: one of them stops, and both addresses are named."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cli_rig import environment, program
from poll import until

from loomlog import Cluster, connect
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses
from loomlog.types import Glsn, NodeId
from loomlog.wire.conditions import ConditionInfo
from loomlog.wire.info import ClusterStatus

pytestmark = pytest.mark.timeout(120)
PROTOCOLS = {"ordered": 2, "chained": 2, "copyset": 2}
NODE = 2


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[LocalProcesses, Cluster]]:
    processes = LocalProcesses(ClusterPlan(directory, nodes=2, replace_after_s=60.0))
    await processes.start()
    try:
        async with await connect(processes.address, append_timeout_s=60) as cluster:
            yield processes, cluster
    finally:
        await processes.stop()


class Twin:
    """A process of its own with a copy of a node's data."""

    def __init__(self, processes: LocalProcesses, data: Path, copy: Path) -> None:
        shutil.copytree(data, copy)
        number = ("--storage-node-id", str(NODE), "--mr", processes.address)
        where = ("--listen", "127.0.0.1:0", "--volumes", str(copy))
        self.process = subprocess.Popen(
            program("vsn", "start", "--cluster-id", "local", *number, *where),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    async def ended(self) -> str:
        """Wait for its end and return what it said."""
        _, said = await asyncio.to_thread(self.process.communicate, timeout=60)
        assert self.process.returncode == 1
        return said

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


async def append(cluster: Cluster, values: dict[str, dict[Glsn, bytes]], what: str) -> None:
    for protocol, known in values.items():
        log = cluster.log(protocol)
        for number in range(10):
            value = f"{what} {number}".encode()
            known[(await log.append(value)).position] = value


async def check(cluster: Cluster, values: dict[str, dict[Glsn, bytes]]) -> None:
    for protocol, known in values.items():
        log = cluster.log(protocol)
        async with asyncio.timeout(60):
            found = {e.position: e.value async for e in log.subscribe(1, max(known))}
        assert found == known


def address_of(status: ClusterStatus, node: NodeId) -> str:
    return next(each.address for each in status.nodes if each.id == node)


def process_of(status: ClusterStatus, node: NodeId) -> str:
    return next(each.process for each in status.nodes if each.id == node)


def twins(status: ClusterStatus) -> list[ConditionInfo]:
    return [each for each in status.conditions if each.kind == "node-twice"]


async def test_a_copy_of_a_running_node_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "cluster") as (processes, cluster):
        values: dict[str, dict[Glsn, bytes]] = {name: {} for name in PROTOCOLS}
        for name, replicas in PROTOCOLS.items():
            await cluster.create_log(name, protocol=name, replicas=replicas)
        await append(cluster, values, "before")
        before = await cluster.status()
        data = tmp_path / "cluster" / f"vsn-{NODE}"
        for attempt in range(2):
            twin = Twin(processes, data, tmp_path / f"copy-{attempt}")
            try:
                await append(cluster, values, f"meanwhile {attempt}")
                said = await twin.ended()
            finally:
                twin.close()
        address = address_of(before, NODE)
        assert address in said.splitlines()[-1]
        status = await cluster.status()
        [condition] = twins(status)
        assert condition.node == NODE
        assert address in condition.text
        assert address_of(status, NODE) == address
        assert process_of(status, NODE) == process_of(before, NODE)
        await append(cluster, values, "after")
        await check(cluster, values)
        assert not [c for c in (await cluster.status()).conditions if c.kind == "data-lost"]


async def test_an_older_process_that_wakes_up_stops(tmp_path: Path) -> None:
    """The process hung, and its volume was attached to another machine meanwhile."""
    async with running(tmp_path / "cluster") as (processes, cluster):
        values: dict[str, dict[Glsn, bytes]] = {name: {} for name in PROTOCOLS}
        for name, replicas in PROTOCOLS.items():
            await cluster.create_log(name, protocol=name, replicas=replicas)
        await append(cluster, values, "before")
        old = address_of(await cluster.status(), NODE)
        (child,) = (each for each in processes.children if each.name == f"vsn-{NODE}")
        child.process.send_signal(signal.SIGSTOP)
        twin = Twin(processes, tmp_path / "cluster" / f"vsn-{NODE}", tmp_path / "copy")
        try:
            await until(cluster.status, lambda s: address_of(s, NODE) != old and is_up(s))
            await append(cluster, values, "with the twin")
            child.process.send_signal(signal.SIGCONT)
            assert await asyncio.wait_for(child.process.wait(), 30) == 1
            [condition] = await until(lambda: _twins(cluster))
            new = address_of(await cluster.status(), NODE)
            assert (old in condition.text, new in condition.text) == (True, True)
            await append(cluster, values, "without the old one")
            await check(cluster, values)
            assert twin.process.poll() is None
        finally:
            twin.close()


async def _twins(cluster: Cluster) -> list[ConditionInfo]:
    return twins(await cluster.status())


def is_up(status: ClusterStatus) -> bool:
    return all(each.alive for each in status.nodes)
