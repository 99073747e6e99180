"""Compare loomlog with NATS JetStream, Redis streams and a given Kafka, in one run.

    python tests/bench/measure_peers.py [--seconds 3] [--rounds 3] [--kafka HOST:PORT] [--to DIR]

Each round measures every system in turn, so that a noisy machine affects all of them. Python
clients on uvloop, synced appends. Medians of all rounds; every figure is shown, also where loomlog
loses. `--to` gets peers.md, peers.svg and peers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Protocol

import peers
import uvloop

from loomlog.cli.bench.machine import describe, fdatasync_ms
from loomlog.cli.bench.measurements import append_concurrently, append_one_at_a_time

CALLERS = 1024
SIZES = (128, 1024)
PROTOCOLS = ("ordered", "chained", "copyset")


class Start(Protocol):
    """Starts a system with its data in a directory."""

    def __call__(self, directory: Path) -> AbstractAsyncContextManager[peers.Peer]: ...


@dataclass(frozen=True)
class Figure:
    """One measured value of one system."""

    system: str
    name: str
    value: float
    is_rate: bool  # more is better; else a time or a cost, and less is


async def measure(system: str, peer: peers.Peer, seconds: float) -> list[Figure]:
    figures = []
    for size in SIZES:
        before, began = _cpu_s(peer.servers), perf_counter()
        lone = await append_one_at_a_time(peer, size, seconds)
        spent = _cpu_s(peer.servers) - before
        share = seconds / (perf_counter() - began)  # without what came before the window
        figures.append(Figure(system, f"lone append, {size} B, p50 ms", lone.p50_ms or 0.0, False))
        figures.append(Figure(system, f"lone append, {size} B, p99 ms", lone.p99_ms or 0.0, False))
        if peer.servers and lone.records:
            cost = spent * share / lone.records * 1e3
            name = f"lone append, {size} B, CPU ms of all processes"
            figures.append(Figure(system, name, cost, False))
        many = await append_concurrently(peer, size, seconds, CALLERS)
        name = f"{CALLERS} callers, {size} B, records/s"
        figures.append(Figure(system, name, many.records_per_s, True))
        began = perf_counter()
        await peer.read_all(many.records)
        rate = many.records / (perf_counter() - began)
        figures.append(Figure(system, f"read in order, {size} B, records/s", rate, True))
    return figures


def _cpu_s(servers: list[int]) -> float:
    """Return the CPU time of the servers and of this process."""
    tasks = [task for pid in servers for task in Path(f"/proc/{pid}/task").iterdir()]
    used_ns = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return used_ns / 1e9 + sum(os.times()[:2])


async def run(arguments: argparse.Namespace) -> tuple[list[Figure], dict[str, str]]:
    systems: dict[str, Start] = {
        f"loomlog {protocol}": partial(peers.loomlog, protocol) for protocol in PROTOCOLS
    }
    systems |= {"NATS JetStream": peers.nats, "Redis streams": peers.redis}
    if arguments.kafka:
        systems["Kafka"] = lambda directory: peers.kafka(arguments.kafka)
    figures: list[Figure] = []
    settings: dict[str, str] = {}
    for number in range(1, arguments.rounds + 1):
        for system, start in [*systems.items()]:
            print(f"round {number} of {arguments.rounds}: {system}", file=sys.stderr)
            with TemporaryDirectory(prefix="loom-peers-") as directory:
                try:
                    async with start(Path(directory)) as peer:
                        settings[system] = peer.settings
                        figures += await measure(system, peer, arguments.seconds)
                except peers.MissingError as missing:
                    print(f"{system} is left out: {missing}", file=sys.stderr)
                    del systems[system]
    return figures, settings


# ---- what is written


def table(figures: list[Figure], settings: dict[str, str]) -> str:
    medians = _medians(figures)
    systems = [*settings]
    lines = [f"| | {' | '.join(systems)} |", "|---" * (len(systems) + 1) + "|"]
    lines.append(f"| settings | {' | '.join(settings[system] for system in systems)} |")
    for name, values in medians.items():
        cells = [_cell(values[system]) if system in values else "" for system in systems]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _medians(figures: list[Figure]) -> dict[str, dict[str, float]]:
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for figure in figures:
        values[figure.name][figure.system].append(figure.value)
    return {
        name: {system: median(several) for system, several in by_system.items()}
        for name, by_system in values.items()
    }


def _cell(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def chart(figures: list[Figure]) -> str:
    """Return bars for every figure, as SVG; each group has a scale of its own."""
    row, label, width, y = 18, 130, 420, 10
    parts = []
    better = {figure.name: "more" if figure.is_rate else "less" for figure in figures}
    for name, values in _medians(figures).items():
        y += row + 6
        parts.append(
            f'<text x="4" y="{y}" font-weight="bold">{name} ({better[name]} is better)</text>'
        )
        most = max(values.values()) or 1.0
        for system, value in values.items():
            y += row
            fill = "#2a6fb0" if system.startswith("loomlog") else "#9aa4ae"
            bar = max(1.0, value / most * width)
            parts.append(f'<text x="4" y="{y}">{system}</text>')
            parts.append(
                f'<rect x="{label}" y="{y - 11}" width="{bar:.0f}" height="13" fill="{fill}"/>'
            )
            parts.append(f'<text x="{label + bar + 6:.0f}" y="{y}">{_cell(value)}</text>')
    size = f'width="{label + width + 80}" height="{y + row}"'
    style = 'font-family="sans-serif" font-size="12" fill="currentColor"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kafka", metavar="HOST:PORT", help="also measure this Kafka or Redpanda")
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="write peers.md, .svg and .json there"
    )
    arguments = parser.parse_args()
    sync_ms = fdatasync_ms(None)
    figures, settings = uvloop.run(run(arguments))
    machine = describe([sync_ms, fdatasync_ms(None)])
    text = table(figures, settings)
    print(f"{machine.cores} cores, fdatasync {machine.fdatasync_ms:.2f} ms, {machine.versions}\n")
    print(text)
    if arguments.to:
        arguments.to.mkdir(parents=True, exist_ok=True)
        everything = {
            "machine": asdict(machine),
            "settings": settings,
            "figures": [asdict(figure) for figure in figures],
        }
        (arguments.to / "peers.md").write_text(text + "\n")
        (arguments.to / "peers.svg").write_text(chart(figures))
        (arguments.to / "peers.json").write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
