"""Measure what TLS costs: the same load in turns on a cluster with TLS and one without.

    python tests/bench/measure_tls.py                      # 8 pairs, a minute or two
    python tests/bench/measure_tls.py --pairs 20 --protocol copyset

Both clusters of real processes run all the time, and one of them is used at a time. Prints the
ratios, with TLS divided by without, of rates, of the p50 of a lone append, and of CPU time per
record, which counts also while other programs keep the machine busy. Not a test: numbers depend on
the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import uvloop

from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running
from loomlog.client.cluster import connect
from loomlog.client.log import Log

SIZE = 1024
CALLERS = 1024


class Side:
    """A cluster with or without TLS, and the log that is appended to."""

    def __init__(self, processes: LocalProcesses, log: Log) -> None:
        self.log = log
        self.processes = {
            child.name: psutil.Process(child.process.pid)
            for child in processes.children
            if child.name.startswith(("vmr", "vsn"))
        }
        self.processes["client"] = psutil.Process()

    def cpu_s(self) -> dict[str, float]:
        return {name: sum(found.cpu_times()[:2]) for name, found in self.processes.items()}

    async def appends(self, seconds: float) -> dict[str, float]:
        """Return the rate of 1,024 callers, and the CPU time of each process per record."""
        value, count, end = b"x" * SIZE, 0, time.perf_counter() + seconds

        async def caller() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await self.log.append(value)
                count += 1

        before, begun = self.cpu_s(), time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        took_s, after = time.perf_counter() - begun, self.cpu_s()
        used = {name: (after[name] - before[name]) / count * 1e6 for name in before}
        nodes = sum(us for name, us in used.items() if name.startswith("vsn"))
        return {
            "records/s": count / took_s,
            "CPU µs, all": sum(used.values()),
            "CPU µs, client": used["client"],
            "CPU µs, nodes": nodes,
            "CPU µs, vmr": sum(used.values()) - nodes - used["client"],
        }

    async def lone_appends(self, seconds: float) -> dict[str, float]:
        value, times, end = b"x" * SIZE, [], time.perf_counter() + seconds
        before = sum(self.cpu_s().values())
        while time.perf_counter() < end:
            begun = time.perf_counter()
            await self.log.append(value)
            times.append(time.perf_counter() - begun)
        used_us = (sum(self.cpu_s().values()) - before) / len(times) * 1e6
        return {"lone append, p50 µs": statistics.median(times) * 1e6, "lone, CPU µs": used_us}


async def measure(pairs: int, seconds: float, protocol: str, nodes: int) -> None:
    measured: dict[str, dict[bool, list[float]]] = defaultdict(lambda: defaultdict(list))
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides: dict[bool, Side] = {}
        for secure in (False, True):
            place = directory / str(secure)
            plan = ClusterPlan(directory=place, nodes=nodes, port=0, secure=secure)
            processes = await stack.enter_async_context(running(plan))
            cluster = await connect(processes.address, tls=processes.tls)
            await stack.enter_async_context(cluster)
            log = await cluster.create_log("bench", protocol=protocol, replicas=min(3, nodes))
            sides[secure] = Side(processes, log)
            await sides[secure].appends(seconds)  # to warm up
        for pair in range(pairs):
            for secure in (False, True) if pair % 2 else (True, False):
                found = await sides[secure].appends(seconds)
                found |= await sides[secure].lone_appends(seconds / 2)
                for name, value in found.items():
                    measured[name][secure].append(value)
    print(f"| {protocol}, {nodes} nodes, 1 KiB | without | with TLS | ratio | single pairs |")
    print("|---|---|---|---|---|")
    for name, values in measured.items():
        without, tls = (statistics.median(values[secure]) for secure in (False, True))
        ratios = sorted(b / a for a, b in zip(values[False], values[True], strict=True))
        print(
            f"| {name} | {without:,.1f} | {tls:,.1f} | {statistics.median(ratios):.2f} "
            f"| {ratios[0]:.2f} to {ratios[-1]:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--protocol", default="ordered")
    parser.add_argument("--nodes", type=int, default=3)
    given = parser.parse_args()
    uvloop.run(measure(given.pairs, given.seconds, given.protocol, given.nodes))


if __name__ == "__main__":
    main()
