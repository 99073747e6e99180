"""Count what wakes up the servers of an idle cluster, and the CPU time that they take.

    python tests/bench/count_wakeups.py [seconds] [--shown 12]
    PYTHONPATH=OTHER/src python tests/bench/count_wakeups.py     # those of another checkout

`loom up` with three storage nodes, one metadata repository and a log of each protocol that nobody
uses. First the CPU time of each process; then, in a second cluster, the functions that the event
loops call and the coroutines that they resume, per second, and the CPU time in them (measuring
makes it longer). The numbers of calls hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

PROTOCOLS = ("ordered", "chained", "copyset")
SETTLE_S = 45.0  # until nothing is looked at more often because of the start

# Each process of the cluster imports this first. On a signal it counts, on the next one it writes.
COUNTER = """
import json, os, signal, sys, time
from collections import defaultdict

found = defaultdict(lambda: [0, 0])  # calls, ns of CPU time
LOOP = ("asyncio/runners.py", "asyncio/base_events.py", "asyncio/events.py")
begun = {}

def count(frame, event, _):
    back = frame.f_back
    if back is None or back.f_code.co_filename.endswith(LOOP):
        if event == "call":
            begun[frame] = time.thread_time_ns()
        elif event == "return" and frame in begun:
            each = found[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"]
            each[0] += 1
            each[1] += time.thread_time_ns() - begun.pop(frame)

def begin(*_):
    sys.setprofile(count)

def end(*_):
    sys.setprofile(None)
    with open(os.path.join(os.environ["WAKEUPS"], str(os.getpid())), "w") as file:
        json.dump(found, file)

if "WAKEUPS" in os.environ:
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
"""


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def switches(pid: int) -> int:
    """Return how often the threads of a process have waited."""
    statuses = (task / "status" for task in Path(f"/proc/{pid}/task").iterdir())
    lines = (line for status in statuses for line in status.read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


class IdleCluster:
    """A cluster in processes of its own; `pids` by name."""

    def __init__(self, directory: str, **environment: str) -> None:
        loom = "from loomlog.cli.loom import main; main()"
        options = ("--json", "--port", "0", "--http-port", "0", "--nodes", "3")
        self._servers = subprocess.Popen(
            (sys.executable, "-c", loom, "up", *options, "--data", f"{directory}/data"),
            stdout=subprocess.PIPE,
            env=os.environ | environment,
        )
        assert self._servers.stdout is not None
        started = json.loads(self._servers.stdout.readline())
        self.address: str = started["mr"]
        self.pids: dict[str, int] = started["pids"]

    async def fill(self) -> None:
        import loomlog

        async with await loomlog.connect(self.address) as cluster:
            for protocol in PROTOCOLS:
                log = await cluster.create_log(protocol, protocol, replicas=3)
                await log.append(b"one")
        await asyncio.sleep(SETTLE_S)

    def send(self, number: signal.Signals) -> None:
        for pid in self.pids.values():
            os.kill(pid, number)

    def stop(self) -> None:
        self._servers.send_signal(signal.SIGINT)
        self._servers.wait()


async def measure_cpu(directory: str, seconds: float) -> None:
    cluster = IdleCluster(directory)
    try:
        await cluster.fill()
        before = {name: (cpu_s(pid), switches(pid)) for name, pid in cluster.pids.items()}
        await asyncio.sleep(seconds)
        total = 0.0
        for name, pid in cluster.pids.items():
            used, waited = cpu_s(pid) - before[name][0], switches(pid) - before[name][1]
            total += used
            print(f"{name}: {used / seconds:.3%} of a core, {waited / seconds:.1f} waits/s")
        print(f"all: {total / seconds:.3%} of a core", flush=True)
    finally:
        cluster.stop()


async def count_wakeups(directory: str, seconds: float, shown: int) -> None:
    counted = Path(directory, "counted")
    counted.mkdir()
    Path(directory, "sitecustomize.py").write_text(COUNTER)
    path = os.pathsep.join(filter(None, (directory, os.environ.get("PYTHONPATH"))))
    cluster = IdleCluster(directory, WAKEUPS=str(counted), PYTHONPATH=path)
    try:
        await cluster.fill()
        cluster.send(signal.SIGUSR1)
        await asyncio.sleep(seconds)
        cluster.send(signal.SIGUSR2)
        await asyncio.sleep(2)
    finally:
        cluster.stop()
    for name, pid in cluster.pids.items():
        found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for where, (calls, ns) in json.loads((counted / str(pid)).read_text()).items():
            each = found[where.rpartition("/loomlog/")[2] or where]
            each[0], each[1] = each[0] + calls, each[1] + ns
        total = sum(calls for calls, _ in found.values())
        print(f"\n{name}: {total / seconds:.1f} calls and resumptions a second; each, and µs/s")
        for where, (calls, ns) in sorted(found.items(), key=lambda item: -item[1][1])[:shown]:
            print(f"  {calls / seconds:7.2f} {ns / 1e3 / seconds:9.1f}  {where}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=30.0)
    parser.add_argument("--shown", type=int, default=12)
    options = parser.parse_args()
    with TemporaryDirectory() as directory:
        await measure_cpu(directory, options.seconds)
    with TemporaryDirectory() as directory:
        await count_wakeups(directory, options.seconds, options.shown)


if __name__ == "__main__":
    asyncio.run(main())
