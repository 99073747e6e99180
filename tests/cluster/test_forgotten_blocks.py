"""Disks of a `chained` log forget confirmed writes. The first node of the chain, which the cluster
does not wait for, reports the losses when it is back; a running client reports them before."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from forgetful_disks import copy, put_back
from loglets_of import chains_of
from poll import until

from loomlog import Log, connect
from loomlog.cli.processes.local_processes import ClusterPlan, running
from loomlog.client.loglets.chained import chains
from loomlog.protocol_names import CHAINED
from loomlog.types import Gap, Glsn

pytestmark = pytest.mark.timeout(240)

NODES = [f"vsn-{number}" for number in (1, 2, 3)]
PATIENCE_HOOK = Path(__file__).parent / "patience"


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PATIENCE_HOOK), prepend=os.pathsep)


async def head_of(log: Log) -> str:
    view = await chains_of(log).learn((await log.describe()).active_streams[0].id)
    return f"vsn-{view.projection.chains[0][0].node_id}"


async def append(log: Log) -> Glsn:
    return (await log.append(b"value")).position


async def found(log: Log, last: Glsn) -> tuple[list[Glsn], list[tuple[Glsn, Glsn]]]:
    """Return the positions of the entries up to a given one, and the losses."""
    positions, losses = [], []
    async for item in log.subscribe(1, last, gaps=True):
        if not isinstance(item, Gap):
            positions.append(item.position)
        elif item.kind == "dataloss":
            losses.append((item.first, item.last))
    return positions, losses


async def test_the_first_node_of_a_chain_reports_what_all_others_forgot(tmp_path: Path) -> None:
    async with running(ClusterPlan(tmp_path, nodes=len(NODES))) as servers:
        async with await connect(servers.address) as cluster:
            log = await cluster.create_log("log", CHAINED, replicas=3)
            kept = await append(log)
            absent = await head_of(log)
            others = [name for name in NODES if name != absent]
            for name in others:
                copy(servers, tmp_path, name)
            forgotten = [await append(log), await append(log)]
        # The client was closed, and has told that they were acknowledged.

        await asyncio.gather(*(servers.end(name, signal.SIGKILL) for name in NODES))
        for name in others:
            put_back(tmp_path, name)
        await asyncio.gather(*map(servers.start_again, others))
        async with await connect(servers.address) as cluster:
            log = cluster.log("log")
            later = await append(log)
            assert await found(log, later) == ([kept, later], [])  # nobody knows better yet

            await servers.start_again(absent)
            status = await until(
                cluster.status, lambda s: any(c.kind == "data-lost" for c in s.conditions)
            )
            assert [c.log for c in status.conditions if c.kind == "data-lost"] == ["log"]
            last = await append(log)

        async with await connect(servers.address) as cluster:
            positions, [(first_lost, last_lost)] = await found(cluster.log("log"), last)
            assert positions == [kept, later, last]
            assert first_lost == forgotten[0]
            assert forgotten[1] <= last_lost < later  # and what was in flight behind them


async def test_a_client_that_appends_nothing_more_reports_what_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "TELL_S", 3600.0)  # the power fails before it has told anybody
    async with (
        running(ClusterPlan(tmp_path, nodes=len(NODES))) as servers,
        await connect(servers.address) as cluster,
    ):
        log = await cluster.create_log("log", CHAINED, replicas=3)
        kept = await append(log)
        absent = await head_of(log)
        others = [name for name in NODES if name != absent]
        for name in others:
            copy(servers, tmp_path, name)
        forgotten = await append(log)

        await asyncio.gather(*(servers.end(name, signal.SIGKILL) for name in NODES))
        for name in others:
            put_back(tmp_path, name)
        for _ in range(2):  # it was idle in between
            chains_of(log)._look_untold()
        await asyncio.gather(*map(servers.start_again, others))
        status = await until(
            cluster.status, lambda s: any(c.kind == "data-lost" for c in s.conditions)
        )
        assert [c.log for c in status.conditions if c.kind == "data-lost"] == ["log"]
        last = await append(log)
        assert await found(log, last) == ([kept, last], [(forgotten, last - 1)])

        await servers.start_again(absent)
        await until(
            cluster.status,
            lambda s: [c.kind for c in s.conditions if c.log == "log"] == ["data-lost"],
        )
        assert await found(log, last) == ([kept, last], [(forgotten, last - 1)])
