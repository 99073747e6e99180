"""`kill -9` of each node in turn, with the settings of `loom up`: appends continue within a second,
and when the nodes are back every entry is there once, in order."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from number_writer import NumberWriter
from poll import until
from processor_waits import ProcessorWaits

import loomlog
from loomlog import Log
from loomlog.cli.processes.local_processes import ClusterPlan, running
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED

NODES = 3
STALL_S_MAX = 1.0


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
async def test_appends_continue_within_a_second_whichever_node_ends(
    protocol: str, tmp_path: Path
) -> None:
    """The time in which a process waited for a processor does not count as a stall."""
    async with (
        running(ClusterPlan(tmp_path, NODES)) as servers,
        await loomlog.connect(servers.address) as cluster,
        ProcessorWaits(lambda: [os.getpid(), *servers.pids.values()]) as waits,
    ):
        log = await cluster.create_log("events", protocol)
        writer = NumberWriter(log)
        await writer.more()
        for node in range(1, NODES + 1):
            await servers.end(f"vsn-{node}", signal.SIGKILL)
            await writer.more()
            await servers.start_again(f"vsn-{node}")
            await until_whole(log)
            await writer.more()
        await writer.stop()
        await writer.check()
        for begin, end in writer.gaps():
            stall_s = end - begin - waits.between_s(begin, end)
            assert stall_s < STALL_S_MAX, f"appends waited for {stall_s:.2f} s"
