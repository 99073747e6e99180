"""`loom bench`: options and help; the work is in bench/."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from loomlog.cli.console.command import run_async
from loomlog.cli.console.options import CLUSTER, Cluster, Json
from loomlog.cli.console.output import print_json
from loomlog.types import SyncMode

if TYPE_CHECKING:
    from loomlog.cli.bench.private_cluster import Progress, Target
    from loomlog.cli.bench.reports import BenchReport
    from loomlog.cli.bench.run import BenchSettings


class Measurement(NamedTuple):
    """A measurement; it announces this many scenarios on its way."""

    scenarios: int
    measure: Callable[[Progress], Coroutine[Any, Any, BenchReport]]


@dataclass(frozen=True, slots=True)
class Where:
    """Options for the cluster to measure."""

    up: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Measure a private cluster of N nodes instead."),
    ] = None
    sync: Annotated[SyncMode | None, typer.Option(help="Of the private cluster.")] = None
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", exists=True, file_okay=False, help="Disk to measure on."),
    ] = None
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="With --up: a private cluster with TLS, in turn with one without, and the ratios.",
        ),
    ] = False
    cluster: Cluster = CLUSTER

    def target(self) -> Target:
        from loomlog.cli.bench.private_cluster import Target

        sync = self.sync or SyncMode.ALWAYS
        return Target(
            address=self.cluster, up=self.up, sync=sync, data=self.data, secure=self.secure
        )


@dataclass(frozen=True, slots=True)
class Instead:
    """Options that measure something else, on private clusters, and their details."""

    start_gigabytes: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="N",
            help="Instead: how long a storage node with N GB takes to start. Private cluster.",
        ),
    ] = None
    failover: Annotated[
        bool,
        typer.Option(
            "--failover", help="Instead: what a client feels of kill -9. Private cluster."
        ),
    ] = False
    fill_megabytes: Annotated[
        float, typer.Option(min=0, metavar="N", help="With --failover: stored before the kill.")
    ] = 400.0
    takeover: Annotated[
        bool,
        typer.Option(
            "--takeover",
            help="Instead: one metadata repository against three, and the loss of their leader. "
            "Private clusters.",
        ),
    ] = False
    round_streams: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="With --takeover: log streams of a commit round."),
    ] = 10_000
    switch: Annotated[
        bool,
        typer.Option(
            "--switch",
            help="Instead: how long appends pause when a log is switched between protocols. "
            "Private cluster.",
        ),
    ] = False
    entries: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --switch: entries of a segment.")
    ] = 1_000_000
    many_logs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Instead: N logs of --protocol that get an append a second each. Private cluster.",
        ),
    ] = None
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Instead: reading and writing with Spark. Private cluster."),
    ] = False
    rows: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --spark: rows of the log.")
    ] = 4_000_000

    def jobs(self, settings: BenchSettings, target: Target) -> dict[str, Measurement]:
        """Return what is to be measured instead, by option."""
        from loomlog.cli.bench import failover, many_logs, spark_rates, start, switches, takeovers

        seconds, protocol = settings.seconds, settings.protocol
        jobs: dict[str, Measurement] = {}
        if self.start_gigabytes is not None:
            measure = partial(start.measure, target, self.start_gigabytes)
            jobs["--start-gigabytes"] = Measurement(start.SCENARIOS, measure)
        if self.failover:
            killed = partial(failover.measure, target, protocol, seconds, self.fill_megabytes)
            jobs["--failover"] = Measurement(failover.SCENARIOS, killed)
        if self.takeover:
            lost = partial(takeovers.measure, target, seconds, self.round_streams)
            jobs["--takeover"] = Measurement(takeovers.scenario_count(seconds), lost)
        if self.switch:
            switched = partial(switches.measure, target, self.entries, seconds)
            jobs["--switch"] = Measurement(switches.SCENARIOS, switched)
        if self.many_logs is not None:
            kept = settings.replicas, self.many_logs
            many = partial(many_logs.measure, target, protocol, *kept, seconds)
            jobs["--many-logs"] = Measurement(many_logs.SCENARIOS, many)
        if self.spark:
            rates = partial(spark_rates.measure, target, self.rows, seconds)
            jobs["--spark"] = Measurement(spark_rates.SCENARIOS, rates)
        return jobs


def bench(
    where: Where,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="LOG", show_default="fresh, deleted after", help="A log that is there."
        ),
    ] = None,
    sizes: Annotated[str, typer.Option(metavar="N,N", help="Bytes of a record.")] = "128,1024",
    batch: Annotated[
        str, typer.Option(metavar="N,N", help="Records of an append_many; 1: many append().")
    ] = "1,500",
    seconds: Annotated[float, typer.Option(min=0.05, help="Of each measurement.")] = 5.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Callers of append().")] = 1024,
    protocol: Annotated[
        str, typer.Option(help="Of the fresh log, also of --failover.")
    ] = "ordered",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PROTOCOL",
            help="Measure a second fresh log of this protocol in turn, and the ratios to it.",
        ),
    ] = None,
    streams: Annotated[int, typer.Option(min=1, help="Of the fresh log.")] = 1,
    replicas: Annotated[int, typer.Option(min=1, help="Of the fresh log.")] = 3,
    *,
    instead: Instead,
    as_json: Json = False,
) -> None:
    """Measure appends, subscriptions, latency and idle cost."""
    from loomlog.cli.bench import run

    settings = run.BenchSettings(
        log=log,
        sizes=_numbers(sizes, "--sizes"),
        batches=_numbers(batch, "--batch"),
        seconds=seconds,
        concurrency=concurrency,
        protocol=protocol,
        streams=streams,
        replicas=replicas,
        against=protocol if where.secure else against,
    )
    target = where.target()
    jobs = instead.jobs(settings, target)
    if len(jobs) > 1:
        raise typer.BadParameter("give one of them at a time", param_hint=" and ".join(jobs))
    if where.sync is not None and where.up is None and not jobs:
        raise typer.BadParameter(
            "only with a private cluster: a running one has its own", param_hint="--sync"
        )
    if where.secure and (where.up is None or jobs or against is not None or log is not None):
        raise typer.BadParameter(
            "only with --up, and not with --against or --log", param_hint="--secure"
        )
    if against is not None and log is not None:
        raise typer.BadParameter("only with fresh logs, not with --log", param_hint="--against")
    whole = Measurement(run.scenario_count(settings, target), partial(run.bench, settings, target))
    _run(next(iter(jobs.values()), whole), as_json=as_json)


def _run(job: Measurement, *, as_json: bool) -> None:
    from loomlog.cli.bench.reports import progress_bar

    with progress_bar(job.scenarios) as progress:
        report = run_async(job.measure(progress))
    if as_json:
        print_json(report.fields())
    else:
        report.print()


def _numbers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is no list like 128,1024", param_hint=option)
    return tuple(int(part) for part in parts)
