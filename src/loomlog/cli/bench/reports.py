"""The report of a bench, for people and for programs, and the bar while it runs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loomlog.cli.bench import failover, many_logs, spark_rates, steady_writer, switches, takeovers
from loomlog.cli.bench.machine import describe
from loomlog.cli.bench.measurements import Result
from loomlog.cli.bench.run import Progress, Report
from loomlog.cli.bench.start import Start
from loomlog.cli.console.output import console, new_table

if TYPE_CHECKING:
    from rich.table import Table


def as_fields(report: Report) -> dict[str, Any]:
    """Return the report for JSON."""
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
    facts = describe(report.fdatasyncs_ms)
    versions = ", ".join(f"{name} {number}" for name, number in facts.versions.items())
    _say(
        f"{report.protocol}, sync={'+'.join(report.sync)}, {report.replicas} replicas, "
        f"{report.streams} streams, {report.nodes} nodes; {facts.cores} cores, "
        f"fdatasync {facts.fdatasync_ms:.2f} ms; {versions}"
    )
    compared = (f"{report.settings.against}: records/s", "ratio") if report.against else ()
    columns = ("bytes", "batch", "records/s", "MB/s", "p50 ms", "p99 ms")
    table = _table("scenario", *columns, *compared)
    for index, result in enumerate(report.results):
        table.add_row(*_cells(result), *_compared(report, index))
    console().print(table)
    if report.idle is not None:
        cpu = f"{report.idle.cpu_percent:.1f} % of one core in total"
        _say(f"idle: {cpu}; {_memory(report.idle.rss_mb)}")
        _say(f"after the run: {_memory(report.rss_after_mb)}")


def _memory(rss_mb: dict[str, float]) -> str:
    return ", ".join(f"{name} {mb:.0f} MB" for name, mb in rss_mb.items())


def _cells(result: Result) -> tuple[str, ...]:
    return (
        result.scenario,
        f"{result.record_bytes:,}",
        str(result.batch),
        f"{result.records_per_s:,.0f}",
        f"{result.mb_per_s:,.1f}",
        _number(result.p50_ms, ".2f"),
        _number(result.p99_ms, ".2f"),
    )


def _compared(report: Report, index: int) -> tuple[str, ...]:
    if not report.against:
        return ()
    return f"{report.against[index].records_per_s:,.0f}", f"{report.ratios[index]:.2f}"


# ---- the start of a node


def start_fields(starts: list[Start]) -> dict[str, Any]:
    """Return the report for JSON."""
    return {"starts": [asdict(start) for start in starts]}


def print_starts(starts: list[Start]) -> None:
    table = _table("start of a vsn after", "stored MB", "registered s", "takes appends s")
    for start in starts:
        times = (f"{start.ready_s:.2f}", f"{start.serving_s:.2f}")
        table.add_row(start.before, f"{start.stored_mb:,.0f}", *times)
    console().print(table)


# ---- a node that is killed


def failover_fields(report: failover.Report) -> dict[str, Any]:
    """Return the report for JSON."""
    fields = asdict(report)
    for kill, of in zip(fields["kills"], report.kills, strict=True):
        for copy, measured in zip(kill["copies"], of.copies, strict=True):
            copy["mb_per_s"] = round(measured.mb_per_s, 1)
    return fields


def print_failover(report: failover.Report) -> None:
    _say(
        f"{report.protocol}, {failover.NODES} nodes, streams: {failover.STREAMS[report.protocol]}, "
        f"replicas of each: {failover.REPLICAS}, "
        f"{report.stored_mb:,.0f} MB stored, {steady_writer.APPENDS_PER_S:,} appends/s of "
        f"{steady_writer.RECORD_BYTES:,} B; a node counts as dead after {report.detection_s:g} s"
    )
    columns = ("stall s", "p99 ms", "longest s", "failed", "sealed s", "repaired s", "copy MB/s")
    table = _table("kill -9 of a vsn", *columns)
    before = (f"{report.longest_gap_before_s:.2f}", _number(report.p99_before_ms, ".1f"))
    table.add_row("(before)", *before, "-", "-", "-", "-", "-")
    for kill in report.kills:
        table.add_row(*_kill_cells(kill))
    console().print(table)


def _kill_cells(kill: failover.Kill) -> tuple[str, ...]:
    return (
        kill.scenario,
        f"{kill.stall_s:.2f}",
        _number(kill.p99_ms, ".1f"),
        f"{kill.longest_append_s:.2f}",
        str(kill.failed_appends),
        _number(kill.sealed_s, ".2f"),
        f"{kill.repaired_s:.2f}",
        ", ".join(f"{copy.mb_per_s:.0f}" for copy in kill.copies) or "-",
    )


# ---- a log that is switched


def print_switches(report: switches.Report) -> None:
    _say(
        f"{switches.NODES} nodes and replicas, {steady_writer.APPENDS_PER_S:,} appends/s of "
        f"{steady_writer.RECORD_BYTES:,} B; longest time between two acknowledgements before: "
        f"{report.longest_gap_before_s * 1e3:.0f} ms"
    )
    table = _table("switch", "entries", "pause ms", "command ms", "failed")
    for switch in report.switches:
        times = (f"{switch.pause_s * 1e3:.0f}", f"{switch.asked_s * 1e3:.0f}")
        name = f"{switch.protocol} to {switch.wanted}"
        table.add_row(name, f"{switch.entries:,}", *times, str(switch.failed_appends))
    console().print(table)


# ---- many logs


def print_many_logs(report: many_logs.Report) -> None:
    _say(
        f"{report.logs:,} logs, {report.protocol}, sync={report.sync}, {report.replicas} replicas, "
        f"{report.nodes} nodes; made in {report.created_s:.1f} s, the first entries of all in "
        f"{report.begun_s:.1f} s"
    )
    _say(
        f"{report.appends / report.seconds:,.0f} appends/s of {many_logs.RECORD_BYTES:,} B, one to "
        f"each log every {many_logs.PERIOD_S:g} s: p50 {report.p50_ms:.1f} ms, "
        f"p99 {report.p99_ms:.1f} ms, longest {report.longest_ms:.0f} ms; {report.failed} failed"
    )
    _say(
        f"CPU: {report.client_cpu_percent:.0f} % of one core for the client, "
        f"{report.servers_cpu_percent:.0f} % for all servers; {_memory(report.rss_mb)}; "
        f"{report.disk_mb:,.0f} MB on disk"
    )


# ---- several metadata repositories


def takeover_fields(report: takeovers.Report) -> dict[str, Any]:
    """Return the report for JSON."""
    return {
        "one_at_a_time": {n: _result_fields(result) for n, result in report.alone.items()},
        "concurrent": {n: _result_fields(result) for n, result in report.together.items()},
        "takeovers": [asdict(takeover) for takeover in report.takeovers],
        "rounds": None if report.rounds is None else asdict(report.rounds),
    }


def print_takeovers(report: takeovers.Report) -> None:
    columns = ("one at a time, p50 ms", f"{takeovers.CALLERS} callers, records/s")
    costs = _table("metadata repositories", *columns)
    for count, alone in report.alone.items():
        together = f"{report.together[count].records_per_s:,.0f}"
        costs.add_row(str(count), _number(alone.p50_ms, ".2f"), together)
    console().print(costs)
    losses = _table("of the leader", "stall s", "longest append s", "failed")
    for lost in report.takeovers:
        times = (f"{lost.stall_s:.3f}", f"{lost.longest_append_s:.3f}")
        losses.add_row(lost.how, *times, str(lost.failed_appends))
    console().print(losses)
    if (rounds := report.rounds) is not None:
        _say(
            f"{rounds.streams:,} streams, {rounds.metadata} vmr: made in {rounds.created_s:.1f} s; "
            f"a round of one entry each p50 {rounds.p50_ms:.0f} ms, p99 {rounds.p99_ms:.0f} ms, "
            f"leader {rounds.leader_cpu_percent:.0f} % of a core ({rounds.idle_cpu_percent:.1f} % "
            "idle)"
        )


# ---- Spark


def spark_fields(report: spark_rates.Report) -> dict[str, Any]:
    """Return the report for JSON."""
    rates = {
        "log_rows_per_s": round(report.log_rows_per_s),
        "parquet_rows_per_s": round(report.parquet_rows_per_s),
        "log_to_parquet": round(report.ratio, 3),
        "copy_rows_per_s": round(report.copy_rows_per_s),
    }
    return asdict(report) | rates


def print_spark(report: spark_rates.Report) -> None:
    _say(
        f"{report.rows:,} rows of {spark_rates.RECORD_BYTES} B, {spark_rates.STREAMS} streams, "
        f"{spark_rates.NODES} replicas, local[2,4]; all on this machine"
    )
    table = _table("Spark", "rows/s")
    table.add_row("group-by over the log", f"{report.log_rows_per_s:,.0f}")
    table.add_row("group-by over Parquet", f"{report.parquet_rows_per_s:,.0f}")
    table.add_row("log to log, exactly once", f"{report.copy_rows_per_s:,.0f}")
    console().print(table)
    _say(f"log / Parquet: {report.ratio:.2f}")
    ages = (report.age_p50_ms, report.age_p95_ms, report.age_max_ms)
    p50, p95, most = ("-" if ms is None else f"{ms / 1e3:.2f} s" for ms in ages)
    _say(
        f"age of a record when a reader of the second log has it, {spark_rates.AGE_ROWS_PER_S:,} "
        f"rows/s: p50 {p50}, p95 {p95}, at most {most}"
    )


# ---- the parts of a report


def _say(text: str) -> None:
    console().print(text, highlight=False)


def _table(first: str, *columns: str) -> Table:
    """Return a table of numbers: all columns but the first are aligned to the right."""
    table = new_table(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


@contextmanager
def progress_bar(scenarios: int) -> Iterator[Progress]:
    """Show a progress bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda scenario, seconds: None
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
        task = rich.add_task("starting", total=scenarios)
        counter = itertools.count()

        def begin(scenario: str, seconds: float) -> None:
            text = f"{scenario} (about {seconds:g} s)"
            rich.update(task, completed=next(counter), description=text)

        yield begin
