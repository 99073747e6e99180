"""Count the instructions of appends and reads, in the client and all servers together.

    python tests/bench/count_instructions.py [protocol,…] [scenario,…]
    PYTHONPATH=OTHER/src python tests/bench/count_instructions.py     # those of another checkout

A cluster of three nodes runs in this process under valgrind's callgrind (Debian's `valgrind` and
`gcc` are needed). What else the machine does has no effect, so that a difference of one per cent
shows; the kernel, and caches that are missed, are not counted. slow_clock.c slows down the clocks
as much as valgrind does the process. One scenario takes a minute.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

COUNTS = {"lone": 100, "callers": 8192, "many": 50_000, "read": 200, "subscribe": 50_000}
CALLERS, RECORDS, MANY_CALLERS = 1024, 500, 16
VALUE = bytes(range(128))
CLOCK = Path(__file__).with_name("slow_clock.c")


async def appends(log: Any, scenario: str, count: int) -> None:
    """Append this many records; what `subscribe` reads is written as by `many`."""
    at_once, together = {"lone": (1, 1), "callers": (CALLERS, 1)}.get(
        scenario, (MANY_CALLERS, RECORDS)
    )
    left, values = iter(range(count // together)), [VALUE] * together

    async def caller() -> None:
        for _ in left:
            await (log.append(VALUE) if together == 1 else log.append_many(values))

    await asyncio.gather(*(caller() for _ in range(at_once)))


async def entries(log: Any) -> AsyncIterator[int]:
    last = await log.tail()
    async for entry in log.subscribe(start=1, stop=last):
        yield entry.position


async def measured(log: Any, scenario: str, count: int, positions: list[int]) -> int:
    """Do what is counted; return the number of records."""
    if scenario == "read":
        for number in range(count):
            await log.read(positions[number % len(positions)])
    elif scenario == "subscribe":
        return len([position async for position in entries(log)])
    else:
        await appends(log, scenario, count)
    return count


async def work(protocol: str, scenario: str, count: int) -> None:
    from loomlog.testing import LocalCluster

    ctypes.CDLL(None).slow_down()  # of slow_clock.c, which was loaded first
    async with LocalCluster(nodes=3) as cluster:
        log = await cluster.create_log("events", protocol, replicas=3)
        await appends(log, "lone", 100 if scenario == "read" else 20)
        warm = {"callers": 4 * CALLERS, "many": 80 * RECORDS, "subscribe": count}
        if scenario in warm:
            await appends(log, scenario, warm[scenario])
        positions = [position async for position in entries(log)]
        if scenario in ("read", "lone"):
            await measured(log, scenario, 20, positions)
        gc.collect()
        control("--instr=on")
        done = await measured(log, scenario, count, positions)
        control("--instr=off")
        control("--dump")
        print(done, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)  # to stop in slow motion would take a while


def control(option: str) -> None:
    command = ("callgrind_control", option, str(os.getpid()))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def count_one(directory: str, protocol: str, scenario: str) -> float:
    """Return the instructions for each record."""
    clock, out = f"{directory}/slow_clock.so", f"{directory}/counts"
    subprocess.run(("gcc", "-O2", "-shared", "-fPIC", "-o", clock, CLOCK, "-ldl"), check=True)
    # On one processor a client does not spin, which would count as work.
    command = ("taskset", "-c", "0", "valgrind", "--tool=callgrind", "--instr-atstart=no", "-q")
    script = (sys.executable, __file__, protocol, scenario)
    environment = dict(os.environ, LD_PRELOAD=clock, COUNTED="1")
    ran = subprocess.run(
        (*command, f"--callgrind-out-file={out}", *script),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    files = [file.read_text() for file in Path(directory).glob("counts*")]
    lines = [line for text in files for line in text.splitlines() if line.startswith("totals:")]
    total = sum(int(line.split()[1]) for line in lines)
    for file in Path(directory).glob("counts*"):
        file.unlink()
    return total / int(ran.stdout)


def main(protocols: str = "ordered,chained,copyset", scenarios: str = ",".join(COUNTS)) -> None:
    with TemporaryDirectory() as directory:
        for scenario in scenarios.split(","):
            for protocol in protocols.split(","):
                each = count_one(directory, protocol, scenario)
                print(f"{scenario} {protocol}: {each:,.0f} instructions", flush=True)


if __name__ == "__main__":
    if "COUNTED" in os.environ:
        import uvloop

        uvloop.install()
        asyncio.run(work(sys.argv[1], sys.argv[2], COUNTS[sys.argv[2]]))
    else:
        main(*sys.argv[1:])
