"""Measure how long appends stall while all servers are restarted one after the other.

    python tests/bench/rolling_restart.py [--metadata 3] [--rounds 1]

As `loom maintenance` does: each server gets SIGTERM and is started again when every log has all its
copies. Three logs, one of each protocol, get an append every few milliseconds. The longest time
without an acknowledgement is printed for each server and log; it fails if an append fails.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import loomlog
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing.ports import free_address
from loomlog.types import SyncMode

NODES = 4
PACE_S = 0.005
HAND_OVER_S = 60.0


class Writer:
    """Begins an append every few milliseconds, answered or not."""

    def __init__(self, log: loomlog.Log) -> None:
        self.log = log
        self.acknowledged: list[float] = []
        self._under_way: set[asyncio.Future[Any]] = set()
        self._task = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        while True:
            append = asyncio.ensure_future(self.log.append(b"x" * 100))
            self._under_way.add(append)
            append.add_done_callback(self._ended)
            await asyncio.sleep(PACE_S)

    def _ended(self, append: asyncio.Future[Any]) -> None:
        self._under_way.discard(append)
        append.result()
        self.acknowledged.append(perf_counter())

    def longest_gap_s(self, begun: float) -> float:
        times = [begun, *(at for at in self.acknowledged if at >= begun), perf_counter()]
        return max(later - earlier for earlier, later in pairwise(times))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(*self._under_way)


async def until_whole(client: loomlog.Cluster) -> None:
    while True:
        outage = await client.check_nodes()
        if not outage.away and not outage.affected:
            return
        await asyncio.sleep(0.05)


async def restart(client: loomlog.Cluster, servers: LocalProcesses, name: str) -> None:
    if name.startswith("vsn"):
        number = int(name.removeprefix("vsn-"))
        await client.restart_node(number, HAND_OVER_S)
        while any(  # noqa: ASYNC110
            stream.sequencer == number
            for log in (await client.status()).logs
            for stream in log.streams
        ):
            await asyncio.sleep(0.02)
    await servers.end(name, signal.SIGTERM)
    await servers.start_again(name)
    await until_whole(client)
    await asyncio.sleep(1.0)


async def measure(directory: Path, metadata: int, rounds: int) -> None:
    port = int(free_address().rpartition(":")[2]) if metadata == 1 else 0
    plan = ClusterPlan(
        directory=directory, nodes=NODES, metadata=metadata, port=port, sync=SyncMode.NONE
    )
    async with running(plan) as servers, await loomlog.connect(servers.address) as client:
        names = (ORDERED, CHAINED, COPYSET)
        writers = {name: Writer(await client.create_log(name, name)) for name in names}
        await asyncio.sleep(1.0)
        print("restarted", *names, sep="\t")
        longest = dict.fromkeys(names, 0.0)
        for _ in range(rounds):
            leader = f"vmr-{(await client.status()).leader or 1}"
            members = [f"vmr-{number}" for number in range(1, metadata + 1)]
            members.sort(key=lambda name: name == leader)
            for server in [*(f"vsn-{number}" for number in range(1, NODES + 1)), *members]:
                begun = perf_counter()
                await restart(client, servers, server)
                gaps = {name: writer.longest_gap_s(begun) for name, writer in writers.items()}
                print(server, *(f"{gap:.2f}" for gap in gaps.values()), sep="\t", flush=True)
                longest = {name: max(longest[name], gap) for name, gap in gaps.items()}
        print("longest", *(f"{gap:.2f}" for gap in longest.values()), sep="\t")
        for writer in writers.values():
            await writer.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--metadata", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="loomlog-") as directory:
        asyncio.run(measure(Path(directory), arguments.metadata, arguments.rounds))


if __name__ == "__main__":
    main()
