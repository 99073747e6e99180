"""Compare the speed of two checkouts on a busy machine.

    python tests/bench/compare_checkouts.py OLD NEW [protocol] [record bytes] [rounds]

A cluster of each runs all the time, and they take turns with short bursts of the same work. So
other load affects both, and the medians of the ratios can be trusted sooner than those of long
runs. The CPU time of clients and servers is compared, too: it depends less on what else runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

CALLS = int(os.environ.get("CALLS", "200"))  # of append_many in a burst
RECORDS = 500  # of a call
CALLERS = 16
SINGLE_CALLERS = 1024  # of append
SINGLE_APPENDS = 60_000
LONE_APPENDS = 400
ALL = "lone append,append,append_many,subscribe,subscribe_arrow"
SCENARIOS = tuple(os.environ.get("SCENARIOS", ALL).split(","))


async def burst(log: Any, scenario: str, value: bytes) -> int:
    """Return the number of records."""
    if scenario == "append_many":
        values, calls = [value] * RECORDS, iter(range(CALLS))

        async def caller() -> None:
            for _ in calls:
                await log.append_many(values)

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return CALLS * RECORDS
    if scenario in ("lone append", "append"):
        callers, appends = (1, LONE_APPENDS), (SINGLE_CALLERS, SINGLE_APPENDS)
        at_once, total = callers if scenario == "lone append" else appends
        left = iter(range(total))

        async def single() -> None:
            for _ in left:
                await log.append(value)

        await asyncio.gather(*(single() for _ in range(at_once)))
        return total
    count, last = 0, await log.tail()
    if scenario == "subscribe":
        async for _ in log.subscribe(start=1, stop=last):
            count += 1
    else:
        async for batch in log.subscribe_arrow(start=1, stop=last):
            count += batch.num_rows
    return count


def cpu_s(pids: list[int]) -> float:
    """Return the CPU time of all threads of the processes."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def work(protocol: str, record_bytes: int) -> None:
    """Serve one checkout: each round has a new log, and each burst waits for a line."""
    import loomlog

    value = os.urandom(record_bytes)
    loom = "from loomlog.cli.loom import main; main()"
    with TemporaryDirectory() as directory:
        up = (
            "up",
            "--json",
            "--port",
            "0",
            "--http-port",
            "0",
            "--nodes",
            "3",
            "--data",
            directory,
        )
        servers = subprocess.Popen((sys.executable, "-c", loom, *up), stdout=subprocess.PIPE)
        try:
            assert servers.stdout is not None
            started = json.loads(servers.stdout.readline())
            pids = [os.getpid(), *started["pids"].values()]
            async with await loomlog.connect(started["mr"]) as cluster:
                while number := (await asyncio.to_thread(sys.stdin.readline)).strip():
                    log = await cluster.create_log(f"round-{number}", protocol, replicas=3)
                    for scenario in SCENARIOS:
                        await asyncio.to_thread(sys.stdin.readline)
                        cpu, begun = cpu_s(pids), perf_counter()
                        count = await burst(log, scenario, value)
                        rate = count / (perf_counter() - begun)
                        print(json.dumps([rate, count / (cpu_s(pids) - cpu)]), flush=True)
        finally:
            servers.send_signal(signal.SIGINT)
            servers.wait()


def worker(checkout: str, *arguments: str) -> subprocess.Popen[str]:
    environment = dict(os.environ, PYTHONPATH=f"{checkout}/src", COMPARED="1")
    command = (sys.executable, __file__, *arguments)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)


def say(process: subprocess.Popen[str], line: object) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def run_burst(process: subprocess.Popen[str]) -> list[float]:
    say(process, "go")
    assert process.stdout is not None
    return list(json.loads(process.stdout.readline()))


def main(
    old: str, new: str, protocol: str = "ordered", size: str = "128", rounds: str = "8"
) -> None:
    workers = [worker(checkout, protocol, size) for checkout in (old, new)]
    ratios: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for number in range(int(rounds) + 1):
        turns = workers if number % 2 else workers[::-1]
        for process in workers:
            say(process, number)
        for scenario in SCENARIOS:
            found = {process: run_burst(process) for process in turns}
            before, after = (found[process] for process in workers)
            if number:  # the first round warms up
                ratios[scenario].append((after[0] / before[0], after[1] / before[1]))
    for process in workers:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    for scenario, pairs in ratios.items():
        speed, cpu = (median(column) for column in zip(*pairs, strict=True))
        name = f"{protocol}, {size} B, {scenario}"
        print(f"{name}: new / old {speed:.2f} records/s, {cpu:.2f} records per CPU second")


if __name__ == "__main__":
    if "COMPARED" in os.environ:
        asyncio.run(work(sys.argv[1], int(sys.argv[2])))
    else:
        main(*sys.argv[1:])
