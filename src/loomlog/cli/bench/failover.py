"""Measures the stall of appends when a storage node is killed, and the time to repair.

Appends arrive at a steady rate, answered or not, at a private cluster of four nodes. `kill -9` ends
for an `ordered` log with two streams first a node with a replica of one stream, so that the client
can use the other one, then a node with replicas of both; for a `chained` log with one chain its
head, middle and tail; for a `copyset` log its sequencer and a node that only stores it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from loomlog.cli.bench.measurements import fill
from loomlog.cli.bench.private_cluster import PrivateCluster, Progress, Target, private_cluster
from loomlog.cli.bench.reports import number, number_table, say
from loomlog.cli.bench.steady_writer import APPENDS_PER_S, RECORD_BYTES, SteadyWriter
from loomlog.cli.console.output import console
from loomlog.errors import InvalidArgument, Timeout

if TYPE_CHECKING:
    from loomlog import Log
    from loomlog.types import NodeId, StreamId
    from loomlog.wire.info import LogInfo, StreamInfo

NODES: Final = 4
STREAMS: Final = {"ordered": 2, "chained": 1, "copyset": 1}
REPLICAS: Final = 3
LOOK_EVERY_S: Final = 0.02
AFTERWARDS_S: Final = 1.0  # appends continue after the repair, so that the last stall ends
REPAIR_TIMEOUT_S: Final = 120.0
SCENARIOS: Final = 5


@dataclass(frozen=True, slots=True)
class CopyRate:
    """The synchronisation of one stream to the node that takes the dead one's place.

    A copy that begins and ends between two looks at the status is not measured.
    """

    stream: StreamId
    mb: float
    seconds: float

    @property
    def mb_per_s(self) -> float:
        return self.mb / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Kill:
    """A node was killed; times in seconds after that."""

    scenario: str
    node: NodeId
    streams_hit: int
    stall_s: float  # longest time without any append acknowledged
    p99_ms: float | None  # of the appends that began in the second after it
    longest_append_s: float
    failed_appends: int
    sealed_s: float | None  # the first stream was seen sealed, or in a new epoch
    repaired_s: float  # all streams run again, with a spare in its place, or (copyset) without it
    copies: tuple[CopyRate, ...]

    def cells(self) -> tuple[str, ...]:
        return (
            self.scenario,
            f"{self.stall_s:.2f}",
            number(self.p99_ms, ".1f"),
            f"{self.longest_append_s:.2f}",
            str(self.failed_appends),
            number(self.sealed_s, ".2f"),
            f"{self.repaired_s:.2f}",
            ", ".join(f"{copy.mb_per_s:.0f}" for copy in self.copies) or "-",
        )


@dataclass(slots=True)
class FailoverReport:
    """Kills of nodes, and how appends went before them."""

    protocol: str
    detection_s: float
    stored_mb: float = 0.0
    p99_before_ms: float | None = None
    longest_gap_before_s: float = 0.0
    kills: list[Kill] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        fields = asdict(self)
        for kill, of in zip(fields["kills"], self.kills, strict=True):
            for copy, measured in zip(kill["copies"], of.copies, strict=True):
                copy["mb_per_s"] = round(measured.mb_per_s, 1)
        return fields

    def print(self) -> None:
        say(
            f"{self.protocol}, {NODES} nodes, streams: {STREAMS[self.protocol]}, "
            f"replicas of each: {REPLICAS}, "
            f"{self.stored_mb:,.0f} MB stored, {APPENDS_PER_S:,} appends/s of "
            f"{RECORD_BYTES:,} B; a node counts as dead after {self.detection_s:g} s"
        )
        columns = "stall s", "p99 ms", "longest s", "failed", "sealed s", "repaired s", "copy MB/s"
        table = number_table("kill -9 of a vsn", *columns)
        before = (f"{self.longest_gap_before_s:.2f}", number(self.p99_before_ms, ".1f"))
        table.add_row("(before)", *before, "-", "-", "-", "-", "-")
        for kill in self.kills:
            table.add_row(*kill.cells())
        console().print(table)


async def measure(
    target: Target, protocol: str, seconds: float, fill_mb: float, progress: Progress
) -> FailoverReport:
    """Measure; everything started or created for it is removed afterwards."""
    if protocol not in STREAMS:
        raise InvalidArgument(f"failover is measured of {', '.join(STREAMS)} logs")
    async with private_cluster(target, NODES) as private:
        client, plan = private.client, private.processes.plan
        log = await client.create_log("bench-failover", protocol, STREAMS[protocol], REPLICAS)
        report = FailoverReport(protocol, plan.heartbeat_timeout_s)
        await _measure(private, log, report, seconds, fill_mb, progress)
        return report


async def _look(private: PrivateCluster, log: Log) -> LogInfo:
    """Look at the log, not with `describe`, which waits for the tail."""
    logs = (await private.client.status()).logs
    return next(info for info in logs if info.name == log.name)


async def _measure(
    private: PrivateCluster,
    log: Log,
    report: FailoverReport,
    seconds: float,
    fill_mb: float,
    progress: Progress,
) -> None:
    progress(f"filling with {fill_mb:g} MB", fill_mb / 100)
    records = round(fill_mb * 1e6 / RECORD_BYTES)
    await fill(log, records, RECORD_BYTES)
    report.stored_mb = records * RECORD_BYTES / 1e6
    async with SteadyWriter(log) as writer:
        progress("appends before", seconds)
        begun = perf_counter()
        await asyncio.sleep(seconds)
        report.p99_before_ms = writer.p99_ms(begun, begun + seconds)
        report.longest_gap_before_s = writer.longest_gap_s(begun, begun + seconds)
        for scenario, choose in VICTIMS[report.protocol].items():
            before = await _look(private, log)
            victim = choose(before)
            if victim is None:
                continue
            progress(f"kill -9, {scenario}", report.detection_s + 5)
            report.kills.append(await _kill(private, log, writer, scenario, victim, before))
            await _bring_back(private, log, victim)


def _hit(log: LogInfo, node: NodeId) -> int:
    """Return how many streams have a replica on the node."""
    return sum(node in {replica.node for replica in stream.replicas} for stream in log.streams)


def _holder(log: LogInfo, hit: int) -> NodeId | None:
    """Return a node with a replica of `hit` streams, preferably a primary."""
    holders = [replica.node for stream in log.streams for replica in stream.replicas]
    primaries = [stream.replicas[0].node for stream in log.streams]
    return next((node for node in primaries + holders if _hit(log, node) == hit), None)


def _link(log: LogInfo, place: int) -> NodeId:
    """Return the node at that place of the chain."""
    return log.streams[0].chains[0][place]


def _sequencer(log: LogInfo) -> NodeId | None:
    copyset = log.streams[0].copyset
    return None if copyset is None else copyset.sequencer


def _storing(log: LogInfo) -> NodeId | None:
    """Return a node that does not sequence."""
    nodes = (replica.node for replica in log.streams[0].replicas)
    return next((node for node in nodes if node != _sequencer(log)), None)


VICTIMS: Final[dict[str, dict[str, Callable[[LogInfo], NodeId | None]]]] = {
    "ordered": {
        "another stream runs": partial(_holder, hit=1),
        "all streams are hit": partial(_holder, hit=2),
    },
    "chained": {
        "the head": partial(_link, place=0),
        "the middle": partial(_link, place=1),
        "the tail": partial(_link, place=2),
    },
    "copyset": {"the sequencer": _sequencer, "another node": _storing},
}


async def _kill(
    private: PrivateCluster,
    log: Log,
    writer: SteadyWriter,
    scenario: str,
    victim: NodeId,
    before: LogInfo,
) -> Kill:
    killed = perf_counter()
    await private.processes.end(f"vsn-{victim}", signal.SIGKILL)
    watch = RepairWatch(victim, before)
    while not watch.repaired(await _look(private, log), perf_counter()):
        if perf_counter() - killed > REPAIR_TIMEOUT_S:
            raise Timeout(
                f"node {victim} was not replaced within {REPAIR_TIMEOUT_S:g} s: "
                f"{watch.last_condition}"
            )
        await asyncio.sleep(LOOK_EVERY_S)
    repaired = perf_counter()
    await asyncio.sleep(AFTERWARDS_S)
    await writer.all_ended(before=repaired)
    end = perf_counter()
    return Kill(
        scenario=scenario,
        node=victim,
        streams_hit=_hit(before, victim),
        stall_s=writer.longest_gap_s(killed, end),
        p99_ms=writer.p99_ms(killed, killed + 1),
        longest_append_s=writer.longest_s(killed, end),
        failed_appends=writer.failed(killed, end),
        sealed_s=None if watch.sealed_at is None else watch.sealed_at - killed,
        repaired_s=repaired - killed,
        copies=tuple(watch.copies),
    )


async def _bring_back(private: PrivateCluster, log: Log, victim: NodeId) -> None:
    """Restart the node as an empty spare; a nodeset adds it again."""
    await private.processes.start_again(f"vsn-{victim}")
    await private.client.cleanup_node(victim)
    begun = perf_counter()
    while not all(_is_settled(stream, victim) for stream in (await _look(private, log)).streams):
        if perf_counter() - begun > REPAIR_TIMEOUT_S:
            raise Timeout(f"node {victim} was not taken back within {REPAIR_TIMEOUT_S:g} s")
        await asyncio.sleep(LOOK_EVERY_S)


def _is_settled(stream: StreamInfo, victim: NodeId) -> bool:
    """Return whether another node may be killed."""
    nodes = {replica.node for replica in stream.replicas}
    return stream.copyset is None or (_is_recovered(stream) and victim in nodes)


def _is_recovered(stream: StreamInfo) -> bool:
    return stream.copyset is None or stream.copyset.last_clean == stream.epoch - 1


class RepairWatch:
    """Follows a repair in the status of the log."""

    def __init__(self, victim: NodeId, before: LogInfo) -> None:
        self._victim = victim
        self._epochs = {stream.id: stream.epoch for stream in before.streams}
        self._joining_since: dict[StreamId, float] = {}
        self.sealed_at: float | None = None
        self.copies: list[CopyRate] = []
        self.last_condition = ""

    def repaired(self, log: LogInfo, now: float) -> bool:
        """Note what the status at this time tells; return whether the log is whole again."""
        for stream in log.streams:
            self.last_condition = stream.condition or self.last_condition
            if self.sealed_at is None and self._is_sealed(stream):
                self.sealed_at = now
            self._follow_copy(stream, now)
        return all(map(self._is_whole, log.streams))

    def _is_sealed(self, stream: StreamInfo) -> bool:
        epoch = self._epochs.get(stream.id, stream.epoch)
        return stream.state != "running" or stream.epoch > epoch

    def _is_whole(self, stream: StreamInfo) -> bool:
        return (
            stream.state == "running"
            and all(replica.node != self._victim for replica in stream.replicas)
            and all(len(chain) == REPLICAS for chain in stream.chains)
            and _is_recovered(stream)
        )

    def _follow_copy(self, stream: StreamInfo, now: float) -> None:
        if stream.joining is not None:
            self._joining_since.setdefault(stream.id, now)
        elif (since := self._joining_since.pop(stream.id, None)) is not None:
            self.copies.append(
                CopyRate(stream.id, stream.last_llsn * RECORD_BYTES / 1e6, now - since)
            )
