"""`loom bench`: options and help; the work is in bench/."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from loomlog.cli.console.command import run_async
from loomlog.cli.console.options import CLUSTER, Cluster, Json
from loomlog.cli.console.output import print_json
from loomlog.types import SyncMode

if TYPE_CHECKING:
    from loomlog.cli.bench.run import Progress

Measure: TypeAlias = Callable[["Progress"], Coroutine[Any, Any, Any]]

Up = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Measure a private cluster of N nodes instead."),
]
Sync = Annotated[SyncMode | None, typer.Option(help="Of the private cluster.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", exists=True, file_okay=False, help="Disk to measure on."),
]
Log = Annotated[
    str | None,
    typer.Option(metavar="LOG", show_default="fresh, deleted after", help="A log that is there."),
]
Sizes = Annotated[str, typer.Option(metavar="N,N", help="Bytes of a record.")]
Batch = Annotated[
    str, typer.Option(metavar="N,N", help="Records of an append_many; 1: many append().")
]
Seconds = Annotated[float, typer.Option(min=0.05, help="Of each measurement.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Callers of append().")]
Protocol = Annotated[str, typer.Option(help="Of the fresh log, also of --failover.")]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="PROTOCOL",
        help="Measure a second fresh log of this protocol in turn, and the ratios to it.",
    ),
]
OfFreshLog = Annotated[int, typer.Option(min=1, help="Of the fresh log.")]
StartGigabytes = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        metavar="N",
        help="Instead: how long a storage node with N GB takes to start. Private cluster.",
    ),
]
Failover = Annotated[
    bool,
    typer.Option("--failover", help="Instead: what a client feels of kill -9. Private cluster."),
]
FillMegabytes = Annotated[
    float, typer.Option(min=0, metavar="N", help="With --failover: stored before the kill.")
]

Takeover = Annotated[
    bool,
    typer.Option(
        "--takeover",
        help="Instead: one metadata repository against three, and the loss of their leader. "
        "Private clusters.",
    ),
]
RoundStreams = Annotated[
    int, typer.Option(min=1, metavar="N", help="With --takeover: log streams of a commit round.")
]
Switch = Annotated[
    bool,
    typer.Option(
        "--switch",
        help="Instead: how long appends pause when a log is switched between protocols. "
        "Private cluster.",
    ),
]
Entries = Annotated[
    int, typer.Option(min=1, metavar="N", help="With --switch: entries of a segment.")
]
ManyLogs = Annotated[
    int | None,
    typer.Option(
        "--many-logs",
        min=1,
        metavar="N",
        help="Instead: N logs of --protocol that get an append a second each. Private cluster.",
    ),
]
Spark = Annotated[
    bool,
    typer.Option("--spark", help="Instead: reading and writing with Spark. Private cluster."),
]
Rows = Annotated[int, typer.Option(min=1, metavar="N", help="With --spark: rows of the log.")]


class Job(NamedTuple):
    """A measurement, and how to show its report to people and to programs."""

    scenarios: int
    measure: Measure
    show: Callable[[Any], None]
    fields: Callable[[Any], Any]


def bench(
    up: Up = None,
    sync: Sync = None,
    data: Data = None,
    log: Log = None,
    sizes: Sizes = "128,1024",
    batch: Batch = "1,500",
    seconds: Seconds = 5.0,
    concurrency: Concurrency = 1024,
    protocol: Protocol = "ordered",
    against: Against = None,
    streams: OfFreshLog = 1,
    replicas: OfFreshLog = 3,
    start_gigabytes: StartGigabytes = None,
    kill_nodes: Failover = False,
    fill_megabytes: FillMegabytes = 400.0,
    takeover: Takeover = False,
    round_streams: RoundStreams = 10_000,
    switch: Switch = False,
    entries: Entries = 1_000_000,
    log_count: ManyLogs = None,
    spark: Spark = False,
    rows: Rows = 4_000_000,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Measure appends, subscriptions, latency and idle cost."""
    from loomlog.cli.bench import (
        failover,
        many_logs,
        reports,
        run,
        spark_rates,
        start,
        switches,
        takeovers,
    )
    from loomlog.cli.bench.run import Settings, Target

    instead = _only_one(
        start_gigabytes=start_gigabytes is not None,
        failover=kill_nodes,
        takeover=takeover,
        switch=switch,
        many_logs=log_count is not None,
        spark=spark,
    )
    if sync is not None and up is None and not instead:
        raise typer.BadParameter(
            "only with a private cluster: a running one has its own", param_hint="--sync"
        )
    if against is not None and log is not None:
        raise typer.BadParameter("only with fresh logs, not with --log", param_hint="--against")
    target = Target(address=cluster, up=up, sync=sync or SyncMode.ALWAYS, data=data)
    if start_gigabytes is not None:
        measure: Measure = partial(start.starts, start_gigabytes, target)
        job = Job(start.SCENARIOS, measure, reports.print_starts, reports.start_fields)
    elif kill_nodes:
        measure = partial(failover.failover, target, protocol, seconds, fill_megabytes)
        job = Job(failover.SCENARIOS, measure, reports.print_failover, reports.failover_fields)
    elif takeover:
        measure = partial(takeovers.measure, target, seconds, round_streams)
        scenarios = takeovers.scenario_count(seconds)
        job = Job(scenarios, measure, reports.print_takeovers, reports.takeover_fields)
    elif switch:
        measure = partial(switches.measure, target, entries, seconds)
        job = Job(switches.SCENARIOS, measure, reports.print_switches, asdict)
    elif log_count is not None:
        measure = partial(many_logs.measure, target, protocol, replicas, log_count, seconds)
        job = Job(many_logs.SCENARIOS, measure, reports.print_many_logs, asdict)
    elif spark:
        measure = partial(spark_rates.measure, target, rows, seconds)
        job = Job(spark_rates.SCENARIOS, measure, reports.print_spark, reports.spark_fields)
    else:
        settings = Settings(
            log=log,
            sizes=_numbers(sizes, "--sizes"),
            batches=_numbers(batch, "--batch"),
            seconds=seconds,
            concurrency=concurrency,
            protocol=protocol,
            streams=streams,
            replicas=replicas,
            against=against,
        )
        measure = partial(run.bench, settings, target)
        scenarios = run.scenario_count(settings, target)
        job = Job(scenarios, measure, reports.print_report, reports.as_fields)
    _run(job, as_json=as_json)


def _only_one(**given: bool) -> bool:
    """Return whether something else is to be measured."""
    chosen = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter("give one of them at a time", param_hint=" and ".join(chosen))
    return bool(chosen)


def _run(job: Job, *, as_json: bool) -> None:
    from loomlog.cli.bench.reports import progress_bar

    with progress_bar(job.scenarios) as progress:
        report = run_async(job.measure(progress))
    if as_json:
        print_json(job.fields(report))
    else:
        job.show(report)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is no list like 128,1024", param_hint=option)
    return tuple(int(part) for part in parts)
