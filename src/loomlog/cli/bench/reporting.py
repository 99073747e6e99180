"""The report of a bench, for people and for programs, and the bar while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loomlog.cli.bench import (
    failover,
    many_logs,
    spark_rates,
    steady_writer,
    switching,
    takeovers,
)
from loomlog.cli.bench.machine import describe
from loomlog.cli.bench.measuring import Result
from loomlog.cli.bench.run import Progress, Report
from loomlog.cli.bench.starting import Start
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
            "protocol": report.protocol,
            "streams": report.streams,
            "replicas": report.replicas,
        },
        "settings": asdict(report.settings),
        "idle": None if report.idle is None else asdict(report.idle),
        "rss_after_mb": report.rss_after_mb,
        "results": [_result_fields(result) for result in report.results],
        "against": [_result_fields(result) for result in report.against],
        "ratios": [round(ratio, 3) for ratio in report.ratios],
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
        f"{report.protocol}, sync={'+'.join(report.sync)}, {report.replicas} replicas, "
        f"{report.streams} streams, {report.nodes} nodes; {facts.cores} cores, "
        f"fdatasync {facts.fdatasync_ms:.2f} ms; {versions}",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("scenario")
    for column in ("bytes", "batch", "records/s", "MB/s", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    if report.against:
        table.add_column(f"{report.settings.against}: records/s", justify="right")
        table.add_column("ratio", justify="right")
    for index, result in enumerate(report.results):
        table.add_row(*_cells(result), *_compared(report, index))
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


def _compared(report: Report, index: int) -> tuple[str, ...]:
    if not report.against:
        return ()
    return f"{report.against[index].records_per_s:,.0f}", f"{report.ratios[index]:.2f}"


# ---- the start of a node


def start_fields(starts: list[Start]) -> dict[str, Any]:
    """JSON-ready."""
    return {"starts": [asdict(start) for start in starts]}


def print_starts(starts: list[Start]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("start of a vsn after")
    for column in ("stored MB", "registered s", "takes appends s"):
        table.add_column(column, justify="right")
    for start in starts:
        times = (f"{start.ready_s:.2f}", f"{start.serving_s:.2f}")
        table.add_row(start.before, f"{start.stored_mb:,.0f}", *times)
    console().print(table)


# ---- a node that is killed


def failover_fields(report: failover.Report) -> dict[str, Any]:
    """JSON-ready."""
    fields = asdict(report)
    for kill, of in zip(fields["kills"], report.kills, strict=True):
        for copy, measured in zip(kill["copies"], of.copies, strict=True):
            copy["mb_per_s"] = round(measured.mb_per_s, 1)
    return fields


def print_failover(report: failover.Report) -> None:
    from rich import box
    from rich.table import Table

    out = console()
    out.print(
        f"{report.protocol}, {failover.NODES} nodes, streams: {failover.STREAMS[report.protocol]}, "
        f"replicas of each: {failover.REPLICAS}, "
        f"{report.stored_mb:,.0f} MB stored, {steady_writer.APPENDS_PER_S:,} appends/s of "
        f"{steady_writer.RECORD_BYTES:,} B; a node counts as dead after {report.detection_s:g} s",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("kill -9 of a vsn")
    columns = ("stall s", "p99 ms", "longest s", "failed", "sealed s", "repaired s", "copy MB/s")
    for column in columns:
        table.add_column(column, justify="right")
    before = "-" if report.p99_before_ms is None else f"{report.p99_before_ms:.1f}"
    gap = f"{report.longest_gap_before_s:.2f}"
    table.add_row("(before)", gap, before, "-", "-", "-", "-", "-")
    for kill in report.kills:
        table.add_row(*_kill_cells(kill))
    out.print(table)


def _kill_cells(kill: failover.Kill) -> tuple[str, ...]:
    return (
        kill.scenario,
        f"{kill.stall_s:.2f}",
        "-" if kill.p99_ms is None else f"{kill.p99_ms:.1f}",
        f"{kill.longest_append_s:.2f}",
        str(kill.failed_appends),
        "-" if kill.sealed_s is None else f"{kill.sealed_s:.2f}",
        f"{kill.repaired_s:.2f}",
        ", ".join(f"{copy.mb_per_s:.0f}" for copy in kill.copies) or "-",
    )


# ---- a log that is switched


def switch_fields(report: switching.Report) -> dict[str, Any]:
    """JSON-ready."""
    return asdict(report)


def print_switches(report: switching.Report) -> None:
    from rich import box
    from rich.table import Table

    out = console()
    out.print(
        f"{switching.NODES} nodes and replicas, {steady_writer.APPENDS_PER_S:,} appends/s of "
        f"{steady_writer.RECORD_BYTES:,} B; longest time between two acknowledgements before: "
        f"{report.longest_gap_before_s * 1e3:.0f} ms",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("switch")
    for column in ("entries", "pause ms", "command ms", "failed"):
        table.add_column(column, justify="right")
    for switch in report.switches:
        times = (f"{switch.pause_s * 1e3:.0f}", f"{switch.asked_s * 1e3:.0f}")
        name = f"{switch.protocol} to {switch.wanted}"
        table.add_row(name, f"{switch.entries:,}", *times, str(switch.failed_appends))
    out.print(table)


# ---- many logs


def print_many_logs(report: many_logs.Report) -> None:
    out = console()
    out.print(
        f"{report.logs:,} logs, {report.protocol}, sync={report.sync}, {report.replicas} replicas, "
        f"{report.nodes} nodes; made in {report.created_s:.1f} s, the first entries of all in "
        f"{report.begun_s:.1f} s",
        highlight=False,
    )
    out.print(
        f"{report.appends / report.seconds:,.0f} appends/s of {many_logs.RECORD_BYTES:,} B, one to "
        f"each log every {many_logs.PERIOD_S:g} s: p50 {report.p50_ms:.1f} ms, "
        f"p99 {report.p99_ms:.1f} ms, longest {report.longest_ms:.0f} ms; {report.failed} failed",
        highlight=False,
    )
    out.print(
        f"CPU: {report.client_cpu_percent:.0f} % of one core for the client, "
        f"{report.servers_cpu_percent:.0f} % for all servers; {_memory(report.rss_mb)}",
        highlight=False,
    )


# ---- several metadata repositories


def takeover_fields(report: takeovers.Report) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "one_at_a_time": {n: _result_fields(result) for n, result in report.alone.items()},
        "concurrent": {n: _result_fields(result) for n, result in report.together.items()},
        "takeovers": [asdict(takeover) for takeover in report.takeovers],
        "rounds": None if report.rounds is None else asdict(report.rounds),
    }


def print_takeovers(report: takeovers.Report) -> None:
    from rich import box
    from rich.table import Table

    out = console()
    costs = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    costs.add_column("metadata repositories")
    for column in ("one at a time, p50 ms", f"{takeovers.CALLERS} callers, records/s"):
        costs.add_column(column, justify="right")
    for count, alone in report.alone.items():
        together = f"{report.together[count].records_per_s:,.0f}"
        costs.add_row(str(count), "-" if alone.p50_ms is None else f"{alone.p50_ms:.2f}", together)
    out.print(costs)
    losses = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    losses.add_column("of the leader")
    for column in ("stall s", "longest append s", "failed"):
        losses.add_column(column, justify="right")
    for lost in report.takeovers:
        times = (f"{lost.stall_s:.3f}", f"{lost.longest_append_s:.3f}")
        losses.add_row(lost.how, *times, str(lost.failed_appends))
    out.print(losses)
    if (rounds := report.rounds) is not None:
        out.print(
            f"{rounds.streams:,} streams, {rounds.metadata} vmr: made in {rounds.created_s:.1f} s; "
            f"a round of one entry each p50 {rounds.p50_ms:.0f} ms, p99 {rounds.p99_ms:.0f} ms, "
            f"leader {rounds.leader_cpu_percent:.0f} % of a core ({rounds.idle_cpu_percent:.1f} % "
            "idle)",
            highlight=False,
        )


# ---- Spark


def spark_fields(report: spark_rates.Report) -> dict[str, Any]:
    """JSON-ready."""
    rates = {
        "log_rows_per_s": round(report.log_rows_per_s),
        "parquet_rows_per_s": round(report.parquet_rows_per_s),
        "log_to_parquet": round(report.ratio, 3),
        "copy_rows_per_s": round(report.copy_rows_per_s),
    }
    return asdict(report) | rates


def print_spark(report: spark_rates.Report) -> None:
    from rich import box
    from rich.table import Table

    out = console()
    out.print(
        f"{report.rows:,} rows of {spark_rates.RECORD_BYTES} B, {spark_rates.STREAMS} streams, "
        f"{spark_rates.NODES} replicas, local[2,4]; all on this machine",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Spark")
    table.add_column("rows/s", justify="right")
    table.add_row("group-by over the log", f"{report.log_rows_per_s:,.0f}")
    table.add_row("group-by over Parquet", f"{report.parquet_rows_per_s:,.0f}")
    table.add_row("log to log, exactly once", f"{report.copy_rows_per_s:,.0f}")
    out.print(table)
    out.print(f"log / Parquet: {report.ratio:.2f}", highlight=False)
    ages = (report.age_p50_ms, report.age_p95_ms, report.age_max_ms)
    p50, p95, most = ("-" if ms is None else f"{ms / 1e3:.2f} s" for ms in ages)
    out.print(
        f"age of a record when a reader of the second log has it, {spark_rates.AGE_ROWS_PER_S:,} "
        f"rows/s: p50 {p50}, p95 {p95}, at most {most}",
        highlight=False,
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
