"""`loom bench`: options and help; the work is in bench/."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from loomlog.cli.options import CLUSTER, Cluster, Json
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
        _starts(target, start_gigabytes, as_json=as_json)
    elif failover:
        _failover(target, protocol, seconds, fill_megabytes, as_json=as_json)
    elif takeover:
        _takeover(target, seconds, round_streams, as_json=as_json)
    elif switch:
        _switch(target, entries, seconds, as_json=as_json)
    elif many_logs is not None:
        _many_logs(target, protocol, replicas, many_logs, seconds, as_json=as_json)
    elif spark:
        _spark(target, rows, seconds, as_json=as_json)
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
        _appends_and_reads(target, settings, as_json=as_json)


def _only_one(**given: bool) -> bool:
    """Whether something else is to be measured."""
    chosen = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter("give one of them at a time", param_hint=" and ".join(chosen))
    return bool(chosen)


def _appends_and_reads(target: Target, settings: Settings, *, as_json: bool) -> None:
    from loomlog.cli.bench import reporting, run

    report = _measured(
        run.scenario_count(settings, target),
        lambda progress: run.bench(settings, target, progress),
    )
    _show(report, reporting.as_fields, reporting.print_report, as_json=as_json)


def _starts(target: Target, gigabytes: float, *, as_json: bool) -> None:
    from loomlog.cli.bench import reporting, starting

    starts = _measured(
        starting.SCENARIOS, lambda progress: starting.starts(gigabytes, target, progress)
    )
    _show(starts, reporting.start_fields, reporting.print_starts, as_json=as_json)


def _failover(
    target: Target, protocol: str, seconds: float, fill_mb: float, *, as_json: bool
) -> None:
    from loomlog.cli.bench import failover, reporting

    report = _measured(
        failover.SCENARIOS,
        lambda progress: failover.failover(target, protocol, seconds, fill_mb, progress),
    )
    _show(report, reporting.failover_fields, reporting.print_failover, as_json=as_json)


def _takeover(target: Target, seconds: float, streams: int, *, as_json: bool) -> None:
    from loomlog.cli.bench import reporting, takeovers

    report = _measured(
        takeovers.scenario_count(seconds),
        lambda progress: takeovers.measure(target, seconds, streams, progress),
    )
    _show(report, reporting.takeover_fields, reporting.print_takeovers, as_json=as_json)


def _switch(target: Target, entries: int, seconds: float, *, as_json: bool) -> None:
    from loomlog.cli.bench import reporting, switching

    report = _measured(
        switching.SCENARIOS,
        lambda progress: switching.measure(target, entries, seconds, progress),
    )
    _show(report, reporting.switch_fields, reporting.print_switches, as_json=as_json)


def _many_logs(
    target: Target, protocol: str, replicas: int, count: int, seconds: float, *, as_json: bool
) -> None:
    from loomlog.cli.bench import many_logs, reporting

    report = _measured(
        many_logs.SCENARIOS,
        lambda progress: many_logs.measure(target, protocol, replicas, count, seconds, progress),
    )
    _show(report, asdict, reporting.print_many_logs, as_json=as_json)


def _spark(target: Target, rows: int, seconds: float, *, as_json: bool) -> None:
    from loomlog.cli.bench import reporting, spark_rates

    report = _measured(
        spark_rates.SCENARIOS,
        lambda progress: spark_rates.measure(target, rows, seconds, progress),
    )
    _show(report, reporting.spark_fields, reporting.print_spark, as_json=as_json)


def _measured(scenarios: int, measure: Callable[[Progress], Coroutine[Any, Any, T]]) -> T:
    from loomlog.cli import event_loop
    from loomlog.cli.bench import reporting

    with reporting.progress_bar(scenarios) as progress:
        return event_loop.run(measure(progress))


def _show(
    report: T, fields: Callable[[T], Any], show: Callable[[T], None], *, as_json: bool
) -> None:
    from loomlog.cli.output import print_json

    if as_json:
        print_json(fields(report))
    else:
        show(report)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is no list like 128,1024", param_hint=option)
    return tuple(int(part) for part in parts)
