"""Measure how fast a copyset node that comes back empty is refilled, on loopback, and what that
costs appends.

    python tests/bench/measure_rebuild.py [MEGABYTES] [MB/S] [--rounds 1] [--entry-bytes 100000]
        [--single] [--protocol copyset] [--json]

Without a rate there is no limit. With --single each entry is a record of its own. Another log, of
any protocol, gets an append of 1 KiB every few milliseconds: its latency before the loss is
compared with that during the rebuild. In each round another node loses its disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from loomlog import Cluster, Log, connect
from loomlog.cli.bench.measurements import percentile_ms
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED

NODES = 3
FILL_BYTES = 5_000_000  # appended at once
QUIET_S = 5.0
PACE_S = 0.003
LOOK_S = 0.05


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

    def percentiles_ms(self, since: float, until: float) -> tuple[float, float]:
        """Return p50 and p99 of the appends between two times."""
        took = sorted(duration for ended, duration in self._appends if since <= ended <= until)
        p50, p99 = (percentile_ms(took, part) for part in (0.5, 0.99))
        assert p50 is not None
        assert p99 is not None
        return p50, p99


@dataclass(frozen=True, slots=True)
class Round:
    """One rebuild."""

    restored_mb: float
    restored_s: float
    rebuilt_s: float  # with the second scan
    before_ms: tuple[float, float]  # p50 and p99 of appends
    while_restored_ms: tuple[float, float]
    load: float  # of the machine

    @property
    def p99_ratio(self) -> float:
        return self.while_restored_ms[1] / self.before_ms[1]

    def describe(self) -> str:
        rate = self.restored_mb / self.restored_s
        was, now = self.before_ms, self.while_restored_ms
        return (
            f"{self.restored_mb:.0f} MB restored in {self.restored_s:.1f} s ({rate:.0f} MB/s), "
            f"rebuilt after {self.rebuilt_s:.1f} s\n"
            f"appends before the loss: p50 {was[0]:.2f} ms, p99 {was[1]:.2f} ms; while restored: "
            f"p50 {now[0]:.2f} ms, p99 {now[1]:.2f} ms; p99 {self.p99_ratio:.2f} times as long; "
            f"load {self.load:.1f}"
        )


class Rig:
    def __init__(self, servers: LocalProcesses, cluster: Cluster, appender: Appender) -> None:
        self._servers = servers
        self._cluster = cluster
        self._appender = appender

    async def lose_and_rebuild(self, node: int) -> Round:
        quiet = time.monotonic()
        await asyncio.sleep(QUIET_S)
        lost = time.monotonic()
        await self._lose(node)
        began, restored, ended = 0.0, 0, 0.0
        while not began or (await self._cluster.status()).rebuilds:
            for each in (await self._cluster.status()).rebuilds:
                began = began or time.monotonic()
                if each.bytes > restored:
                    restored, ended = each.bytes, time.monotonic()
            await asyncio.sleep(LOOK_S)
        found = Round(
            restored / 1e6,
            ended - began,
            time.monotonic() - began,
            self._appender.percentiles_ms(quiet, lost),
            self._appender.percentiles_ms(began, ended),
            os.getloadavg()[0],
        )
        while (await self._cluster.check_nodes()).affected:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        return found

    async def _lose(self, node: int) -> None:
        """Start a node again without what it had."""
        name = f"vsn-{node}"
        directory = self._servers.plan.directory / name
        await self._servers.end(name, signal.SIGKILL)
        shutil.rmtree(directory)
        directory.mkdir()
        while any(n.alive for n in (await self._cluster.status()).nodes if n.id == node):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await self._cluster.replace_node(node)
        await self._servers.start_again(name)


async def measure(directory: Path, arguments: argparse.Namespace) -> list[Round]:
    plan = ClusterPlan(directory, nodes=NODES, rebuild_rate_mb_s=arguments.rate)
    async with running(plan) as servers, await connect(servers.address) as cluster:
        settings = {"append_batch_bytes": arguments.entry_bytes} if arguments.single else {}
        async with await connect(servers.address, **settings) as filling:
            await fill(filling, arguments.megabytes, arguments.entry_bytes)
        appender = Appender(await cluster.create_log("orders", arguments.protocol))
        appending = asyncio.create_task(appender.run())
        rig, rounds = Rig(servers, cluster, appender), []
        for number in range(arguments.rounds):
            rounds.append(await rig.lose_and_rebuild(NODES - number % NODES))
            print(rounds[-1].describe(), file=sys.stderr if arguments.json else sys.stdout)
        appending.cancel()
    return rounds


async def fill(cluster: Cluster, megabytes: int, entry_bytes: int) -> None:
    log = await cluster.create_log("events", protocol=COPYSET, replicas=NODES)
    at_once = max(1, FILL_BYTES // entry_bytes)
    for _ in range(megabytes * 1_000_000 // (entry_bytes * at_once)):
        await asyncio.gather(*(log.append(bytes(entry_bytes)) for _ in range(at_once)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("megabytes", type=int, nargs="?", default=200)
    parser.add_argument("rate", type=float, nargs="?", default=0.0, metavar="MB/S")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--entry-bytes", type=int, default=100_000)
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--protocol", choices=(ORDERED, CHAINED, COPYSET), default=COPYSET)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        rounds = asyncio.run(measure(Path(path), arguments))
    ratio = median(each.p99_ratio for each in rounds)
    if arguments.json:
        print(json.dumps({"rounds": [asdict(each) for each in rounds], "p99_ratio": ratio}))
    elif len(rounds) > 1:
        print(f"p99 of appends while restored, median of the rounds: {ratio:.2f} times as long")


if __name__ == "__main__":
    main()
