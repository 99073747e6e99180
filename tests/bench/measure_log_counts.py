"""Measure how long it takes to create, list and delete many logs.

    python tests/bench/measure_log_counts.py --logs 10000 --protocol ordered
    python tests/bench/measure_log_counts.py --logs 10000 --protocol copyset --steps 5

A cluster of real processes on this machine; logs without entries. Prints a line for each step:
had one of these anything quadratic, the times per log would grow. Not a test: it takes minutes, and
numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

import psutil
import uvloop

from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running
from loomlog.client.cluster import Cluster, connect
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED

AT_ONCE = 16


class Rig:
    """A cluster, and the CPU time of its metadata repository."""

    def __init__(self, processes: LocalProcesses, cluster: Cluster) -> None:
        self.cluster = cluster
        [pid] = [c.process.pid for c in processes.children if c.name.startswith("vmr")]
        self.vmr = psutil.Process(pid)

    async def measure(self, work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
        """Return how long it takes, and the CPU time of the vmr."""
        cpu_s, begun_s = self._cpu_s(), time.perf_counter()
        await work()
        return time.perf_counter() - begun_s, self._cpu_s() - cpu_s

    def _cpu_s(self) -> float:
        return sum(self.vmr.cpu_times()[:2])

    async def each(self, numbers: Iterable[int], work: Callable[[str], Awaitable[object]]) -> None:
        left = iter(numbers)

        async def worker() -> None:
            for number in left:
                await work(f"log-{number:06}")

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def measure(logs: int, steps: int, protocol: str, replicas: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        plan = ClusterPlan(Path(directory), nodes=3)
        async with running(plan) as processes, await connect(processes.address) as cluster:
            rig = Rig(processes, cluster)
            await _measure(rig, logs, steps, protocol, replicas)


async def _measure(rig: Rig, logs: int, steps: int, protocol: str, replicas: int) -> None:
    cluster, step = rig.cluster, logs // steps
    print(f"{protocol}, 3 nodes, {replicas} replicas, {AT_ONCE} requests at a time")
    print("| logs | create one, ms | CPU ms of the vmr | list all, ms | loom status, ms |")
    print("|---|---|---|---|---|")

    async def create(name: str) -> None:
        await cluster.create_log(name, protocol, replicas=replicas)

    for first in range(0, step * steps, step):
        took = await rig.measure(partial(rig.each, range(first, first + step), create))
        listing = await rig.measure(cluster.logs)
        status = await rig.measure(cluster.status)
        cells = [took[0] / step, took[1] / step, listing[0], status[0]]
        print(f"| {first + step:,} | " + " | ".join(f"{s * 1e3:.2f}" for s in cells) + " |")
    print()
    print("| logs left | delete one, ms | CPU ms of the vmr |")
    print("|---|---|---|")
    for first in range(0, step * steps, step):
        took = await rig.measure(partial(rig.each, range(first, first + step), cluster.delete_log))
        left = step * steps - first - step
        print(f"| {left:,} | {took[0] / step * 1e3:.2f} | {took[1] / step * 1e3:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--protocol", choices=(ORDERED, CHAINED, COPYSET), default=ORDERED)
    parser.add_argument("--replicas", type=int, default=3)
    given = parser.parse_args()
    uvloop.run(measure(given.logs, given.steps, given.protocol, given.replicas))


if __name__ == "__main__":
    main()
