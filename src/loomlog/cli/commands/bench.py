"""`loom bench`: options and help; the work is in bench/."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from loomlog.cli.console.command import run_async
from loomlog.cli.console.options import CLUSTER, Cluster, Json
from loomlog.cli.console.output import print_json
from loomlog.types import SyncMode

if TYPE_CHECKING:
    from loomlog.cli.bench.run import Progress, Settings, Target

T = TypeVar("T")

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
    failover: Failover = False,
    fill_megabytes: FillMegabytes = 400.0,
    takeover: Takeover = False,
    round_streams: RoundStreams = 10_000,
    switch: Switch = False,
    entries: Entries = 1_000_000,
    many_logs: ManyLogs = None,
    spark: Spark = False,
    rows: Rows = 4_000_000,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Measure appends, subscriptions, latency and idle cost."""
    from loomlog.cli.bench.run import Settings, Target

    instead = _only_one(
        start_gigabytes=start_gigabytes is not None,
        failover=failover,
        takeover=takeover,
        switch=switch,
        many_logs=many_logs is not None,
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
        job = _starts(target, start_gigabytes)
    elif failover:
        job = _failover(target, protocol, seconds, fill_megabytes)
    elif takeover:
        job = _takeover(target, seconds, round_streams)
    elif switch:
        job = _switch(target, entries, seconds)
    elif many_logs is not None:
        job = _many_logs(target, protocol, replicas, many_logs, seconds)
    elif spark:
        job = _spark(target, rows, seconds)
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
        job = _appends_and_reads(target, settings)
    _run(job, as_json=as_json)


def _only_one(**given: bool) -> bool:
    """Whether something else is to be measured."""
    chosen = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter("give one of them at a time", param_hint=" and ".join(chosen))
    return bool(chosen)


@dataclass(frozen=True, slots=True)
class _Job(Generic[T]):
    """A measurement, and how to show its result."""

    scenarios: int
    measure: Callable[[Progress], Coroutine[Any, Any, T]]
    show: Callable[[T], None]
    fields: Callable[[T], Any]


def _run(job: _Job[T], *, as_json: bool) -> None:
    from loomlog.cli.bench import reports

    with reports.progress_bar(job.scenarios) as progress:
        report = run_async(job.measure(progress))
    if as_json:
        print_json(job.fields(report))
    else:
        job.show(report)


def _appends_and_reads(target: Target, settings: Settings) -> _Job[Any]:
    from loomlog.cli.bench import reports, run

    scenarios, measure = run.scenario_count(settings, target), partial(run.bench, settings, target)
    return _Job(scenarios, measure, reports.print_report, reports.as_fields)


def _starts(target: Target, gigabytes: float) -> _Job[Any]:
    from loomlog.cli.bench import reports, start

    measure = partial(start.starts, gigabytes, target)
    return _Job(start.SCENARIOS, measure, reports.print_starts, reports.start_fields)


def _failover(target: Target, protocol: str, seconds: float, fill_mb: float) -> _Job[Any]:
    from loomlog.cli.bench import failover, reports

    measure = partial(failover.failover, target, protocol, seconds, fill_mb)
    return _Job(failover.SCENARIOS, measure, reports.print_failover, reports.failover_fields)


def _takeover(target: Target, seconds: float, streams: int) -> _Job[Any]:
    from loomlog.cli.bench import reports, takeovers

    scenarios = takeovers.scenario_count(seconds)
    measure = partial(takeovers.measure, target, seconds, streams)
    return _Job(scenarios, measure, reports.print_takeovers, reports.takeover_fields)


def _switch(target: Target, entries: int, seconds: float) -> _Job[Any]:
    from loomlog.cli.bench import reports, switches

    measure = partial(switches.measure, target, entries, seconds)
    return _Job(switches.SCENARIOS, measure, reports.print_switches, asdict)


def _many_logs(
    target: Target, protocol: str, replicas: int, count: int, seconds: float
) -> _Job[Any]:
    from loomlog.cli.bench import many_logs, reports

    measure = partial(many_logs.measure, target, protocol, replicas, count, seconds)
    return _Job(many_logs.SCENARIOS, measure, reports.print_many_logs, asdict)


def _spark(target: Target, rows: int, seconds: float) -> _Job[Any]:
    from loomlog.cli.bench import reports, spark_rates

    measure = partial(spark_rates.measure, target, rows, seconds)
    return _Job(spark_rates.SCENARIOS, measure, reports.print_spark, reports.spark_fields)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is no list like 128,1024", param_hint=option)
    return tuple(int(part) for part in parts)
