"""Disks of `copyset` logs forget confirmed writes. Records that other nodes have are stored again,
and the others are reported as lost."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from forgetful_disks import copy, put_back
from poll import until

from loomlog import Cluster, Log, connect
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running
from loomlog.client.loglets.copyset import acknowledged
from loomlog.core.backoff import Backoff
from loomlog.errors import DataLoss
from loomlog.protocol_names import COPYSET
from loomlog.testing.ports import free_address
from loomlog.types import Gap, Glsn

pytestmark = pytest.mark.timeout(240)

NODES = [f"vsn-{number}" for number in (1, 2, 3)]
SERVERS = ["vmr-1", *NODES]
PATIENCE_HOOK = Path(__file__).parent / "patience"


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PATIENCE_HOOK), prepend=os.pathsep)


@asynccontextmanager
async def cluster_in(directory: Path) -> AsyncIterator[tuple[LocalProcesses, Cluster]]:
    plan = ClusterPlan(directory, nodes=len(NODES))
    async with running(plan) as servers, await connect(servers.address) as cluster:
        yield servers, cluster


async def append(log: Log) -> Glsn:
    return (await log.append(b"value")).position


async def found(log: Log, last: Glsn) -> tuple[list[Glsn], list[Gap]]:
    """Return the positions of the entries up to a given one, and the losses."""
    positions, losses = [], []
    async for item in log.subscribe(1, last, gaps=True):
        if not isinstance(item, Gap):
            positions.append(item.position)
        elif item.kind == "dataloss":
            losses.append(item)
    return positions, losses


async def forget(servers: LocalProcesses, directory: Path, name: str) -> None:
    await servers.end(name, signal.SIGKILL)
    put_back(directory, name)
    await servers.start_again(name)


async def test_a_node_that_is_not_waited_for_reports_what_all_others_forgot(tmp_path: Path) -> None:
    """The others have recovered the log without the node when it is back."""
    port = int(free_address().rpartition(":")[2])  # the same after the restart
    async with running(ClusterPlan(tmp_path, nodes=len(NODES), port=port)) as servers:
        async with await connect(servers.address) as cluster:
            log = await cluster.create_log("log", COPYSET, replicas=3)
            kept = await append(log)
            for name in NODES[:2]:
                copy(servers, tmp_path, name)
            forgotten = await append(log)
            await append(log)  # with it, nodes learn that the one before was acknowledged

        await asyncio.gather(*(servers.end(name, signal.SIGKILL) for name in SERVERS))
        for name in NODES[:2]:
            put_back(tmp_path, name)
        await servers.start_again("vmr-1")
        await asyncio.gather(*map(servers.start_again, NODES[:2]))
        async with await connect(servers.address) as cluster:
            log = cluster.log("log")
            later = await append(log)
            assert await found(log, later) == ([kept, later], [])  # nobody knows better yet

            await servers.start_again(NODES[2])
            status = await until(
                cluster.status, lambda s: any(c.kind == "data-lost" for c in s.conditions)
            )
            assert [c.log for c in status.conditions if c.kind == "data-lost"] == ["log"]

        async with await connect(servers.address) as cluster:
            positions, losses = await found(cluster.log("log"), later)
            assert positions == [kept, later]
            assert (losses[0].first, losses[0].exact) == (forgotten, True)
            assert losses[-1].last < later


@pytest.mark.parametrize("is_given_up", [True, False])
async def test_a_client_that_appends_nothing_more_reports_what_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_given_up: bool
) -> None:
    """The only node that has it never comes back; or all disks forgot it."""
    monkeypatch.setattr(acknowledged, "LOOK", Backoff(0.5, 1.0))
    async with cluster_in(tmp_path) as (servers, cluster):
        log = await cluster.create_log("log", COPYSET, replicas=3)
        kept = await append(log)
        forgetful = NODES[:2] if is_given_up else NODES
        for name in forgetful:
            copy(servers, tmp_path, name)
        forgotten = [await append(log), await append(log)]

        await asyncio.gather(*(servers.end(name, signal.SIGKILL) for name in NODES))
        for name in forgetful:
            put_back(tmp_path, name)
        await asyncio.gather(*map(servers.start_again, forgetful))
        if is_given_up:
            await until(cluster.status, lambda s: not s.nodes[2].alive)
            await cluster.mark_unrecoverable(3)
        status = await until(
            cluster.status, lambda s: any(c.kind == "data-lost" for c in s.conditions)
        )
        assert [c.log for c in status.conditions if c.kind == "data-lost"] == ["log"]
        last = await append(log)
        for reader in (log, (await connect(servers.address)).log("log")):
            positions, losses = await found(reader, last)
            assert positions == [kept, last]
            first = losses[0]
            assert (first.first, first.last, first.exact) == (*forgotten, True)
        with pytest.raises(DataLoss):
            await log.read(forgotten[1])


async def test_a_loss_is_read_in_a_segment_that_was_closed_in_between(tmp_path: Path) -> None:
    """The next segment does not get the positions of its last entries."""
    async with cluster_in(tmp_path) as (servers, cluster):
        log = await cluster.create_log("log", COPYSET, replicas=3)
        kept = await append(log)
        for name in NODES[:2]:
            copy(servers, tmp_path, name)
        forgotten = [await append(log), await append(log)]

        await asyncio.gather(*(servers.end(name, signal.SIGKILL) for name in SERVERS[1:]))
        for name in NODES[:2]:
            put_back(tmp_path, name)
        await asyncio.gather(*map(servers.start_again, NODES[:2]))
        await cluster.switch_log("log", protocol="chained", replicas=2)
        later = await append(log)
        assert later > forgotten[1]
        await servers.start_again(NODES[2])
        await until(cluster.status, lambda s: any(c.kind == "data-lost" for c in s.conditions))
        async with await connect(servers.address) as another:
            positions, losses = await found(another.log("log"), later)
        assert positions == [kept, later]
        assert losses[0].first == forgotten[0]
        assert losses[-1].last >= forgotten[1]


async def test_what_a_disk_forgot_is_stored_on_it_again(tmp_path: Path) -> None:
    """Each node forgets the same entries as soon as the previous one was checked."""
    async with cluster_in(tmp_path) as (servers, cluster):
        log = await cluster.create_log("log", COPYSET, replicas=3)
        positions = [await append(log)]
        for name in NODES:
            copy(servers, tmp_path, name)
        positions += [await append(log) for _ in range(3)]
        for number, name in enumerate(NODES, 1):
            await forget(servers, tmp_path, name)
            await until(partial(is_checked, servers, number))
        assert await found(log, positions[-1]) == (positions, [])
        assert "data-lost" not in {c.kind for c in (await cluster.status()).conditions}


def is_checked(servers: LocalProcesses, node: int) -> bool:
    """Return whether the metadata repository says that the copies of a node are complete."""
    [vmr] = [child for child in servers.children if child.name == "vmr-1"]
    return (
        re.search(rf"the copies of node .*\b{node}\b.* are checked", vmr.log_file.read_text())
        is not None
    )


async def test_a_check_names_the_node_that_it_waits_for(tmp_path: Path) -> None:
    """The node that is away may have what the crashed one forgot."""
    async with cluster_in(tmp_path) as (servers, cluster):
        log = await cluster.create_log("log", COPYSET, replicas=2)
        copy(servers, tmp_path, NODES[0])
        for _ in range(4):
            await append(log)
        await servers.end(NODES[2], signal.SIGKILL)
        await forget(servers, tmp_path, NODES[0])

        helps = await until(lambda: help_for(cluster, node=1))
        assert "node 3 may have what it forgot" in helps
        assert "`loom node mark-unrecoverable NODE`" in helps
        await servers.start_again(NODES[2])
        await until(lambda: is_checked(servers, 1))
        assert not await help_for(cluster, node=1)


@pytest.mark.parametrize("word", ["mark-unrecoverable", "remove"])
async def test_what_a_node_forgot_is_looked_for_before_another_one_is_given_up(
    tmp_path: Path, word: str
) -> None:
    """Status says that entries are lost if, and only if, readers find that."""
    async with cluster_in(tmp_path) as (servers, cluster):
        log = await cluster.create_log("log", COPYSET, replicas=2)
        copy(servers, tmp_path, NODES[0])
        for _ in range(12):
            await append(log)  # some of them to nodes 1 and 3
        await servers.end(NODES[2], signal.SIGKILL)
        await forget(servers, tmp_path, NODES[0])
        await until(lambda: help_for(cluster, node=1))
        await until(cluster.status, lambda status: not status.nodes[2].alive)
        if word == "remove":
            await cluster.remove_node(3, force=True)
        else:
            await cluster.mark_unrecoverable(3)
        status = await until(cluster.status, lambda s: not any(n.replicas for n in s.nodes[2:]))
        _, losses = await found(log, await append(log))
        said = {condition.log for condition in status.conditions if condition.kind == "data-lost"}
        assert said == ({"log"} if losses else set())
        assert not any("is elsewhere" in condition.help for condition in status.conditions)


async def help_for(cluster: Cluster, node: int) -> str:
    """Return the text of a node's condition about copies that are being checked."""
    conditions = (await cluster.status()).conditions
    return next((c.help for c in conditions if c.node == node and "being checked" in c.text), "")
