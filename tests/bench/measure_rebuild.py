"""Measure how fast a copyset node that comes back empty is refilled, on loopback and without a
limit of the rate.

    python tests/bench/measure_rebuild.py [MEGABYTES]
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from loomlog import connect
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses

ENTRY_BYTES = 100_000
AT_ONCE = 50


async def measure(directory: Path, megabytes: int) -> None:
    processes = LocalProcesses(ClusterPlan(directory, nodes=3, rebuild_rate_mb_s=0.0))
    await processes.start()
    try:
        async with await connect(processes.address) as cluster:
            log = await cluster.create_log("events", protocol="copyset", replicas=3)
            for _ in range(megabytes * 1_000_000 // (ENTRY_BYTES * AT_ONCE)):
                await asyncio.gather(*(log.append(bytes(ENTRY_BYTES)) for _ in range(AT_ONCE)))
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
    finally:
        await processes.stop()
    rate = restored / 1e6 / (ended - began)
    print(f"{restored / 1e6:.0f} MB restored in {ended - began:.1f} s ({rate:.0f} MB/s)")
    print(f"rebuilt, with the second scan, after {whole_s:.1f} s")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        asyncio.run(measure(Path(path), int(sys.argv[1]) if len(sys.argv) > 1 else 200))
