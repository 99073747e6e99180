"""Copies of copyset logs are made again: nodes are lost, come back empty, or are drained."""

from __future__ import annotations

import asyncio
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from cli_rig import Loom
from poll import until
from rebuilding_processes import running

from loomlog import Cluster, ClusterStatus
from loomlog.client.log import Log
from loomlog.errors import DataLoss
from loomlog.types import Entry, Glsn

pytestmark = pytest.mark.timeout(180)


async def append(log: Log, count: int, values: dict[Glsn, bytes]) -> None:
    for number in range(count):
        value = b"%d" % (len(values) + number)
        values[(await log.append(value)).position] = value


async def read(log: Log) -> dict[Glsn, bytes]:
    return {e.position: e.value async for e in log.subscribe(1, await log.tail())}


def is_refilled(status: ClusterStatus) -> bool:
    return any(each.kind == "rebuild" for each in status.conditions)


def is_calm(status: ClusterStatus) -> bool:
    """Return whether nothing is under way, and nothing missing."""
    return not status.rebuilds and not status.conditions


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


async def test_after_a_loss_the_entries_that_are_left_have_all_their_copies(
    tmp_path: Path,
) -> None:
    """Two nodes lose their disks at once and come back empty. Once the rest is rebuilt, the status
    names the loss, and no other shortage."""
    async with running(tmp_path, nodes=4) as (processes, cluster):
        log = await cluster.create_log("events", protocol="copyset", replicas=2, nodeset=4)
        values: dict[Glsn, bytes] = {}
        await append(log, 80, values)
        for node in (1, 2):
            await processes.end(f"vsn-{node}", signal.SIGKILL)
            shutil.rmtree(tmp_path / f"vsn-{node}")
            (tmp_path / f"vsn-{node}").mkdir()
        for node in (1, 2):
            await until(cluster.status, partial(is_down, node))
            await cluster.replace_node(node)
            await processes.start_again(f"vsn-{node}")
        await append(log, 5, values)
        await until(cluster.status, lambda s: {"data-lost"} == {c.kind for c in s.conditions})
        found = [item async for item in log.subscribe(1, await log.tail(), gaps=True)]
        left = {item.position: item.value for item in found if isinstance(item, Entry)}
        assert len(left) < len(values)
        assert left.items() <= values.items()
        await processes.end("vsn-3", signal.SIGKILL)  # each of the others has a copy now
        assert {at: (await log.read(at)).value for at in left} == left


def is_down(node: int, status: ClusterStatus) -> bool:
    return not any(each.alive for each in status.nodes if each.id == node)


async def test_nodes_that_never_come_back_are_given_up(tmp_path: Path) -> None:
    """Rebuilding waits for two nodes that may have had all copies of an entry, until an operator
    gives them up. Readers get DataLoss for exactly what only these had."""
    async with running(tmp_path, nodes=4) as (processes, cluster):
        log = await cluster.create_log("events", protocol="copyset", replicas=2, nodeset=4)
        values: dict[Glsn, bytes] = {}

        def only_there() -> set[Glsn]:
            left = b"".join(content(tmp_path / f"vsn-{node}") for node in (3, 4))
            return {at for at, value in values.items() if value not in left}

        while not 0 < len(only_there()) < len(values):  # nodes that are slow now are avoided
            for _ in range(20):
                value = b"<entry %04d>" % len(values)
                values[(await log.append(value)).position] = value
        for node in (1, 2):
            await processes.end(f"vsn-{node}", signal.SIGKILL)
            shutil.rmtree(tmp_path / f"vsn-{node}")
        lost = only_there()
        assert 0 < len(lost) < len(values)
        status = await until(
            cluster.status, lambda s: {r.node for r in s.rebuilds if r.waiting} == {1, 2}
        )
        named = "log events cannot be recovered without nodes that are away (1, 2): start them"
        assert all(each.waiting.startswith(named) for each in status.rebuilds), status.rebuilds
        assert "reads-wait" in {condition.kind for condition in status.conditions}
        for node in (1, 2):
            command = ("node", "mark-unrecoverable", str(node), "--yes")
            await asyncio.to_thread(Loom(processes.address).says, *command)
        for node in (1, 2):
            await until_unused(cluster, node)
        await until(cluster.status, lambda status: not status.rebuilds)
        await until(cluster.status, lambda s: any(c.kind == "data-lost" for c in s.conditions))
        last = (await log.append(b"more")).position

        found = [item async for item in log.subscribe(1, last, gaps=True)]
        entries = {item.position: item.value for item in found if isinstance(item, Entry)}
        gaps = [gap for gap in found if not isinstance(gap, Entry) and gap.kind == "dataloss"]
        assert entries == {at: v for at, v in values.items() if at not in lost} | {last: b"more"}
        assert all(any(gap.first <= at <= gap.last for gap in gaps) for at in lost)
        for position in values:
            if position in lost:
                with pytest.raises(DataLoss):
                    await log.read(position)
            else:
                assert (await log.read(position)).value == values[position]
        await log.trim(last - 1)
        await until(cluster.status, lambda s: "data-lost" not in {c.kind for c in s.conditions})


def content(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
