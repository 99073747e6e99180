"""Nodes that an operator marks as unrecoverable, and that come back with all their data."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from cli_rig import Loom
from poll import until
from rebuilding_processes import running

from loomlog import Cluster, Entry, Gap, Log
from loomlog.cli.processes.local_processes import LocalProcesses
from loomlog.types import Glsn, NodeId
from loomlog.wire.info import ClusterStatus

pytestmark = pytest.mark.timeout(180)
PROTOCOLS = ("ordered", "chained", "copyset")


async def mark(processes: LocalProcesses, cluster: Cluster, node: NodeId) -> None:
    """Give a node up on the command line, when it is noticed to be away."""
    await until(cluster.status, lambda status: not is_alive(status, node))
    command = ("node", "mark-unrecoverable", str(node), "--yes")
    await asyncio.to_thread(Loom(processes.address).says, *command)


def is_alive(status: ClusterStatus, node: NodeId) -> bool:
    return any(each.alive for each in status.nodes if each.id == node)


def kinds(status: ClusterStatus) -> set[str]:
    return {condition.kind for condition in status.conditions}


async def append(log: Log, count: int) -> dict[Glsn, bytes]:
    values = [b"<entry %04d>" % number for number in range(count)]
    return {(await log.append(value)).position: value for value in values}


async def found(log: Log, last: Glsn) -> tuple[dict[Glsn, bytes], list[Gap]]:
    async with asyncio.timeout(60):
        items = [item async for item in log.subscribe(1, last, gaps=True)]
    entries = {item.position: item.value for item in items if isinstance(item, Entry)}
    return entries, [item for item in items if isinstance(item, Gap) and item.kind == "dataloss"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_marked_nodes_that_return_take_nothing_away_and_add_nothing_wrong(
    tmp_path: Path, protocol: str
) -> None:
    async with running(tmp_path, nodes=4) as (processes, cluster):
        streams, nodeset = (1, 4) if protocol == "copyset" else (2, None)
        log = await cluster.create_log(
            "events", protocol=protocol, streams=streams, replicas=2, nodeset=nodeset
        )
        values = await append(log, 60)
        for node in (1, 2):
            await processes.end(f"vsn-{node}", signal.SIGKILL)
        for node in (1, 2):
            await mark(processes, cluster, node)
        last = (await log.append(b"more")).position
        values[last] = b"more"
        before, gaps = await found(log, last)
        is_complete(values, before, gaps)
        assert last in before

        for node in (1, 2):
            await processes.start_again(f"vsn-{node}")
        stays = {"data-lost", "stream-stopped"}
        await until(cluster.status, lambda status: not status.rebuilds and kinds(status) <= stays)
        after, gaps = await found(log, last)
        is_complete(values, after, gaps)
        assert before.items() <= after.items()
        values[(await log.append(b"still more")).position] = b"still more"
        is_complete(values, *await found(log, max(values)))


def is_complete(values: dict[Glsn, bytes], entries: dict[Glsn, bytes], gaps: list[Gap]) -> None:
    """Check that every entry is read, or said to be lost, and nothing else is read."""
    assert entries.items() <= values.items()
    for position in values.keys() - entries.keys():
        assert any(gap.first <= position <= gap.last for gap in gaps), position


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_marked_node_that_only_hung_is_used_again_and_not_given_up_later(
    tmp_path: Path, protocol: str
) -> None:
    async with running(tmp_path, nodes=3) as (processes, cluster):
        log = await cluster.create_log("events", protocol=protocol, replicas=3)
        values = await append(log, 20)
        pid = processes.pids["vsn-1"]
        os.kill(pid, signal.SIGSTOP)
        try:
            await mark(processes, cluster, 1)
            values |= await append(log, 5)
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(cluster.status, lambda status: not kinds(status))
        for node in (2, 3):
            await processes.end(f"vsn-{node}", signal.SIGKILL)
        assert await found(log, max(values)) == (values, [])
        await processes.end("vsn-1", signal.SIGKILL)
        status = await until(cluster.status, lambda status: not is_alive(status, 1))
        assert not [each for each in status.conditions if "gave up" in each.text]
        for node in (1, 2, 3):
            await processes.start_again(f"vsn-{node}")
        await until(cluster.status, lambda status: not kinds(status))
        assert await found(log, max(values)) == (values, [])
