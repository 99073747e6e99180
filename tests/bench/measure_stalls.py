"""Measure how long appends stall when a server fails or is restarted, for each protocol and fault.

    python tests/bench/measure_stalls.py
        [--faults kill-node stop-node kill-each kill-vmr stop-vmr restart]
        [--protocols ordered chained copyset] [--trials 5] [--nodes 4] [--vmr 3] [--sync always]
        [--json]

A private cluster of four nodes has one log of each protocol, three replicas, and for `ordered` one
stream, so that every stream of the log is hit. A steady writer begins an append every few
milliseconds, answered or not. A stall is the longest time between two acknowledgements.

    kill-node    kill -9 of the node that the log needs most: its primary, head or sequencer
    stop-node    SIGSTOP of the same node, which never answers again (kill -9 some seconds later)
    kill-each    kill -9 of every node in turn, each started again; a trial is the whole, all
                 logs are written at once
    kill-vmr     kill -9 of the metadata repository that leads (of several)
    stop-vmr     SIGSTOP of it, as above
    restart      SIGTERM and a new start of every server in turn, with what `loom maintenance` does
                 before and after; a trial is the whole, all logs are written at once
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import loomlog
from loomlog.cli.bench.reports import number_table
from loomlog.cli.bench.steady_writer import SteadyWriter
from loomlog.cli.console.output import console
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing.ports import free_address
from loomlog.types import SyncMode

APPENDS_PER_S = 100  # of each log; a lone append costs milliseconds of all processes together
BEFORE_S = 0.5
AFTER_S = 2.0
SILENT_S = 4.0
HAND_OVER_S = 60.0
LOOK_S = 0.02
PROTOCOLS = (ORDERED, CHAINED, COPYSET)

Choose = Callable[[str], Awaitable[str]]  # the victim, for a protocol
Lose = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Stalls:
    """The stalls of one protocol under one fault."""

    protocol: str
    fault: str
    stalls_s: list[float] = field(default_factory=list)  # one of each trial
    loads: list[float] = field(default_factory=list)  # of the machine, at the end of each
    failed: list[int] = field(default_factory=list)  # appends

    def fields(self) -> dict[str, Any]:
        ordered = sorted(self.stalls_s)
        return asdict(self) | {"min_s": ordered[0], "median_s": median(ordered)}

    def cells(self) -> tuple[str, ...]:
        found = (min(self.stalls_s), median(self.stalls_s), max(self.stalls_s))
        load = f"{min(self.loads):.0f} to {max(self.loads):.0f}"
        numbers = (str(len(self.stalls_s)), *(f"{stall:.2f}" for stall in found))
        return (self.fault, *numbers, str(sum(self.failed)), load)


class Rig:
    """A cluster and a client. Each trial has fresh logs."""

    def __init__(self, servers: LocalProcesses, client: loomlog.Cluster) -> None:
        self.servers = servers
        self.client = client
        self.found: dict[tuple[str, str], Stalls] = {}

    def note(self, protocol: str, fault: str, writer: SteadyWriter, begun: float) -> None:
        end = perf_counter()
        stalls = self.found.setdefault((protocol, fault), Stalls(protocol, fault))
        stalls.stalls_s.append(round(writer.longest_gap_s(begun, end), 3))
        stalls.loads.append(round(os.getloadavg()[0], 1))
        stalls.failed.append(writer.failed(begun, end))
        print(f"{protocol} {fault}: {stalls.stalls_s[-1]:.3f} s", file=sys.stderr, flush=True)

    async def victim(self, protocol: str) -> str:
        """Return the node that a log needs most."""
        status = await self.client.status()
        stream = next(info for info in status.logs if info.name == protocol).streams[0]
        if stream.copyset is not None:
            return f"vsn-{stream.copyset.sequencer}"
        if stream.chains:
            return f"vsn-{stream.chains[0][0]}"
        return f"vsn-{stream.replicas[0].node}"

    async def leader(self, protocol: str = "") -> str:
        while True:
            status = await self.client.status()
            if status.leader and all(member.lag == 0 for member in status.members):
                return f"vmr-{status.leader}"
            await asyncio.sleep(LOOK_S)

    async def until_whole(self) -> None:
        """Wait until all servers are there and all logs have all their copies."""
        while True:
            outage = await self.client.check_nodes()
            members = (await self.client.status()).members
            if not outage.away and not outage.affected and all(m.reachable for m in members):
                return
            await asyncio.sleep(LOOK_S)

    # ---- faults

    async def one(
        self,
        protocol: str,
        fault: str,
        choose: Choose,
        lose: Lose,
    ) -> None:
        log = await self.client.create_log(protocol, protocol, replicas=3)
        async with SteadyWriter(log, APPENDS_PER_S) as writer:
            await asyncio.sleep(BEFORE_S)
            victim = await choose(protocol)
            begun = perf_counter()
            await lose(victim)
            await writer.all_ended(before=perf_counter())
            self.note(protocol, fault, writer, begun)
        await self.client.delete_log(protocol)
        await self.bring_back(victim)
        await self.until_whole()

    async def kill(self, victim: str) -> None:
        await self.servers.end(victim, signal.SIGKILL)
        await asyncio.sleep(AFTER_S)

    async def silence(self, victim: str) -> None:
        os.kill(self.servers.pids[victim], signal.SIGSTOP)
        await asyncio.sleep(SILENT_S)
        await self.servers.end(victim, signal.SIGKILL)
        await asyncio.sleep(BEFORE_S)

    async def bring_back(self, victim: str) -> None:
        child = next(child for child in self.servers.children if child.name == victim)
        if child.process.returncode is not None:
            await self.servers.start_again(victim)

    async def restart_all(self, protocols: list[str], fault: str) -> None:
        """Restart all servers, the leader last."""
        leader = await self.leader()
        names = [child.name for child in self.servers.children if child.name[:3] in ("vsn", "vmr")]
        names.sort(key=lambda name: (name[:3] == "vmr", name == leader, name))
        await self.in_turn(protocols, fault, names, self.restart)

    async def kill_each(self, protocols: list[str], fault: str) -> None:
        names = [child.name for child in self.servers.children if child.name.startswith("vsn")]
        await self.in_turn(protocols, fault, names, self.kill_and_start)

    async def in_turn(self, protocols: list[str], fault: str, names: list[str], do: Lose) -> None:
        """Do something to servers, one after the other, while all logs are written."""
        async with AsyncExitStack() as stack:
            writers = {}
            for protocol in protocols:
                log = await self.client.create_log(protocol, protocol, replicas=3)
                writer = SteadyWriter(log, APPENDS_PER_S / 2)
                writers[protocol] = await stack.enter_async_context(writer)
            whole = perf_counter()
            for name in names:
                begun = perf_counter()
                await do(name)
                for protocol, writer in writers.items():
                    gap_s = writer.longest_gap_s(begun, perf_counter())
                    print(f"{protocol} {name}: {gap_s:.3f} s", file=sys.stderr, flush=True)
            for protocol, writer in writers.items():
                await writer.all_ended(before=perf_counter())
                self.note(protocol, fault, writer, whole)
        for protocol in protocols:
            await self.client.delete_log(protocol)

    async def kill_and_start(self, name: str) -> None:
        await self.kill(name)
        await self.servers.start_again(name)
        await self.until_whole()
        await asyncio.sleep(BEFORE_S)

    async def restart(self, name: str) -> None:
        if name.startswith("vsn"):
            number = int(name.removeprefix("vsn-"))
            await self.client.restart_node(number, HAND_OVER_S)
            while any(  # noqa: ASYNC110
                stream.sequencer == number
                for log in (await self.client.status()).logs
                for stream in log.streams
            ):
                await asyncio.sleep(LOOK_S)
        await self.servers.end(name, signal.SIGTERM)
        await self.servers.start_again(name)
        await self.until_whole()
        await asyncio.sleep(BEFORE_S)


async def measure(
    directory: Path, arguments: argparse.Namespace, found: Callable[[Stalls], None]
) -> None:
    port = int(free_address().rpartition(":")[2]) if arguments.vmr == 1 else 0
    sync = SyncMode(arguments.sync)
    plan = ClusterPlan(directory, arguments.nodes, metadata=arguments.vmr, port=port, sync=sync)
    async with running(plan) as servers, await loomlog.connect(servers.address) as client:
        rig = Rig(servers, client)
        faults: dict[str, tuple[Choose, Lose]] = {
            "kill-node": (rig.victim, rig.kill),
            "stop-node": (rig.victim, rig.silence),
            "kill-vmr": (rig.leader, rig.kill),
            "stop-vmr": (rig.leader, rig.silence),
        }
        in_turn = {"restart": rig.restart_all, "kill-each": rig.kill_each}
        for fault in arguments.faults:
            for _ in range(arguments.trials):
                if fault in in_turn:
                    await in_turn[fault](arguments.protocols, fault)
                    continue
                for protocol in arguments.protocols:
                    await rig.one(protocol, fault, *faults[fault])
        for stalls in rig.found.values():
            found(stalls)


@contextmanager
def printed(*, as_json: bool) -> Iterator[Callable[[Stalls], None]]:
    """Print what is found, at the end."""
    all_found: list[Stalls] = []
    yield all_found.append
    if as_json:
        print(json.dumps([stalls.fields() for stalls in all_found], indent=1))
        return
    table = number_table("stall s", "fault", "trials", "min", "median", "max", "failed", "load")
    for stalls in all_found:
        table.add_row(stalls.protocol, *stalls.cells())
    console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    faults = ("kill-node", "stop-node", "kill-each", "kill-vmr", "stop-vmr", "restart")
    parser.add_argument("--faults", nargs="+", choices=faults, default=faults)
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=PROTOCOLS)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--vmr", type=int, choices=(1, 3), default=3)
    parser.add_argument("--sync", choices=[mode.value for mode in SyncMode], default="always")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep data and server logs here")
    arguments = parser.parse_args()
    with (
        printed(as_json=arguments.json) as found,
        tempfile.TemporaryDirectory(prefix="loomlog-") as scratch,
    ):
        asyncio.run(measure(arguments.keep or Path(scratch), arguments, found))


if __name__ == "__main__":
    main()
