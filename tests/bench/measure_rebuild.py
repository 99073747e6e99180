"""Measure how fast a copyset node that comes back empty is refilled, on loopback.

    python tests/bench/measure_rebuild.py [MEGABYTES] [MB/S]

Without a rate there is no limit. Another log gets an append of 1 KiB every few milliseconds: its
latency before the loss is compared with that during the rebuild.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from loomlog import Log, connect
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses

ENTRY_BYTES = 100_000
AT_ONCE = 50
QUIET_S = 5.0
PACE_S = 0.003


class Appender:
    """Append small records one at a time, and keep when each ended and how long it took."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._appends: list[tuple[float, float]] = []

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            await self._log.append(bytes(1024))
            ended = time.monotonic()
            self._appends.append((ended, ended - began))
            await asyncio.sleep(PACE_S)

    def describe(self, since: float, until: float) -> str:
        """Return the percentiles of the appends between two times."""
        took = sorted(duration for ended, duration in self._appends if since <= ended <= until)
        p50, p99 = (took[int(len(took) * part)] * 1e3 for part in (0.5, 0.99))
        return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms of {len(took)} appends"


async def measure(directory: Path, megabytes: int, rate_mb_s: float) -> None:
    processes = LocalProcesses(ClusterPlan(directory, nodes=3, rebuild_rate_mb_s=rate_mb_s))
    await processes.start()
    try:
        async with await connect(processes.address) as cluster:
            log = await cluster.create_log("events", protocol="copyset", replicas=3)
            for _ in range(megabytes * 1_000_000 // (ENTRY_BYTES * AT_ONCE)):
                await asyncio.gather(*(log.append(bytes(ENTRY_BYTES)) for _ in range(AT_ONCE)))
            appender = Appender(await cluster.create_log("orders", protocol="copyset", replicas=3))
            appending = asyncio.create_task(appender.run())
            quiet = time.monotonic()
            await asyncio.sleep(QUIET_S)
            lost = time.monotonic()
            await processes.end("vsn-3", signal.SIGKILL)
            shutil.rmtree(directory / "vsn-3")
            (directory / "vsn-3").mkdir()
            while any(node.alive for node in (await cluster.status()).nodes if node.id == 3):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await cluster.replace_node(3)
            await processes.start_again("vsn-3")
            began, restored, ended = 0.0, 0, 0.0
            while not began or (await cluster.status()).rebuilds:
                for each in (await cluster.status()).rebuilds:
                    began = began or time.monotonic()
                    if each.bytes > restored:
                        restored, ended = each.bytes, time.monotonic()
                await asyncio.sleep(0.05)
            whole_s = time.monotonic() - began
            appending.cancel()
    finally:
        await processes.stop()
    rate = restored / 1e6 / (ended - began)
    print(f"{restored / 1e6:.0f} MB restored in {ended - began:.1f} s ({rate:.0f} MB/s)")
    print(f"rebuilt, with the second scan, after {whole_s:.1f} s")
    print(f"before the loss: {appender.describe(quiet, lost)}")
    print(f"while restored:  {appender.describe(began, ended)}")


if __name__ == "__main__":
    arguments = [float(argument) for argument in sys.argv[1:]] + [200.0, 0.0][len(sys.argv) - 1 :]
    with tempfile.TemporaryDirectory() as path:
        asyncio.run(measure(Path(path), int(arguments[0]), arguments[1]))
