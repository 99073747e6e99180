"""A cluster of real processes that rebuilds what is away for a second, as fast as it can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loomlog import Cluster, connect
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses


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
