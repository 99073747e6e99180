"""Very many logs with an occasional append each: the latency of the appends, and the cost of the
logs.

The appends of each log are due at fixed times, spread evenly: latencies count from when an append
was due, so that a pause affects all appends that were due in it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from loomlog.cli.bench.machine import CpuUse, disk_mb, memory_mb
from loomlog.cli.bench.measurements import at_once, percentile_ms
from loomlog.cli.bench.private_cluster import Progress, Target, private_cluster
from loomlog.cli.bench.reports import memory, say
from loomlog.errors import LoomError

if TYPE_CHECKING:
    from loomlog import Cluster, Log

NODES: Final = 5
RECORD_BYTES: Final = 1024
PERIOD_S: Final = 1.0  # between two appends to a log
AT_ONCE: Final = 32  # logs being made, or appended to for the first time
CREATE_TIMEOUT_S: Final = 300.0
SCENARIOS: Final = 3


@dataclass(frozen=True, slots=True)
class ManyLogsReport:
    """Times in seconds, but latencies of an append in milliseconds."""

    protocol: str
    logs: int
    nodes: int
    replicas: int
    sync: str
    created_s: float  # until all logs are there
    begun_s: float  # until each has its first entry
    seconds: float
    appends: int  # acknowledged
    failed: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    client_cpu_percent: float  # of one core
    servers_cpu_percent: float
    disk_mb: float  # of all servers together, when all is written
    rss_mb: dict[str, float]

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def print(self) -> None:
        say(
            f"{self.logs:,} logs, {self.protocol}, sync={self.sync}, {self.replicas} replicas, "
            f"{self.nodes} nodes; made in {self.created_s:.1f} s, the first entries of all in "
            f"{self.begun_s:.1f} s"
        )
        say(
            f"{self.appends / self.seconds:,.0f} appends/s of {RECORD_BYTES:,} B, one to "
            f"each log every {PERIOD_S:g} s: p50 {self.p50_ms:.1f} ms, "
            f"p99 {self.p99_ms:.1f} ms, longest {self.longest_ms:.0f} ms; {self.failed} failed"
        )
        say(
            f"CPU: {self.client_cpu_percent:.0f} % of one core for the client, "
            f"{self.servers_cpu_percent:.0f} % for all servers; {memory(self.rss_mb)}; "
            f"{self.disk_mb:,.0f} MB on disk"
        )


async def measure(
    target: Target, protocol: str, replicas: int, count: int, seconds: float, progress: Progress
) -> ManyLogsReport:
    """Measure; everything started or created for it is removed afterwards."""
    nodes = target.up or NODES
    private = private_cluster(target, nodes, timeout_s=CREATE_TIMEOUT_S)
    async with private as cluster:
        started = perf_counter()
        progress(f"{count:,} logs are made", count / 100)
        logs = await _create(cluster.client, protocol, replicas, count)
        created = perf_counter()
        progress("first appends", count / 100)
        await at_once(AT_ONCE, logs, lambda log: log.append(b"first"))
        begun = perf_counter()
        progress("an append a second to each", seconds)
        writers = _Writers(logs)
        pids = cluster.processes.pids
        client, servers = CpuUse(os.getpid()), CpuUse(*pids.values())
        await writers.run(seconds)
        client_percent, servers_percent = client.percent(), servers.percent()
        latencies_s = sorted(writers.latencies_s)
        return ManyLogsReport(
            protocol=protocol,
            logs=count,
            nodes=nodes,
            replicas=replicas,
            sync=str(target.sync),
            created_s=created - started,
            begun_s=begun - created,
            seconds=seconds,
            appends=len(latencies_s),
            failed=writers.failed,
            p50_ms=percentile_ms(latencies_s, 0.5) or 0.0,
            p99_ms=percentile_ms(latencies_s, 0.99) or 0.0,
            longest_ms=percentile_ms(latencies_s, 1.0) or 0.0,
            client_cpu_percent=client_percent,
            servers_cpu_percent=servers_percent,
            disk_mb=disk_mb(cluster.directory),
            rss_mb=memory_mb(pids),
        )


class _Writers:
    def __init__(self, logs: Sequence[Log]) -> None:
        self._logs = logs
        self._value = os.urandom(RECORD_BYTES)
        self.latencies_s: list[float] = []
        self.failed = 0

    async def run(self, seconds: float) -> None:
        """Each log gets at least one append."""
        begun, count = perf_counter(), len(self._logs)
        async with asyncio.TaskGroup() as group:
            for at, log in enumerate(self._logs):
                first = begun + PERIOD_S * at / count
                group.create_task(self._write(log, first, begun + seconds))

    async def _write(self, log: Log, due: float, end: float) -> None:
        while True:
            await asyncio.sleep(due - perf_counter())
            try:
                await log.append(self._value)
                self.latencies_s.append(perf_counter() - due)
            except LoomError:
                self.failed += 1
            due += PERIOD_S
            if due >= end:
                return


async def _create(cluster: Cluster, protocol: str, replicas: int, count: int) -> list[Log]:
    made: list[Log] = []

    async def create(number: int) -> None:
        made.append(await cluster.create_log(f"bench-{number}", protocol, 1, replicas))

    await at_once(AT_ONCE, range(count), create)
    return made
