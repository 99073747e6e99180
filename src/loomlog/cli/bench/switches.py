"""Measures how long appends pause while a log is switched to another protocol.

A private cluster has a log with many entries; a steady writer detects the pause.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from loomlog.cli.bench import steady_writer
from loomlog.cli.bench.measurements import fill
from loomlog.cli.bench.private_cluster import Progress, Target, private_cluster
from loomlog.cli.bench.reports import number_table, say
from loomlog.cli.bench.steady_writer import SteadyWriter
from loomlog.cli.console.output import console

if TYPE_CHECKING:
    from loomlog import Cluster, Log
    from loomlog.wire.info import SegmentInfo

NODES: Final = 3
RECORD_BYTES: Final = 128
PROTOCOLS: Final = (  # from each to each
    *("ordered", "chained", "chained", "ordered", "ordered"),
    *("copyset", "copyset", "chained", "copyset", "ordered"),
)
AFTERWARDS_S_MAX: Final = 1.0  # appends continue, so that the pause ends
SCENARIOS: Final = len(PROTOCOLS)


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch; times in seconds."""

    protocol: str  # before
    wanted: str  # and after
    entries: int  # of the segment that ended, when it was asked for
    pause_s: float  # longest time without any append acknowledged
    asked_s: float  # from the command to its answer
    failed_appends: int


@dataclass(slots=True)
class SwitchReport:
    """Switches of one log from each protocol to each."""

    entries: int
    longest_gap_before_s: float = 0.0
    switches: list[Switch] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def print(self) -> None:
        say(
            f"{NODES} nodes and replicas, {steady_writer.APPENDS_PER_S:,} appends/s of "
            f"{steady_writer.RECORD_BYTES:,} B; longest time between two acknowledgements before: "
            f"{self.longest_gap_before_s * 1e3:.0f} ms"
        )
        table = number_table("switch", "entries", "pause ms", "command ms", "failed")
        for switch in self.switches:
            times = (f"{switch.pause_s * 1e3:.0f}", f"{switch.asked_s * 1e3:.0f}")
            name = f"{switch.protocol} to {switch.wanted}"
            table.add_row(name, f"{switch.entries:,}", *times, str(switch.failed_appends))
        console().print(table)


async def measure(target: Target, entries: int, seconds: float, progress: Progress) -> SwitchReport:
    """Measure; everything started or created for it is removed afterwards."""
    async with private_cluster(target, NODES) as private:
        report = SwitchReport(entries)
        log = await private.client.create_log("bench-switch", PROTOCOLS[0], 1, NODES)
        for before, after in pairwise(PROTOCOLS):
            progress(f"{before} to {after}", seconds)
            await fill(log, entries, RECORD_BYTES)
            await _switch(private.client, log, after, seconds, report)
        return report


async def _switch(
    cluster: Cluster, log: Log, wanted: str, seconds: float, report: SwitchReport
) -> None:
    async with SteadyWriter(log) as writer:
        begun = perf_counter()
        await asyncio.sleep(seconds)
        asked = perf_counter()
        report.longest_gap_before_s = max(
            report.longest_gap_before_s, writer.longest_gap_s(begun, asked)
        )
        old = (await log.describe()).segments[-1]
        await cluster.switch_log(log.name, protocol=wanted, **_other_settings(old, wanted))
        answered = perf_counter()
        await asyncio.sleep(min(seconds, AFTERWARDS_S_MAX))
        await writer.all_ended(before=answered)
        end = perf_counter()
    report.switches.append(
        Switch(
            protocol=old.protocol,
            wanted=wanted,
            entries=report.entries + writer.acknowledged(begun, asked),
            pause_s=writer.longest_gap_s(asked, end),
            asked_s=answered - asked,
            failed_appends=writer.failed(asked, end),
        )
    )


def _other_settings(old: SegmentInfo, wanted: str) -> dict[str, Any]:
    """Return settings that differ from the current ones, because otherwise nothing would be
    switched."""
    if wanted == "copyset":
        return {"streams": 1, "nodeset": NODES} if old.protocol == wanted else {"streams": 1}
    return {"streams": 3 - old.streams}
