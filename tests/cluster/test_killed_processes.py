"""`kill -9` of each node in turn, with the settings of `loom up`: appends continue, and when the
nodes are back every entry is there once, in order."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from poll import until

import loomlog
from loomlog import Log
from loomlog.cli.processes.local_processes import ClusterPlan, running
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED

PATIENCE_S = 30.0
NODES = 3


async def append(log: Log, value: bytes) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return (await log.append(value)).position


async def until_whole(log: Log) -> None:
    """Wait until another node may be killed."""
    await until(
        log.describe,
        lambda info: all(
            s.state == "running"
            and not s.condition
            and (s.protocol != COPYSET or len(s.replicas) == NODES)
            for s in info.active_streams
        ),
    )


@pytest.mark.parametrize("protocol", [ORDERED, CHAINED, COPYSET])
async def test_appends_continue_whichever_node_ends(protocol: str, tmp_path: Path) -> None:
    async with (
        running(ClusterPlan(tmp_path, NODES)) as servers,
        await loomlog.connect(servers.address) as cluster,
    ):
        log = await cluster.create_log("events", protocol)
        appended = [await append(log, b"first")]
        for node in range(1, NODES + 1):
            await servers.end(f"vsn-{node}", signal.SIGKILL)
            appended.append(await append(log, b"without %d" % node))
            await servers.start_again(f"vsn-{node}")
            await until_whole(log)
            appended.append(await append(log, b"with %d" % node))
        entries = [entry async for entry in log.subscribe(start=1, stop=appended[-1])]
        assert [entry.position for entry in entries] == appended
        expected = [
            b"%s %d" % (how, n) for n in range(1, NODES + 1) for how in (b"without", b"with")
        ]
        assert [entry.value for entry in entries] == [b"first", *expected]
