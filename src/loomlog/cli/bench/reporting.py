"""The report of a bench, for people and for programs, and the bar while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loomlog.cli.bench.machine import describe
from loomlog.cli.bench.measuring import Result
from loomlog.cli.bench.run import Progress, Report
from loomlog.cli.output import console

if TYPE_CHECKING:
    import rich.progress


def as_fields(report: Report) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "machine": asdict(describe(report.fdatasyncs_ms)),
        "cluster": {
            "nodes": report.nodes,
            "sync": "+".join(report.sync),
            "streams": report.streams,
            "replicas": report.replicas,
        },
        "settings": asdict(report.settings),
        "idle": None if report.idle is None else asdict(report.idle),
        "rss_after_mb": report.rss_after_mb,
        "results": [_result_fields(result) for result in report.results],
    }


def _result_fields(result: Result) -> dict[str, Any]:
    rates = {
        "records_per_s": round(result.records_per_s, 1),
        "mb_per_s": round(result.mb_per_s, 3),
    }
    return asdict(result) | rates


def print_report(report: Report) -> None:
    from rich import box
    from rich.table import Table

    facts = describe(report.fdatasyncs_ms)
    versions = ", ".join(f"{name} {number}" for name, number in facts.versions.items())
    out = console()
    out.print(
        f"sync={'+'.join(report.sync)}, {report.replicas} replicas, {report.streams} streams, "
        f"{report.nodes} nodes; {facts.cores} cores, fdatasync {facts.fdatasync_ms:.2f} ms; "
        f"{versions}",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("scenario")
    for column in ("bytes", "batch", "records/s", "MB/s", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    for result in report.results:
        table.add_row(*_cells(result))
    out.print(table)
    if report.idle is not None:
        cpu = f"{report.idle.cpu_percent:.1f} % of one core in total"
        out.print(f"idle: {cpu}; {_memory(report.idle.rss_mb)}", highlight=False)
        out.print(f"after the run: {_memory(report.rss_after_mb)}", highlight=False)


def _memory(rss_mb: dict[str, float]) -> str:
    return ", ".join(f"{name} {mb:.0f} MB" for name, mb in rss_mb.items())


def _cells(result: Result) -> tuple[str, ...]:
    return (
        result.scenario,
        f"{result.record_bytes:,}",
        str(result.batch),
        f"{result.records_per_s:,.0f}",
        f"{result.mb_per_s:,.1f}",
        *("-" if ms is None else f"{ms:.2f}" for ms in (result.p50_ms, result.p99_ms)),
    )


@contextmanager
def progress_bar(scenarios: int) -> Iterator[Progress]:
    """On a terminal, on stderr; else nothing."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    # Twice a second: the bar runs in this process and must not cost what is being measured.
    screen = Console(stderr=True)
    with RichProgress(*columns, console=screen, transient=True, refresh_per_second=2) as rich:
        yield _Bar(rich, scenarios)


class _Silent:
    def begin(self, scenario: str, seconds: float) -> None:
        pass


class _Bar:
    def __init__(self, rich: rich.progress.Progress, scenarios: int) -> None:
        self._rich = rich
        self._task = rich.add_task("starting", total=scenarios)
        self._begun = 0

    def begin(self, scenario: str, seconds: float) -> None:
        self._rich.update(
            self._task, completed=self._begun, description=f"{scenario} (about {seconds:g} s)"
        )
        self._begun += 1
