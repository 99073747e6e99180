"""`loom bench …`: options and help; the work is in bench/."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from loomlog.cli.console.command import command, default_command, run_async
from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import CLUSTER, Cluster, Json
from loomlog.cli.console.output import print_json
from loomlog.config import parse_number
from loomlog.limits import BATCH_BYTES_MAX
from loomlog.types import SyncMode

if TYPE_CHECKING:
    from loomlog.cli.bench.private_cluster import Progress, Target
    from loomlog.cli.bench.reports import BenchReport
    from loomlog.cli.bench.run import BenchSettings

app = typer.Typer(help="Benchmarks: without a command, of appends, reads and subscriptions.")


class Measurement(NamedTuple):
    """A measurement that announces this many scenarios."""

    scenarios: int
    measure: Callable[[Progress], Coroutine[Any, Any, BenchReport]]


# ---- options

Sync = Annotated[SyncMode | None, typer.Option(help="Of the private cluster.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", exists=True, file_okay=False, help="Disk to measure on."),
]
Seconds = Annotated[float, typer.Option(min=0.05, help="Of each measurement.")]
Replicas = Annotated[int, typer.Option(min=1, help="Of a fresh log.")]
Protocol = Annotated[str, typer.Option(help="Of a fresh log.")]


@dataclass(frozen=True, slots=True)
class Private:
    """Options of measurements that need a private cluster."""

    sync: Sync = None
    data: Data = None
    seconds: Seconds = 5.0
    as_json: Json = False

    def target(self, up: int | None = None) -> Target:
        from loomlog.cli.bench.private_cluster import Target

        return Target("", up=up, sync=self.sync or SyncMode.ALWAYS, data=self.data)

    def run(self, scenarios: int, measure: Callable[[Progress], Any]) -> None:
        _print(_measure(Measurement(scenarios, measure)), as_json=self.as_json)


@dataclass(frozen=True, slots=True)
class Where:
    """Options for the cluster to measure."""

    up: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Measure a private cluster of N nodes."),
    ] = None
    sync: Sync = None
    data: Data = None
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="With --up: alternate between clusters with and without TLS; show ratios.",
        ),
    ] = False
    cluster: Cluster = CLUSTER

    def target(self) -> Target:
        from loomlog.cli.bench.private_cluster import Target

        if self.sync is not None and self.up is None:
            raise typer.BadParameter(
                "only with a private cluster: a running one has its own", param_hint="--sync"
            )
        if self.secure and self.up is None:
            raise typer.BadParameter("only with --up", param_hint="--secure")
        sync = self.sync or SyncMode.ALWAYS
        return Target(self.cluster, up=self.up, sync=sync, data=self.data, secure=self.secure)


@dataclass(frozen=True, slots=True)
class Load:
    """Options for the log and the records."""

    log: Annotated[
        str | None,
        typer.Option(
            metavar="LOG", show_default="fresh, deleted after", help="A log that is there."
        ),
    ] = None
    sizes: Annotated[str, typer.Option(metavar="N,N", help="Bytes of a record.")] = "128,1024"
    batch: Annotated[
        str, typer.Option(metavar="N,N", help="Records per append_many(); 1: concurrent append().")
    ] = "1,500"
    seconds: Seconds = 5.0
    concurrency: Annotated[int, typer.Option(min=1, help="Callers of append().")] = 1024
    protocol: Protocol = "ordered"
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PROTOCOL",
            help="Alternate with a second fresh log of this protocol, and show ratios.",
        ),
    ] = None
    streams: Annotated[int, typer.Option(min=1, help="Of a fresh log.")] = 1
    replicas: Replicas = 3

    def settings(self, kinds: tuple[str, ...], *, secure: bool) -> BenchSettings:
        from loomlog.cli.bench.run import BenchSettings

        if self.log is not None and (secure or self.against is not None):
            hint = "--secure" if secure else "--against"
            raise typer.BadParameter("only with fresh logs, not with --log", param_hint=hint)
        if secure and self.against is not None:
            raise typer.BadParameter("not with --against", param_hint="--secure")
        sizes, batches = _numbers(self.sizes, "--sizes"), _numbers(self.batch, "--batch")
        if max(sizes) * max(batches) > BATCH_BYTES_MAX:
            most = f"{max(batches):,} records of {max(sizes):,} bytes exceed the"
            words = f"{most} limit of {BATCH_BYTES_MAX:,} bytes: choose a smaller --batch or size"
            raise typer.BadParameter(words, param_hint="--sizes")
        return BenchSettings(
            log=self.log,
            sizes=sizes,
            batches=batches,
            seconds=self.seconds,
            concurrency=self.concurrency,
            protocol=self.protocol,
            streams=self.streams,
            replicas=self.replicas,
            kinds=kinds,
            against=self.protocol if secure else self.against,
        )


@dataclass(frozen=True, slots=True)
class Output:
    """Options for where the figures go."""

    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write charts, as one HTML file.")
    ] = None
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write JSON, for `loom bench compare`."),
    ] = None
    as_json: Json = False


# ---- one log


ALL = ("append", "read", "subscribe")


@default_command(app)
def bench(invocation: typer.Context, where: Where, load: Load, output: Output) -> None:
    """Measure appends, reads, subscriptions, latency and idle cost, or run one benchmark."""
    named = invocation.invoked_subcommand
    if named is None:
        _bench(ALL, where, load, output)
        return
    given = [p for p in invocation.params if _is_given(invocation, p)]
    if given:
        raise UsageError(f"put options after the command: loom bench {named} …")


def _is_given(invocation: typer.Context, parameter: str) -> bool:
    source = invocation.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


@command(app)
def append(where: Where, load: Load, output: Output) -> None:
    """Measure appends: one at a time, many callers, and batches."""
    _bench(("append",), where, load, output)


@command(app)
def read(where: Where, load: Load, output: Output) -> None:
    """Measure single reads, one at a time."""
    _bench(("read",), where, load, output)


@command(app)
def subscribe(where: Where, load: Load, output: Output) -> None:
    """Measure subscriptions, to existing and to new entries."""
    _bench(("subscribe",), where, load, output)


@command(app)
def mixed(where: Where, load: Load, output: Output) -> None:
    """Measure appends, single reads, and readers that catch up and follow, all at once."""
    _bench(("mixed",), where, load, output)


def _bench(kinds: tuple[str, ...], where: Where, load: Load, output: Output) -> None:
    from loomlog.cli.bench import html_report, run

    target = where.target()
    settings = load.settings(kinds, secure=where.secure)
    whole = Measurement(run.scenario_count(settings, target), partial(run.bench, settings, target))
    report = _measure(whole)
    if output.save is not None or output.report is not None:
        import json

        text = json.dumps(report.fields(), default=str)
        if output.save is not None:
            output.save.write_text(text + "\n")
        if output.report is not None:
            output.report.write_text(html_report.page(json.loads(text)))
    _print(report, as_json=output.as_json)


@command(app)
def compare(
    before: Annotated[
        Path,
        typer.Argument(
            metavar="BEFORE.json", exists=True, dir_okay=False, help="The earlier result."
        ),
    ],
    after: Annotated[
        Path,
        typer.Argument(metavar="AFTER.json", exists=True, dir_okay=False, help="The later result."),
    ],
    noise: Annotated[
        float,
        typer.Option(min=0, metavar="PERCENT", help="Share of differences that count as noise."),
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Compare two saved reports: ratios, and differences that exceed the noise."""
    from loomlog.cli.bench import comparison

    _print(comparison.compare(before, after, noise / 100), as_json=as_json)


# ---- other measurements, on private clusters


@command(app)
def failover(
    private: Private,
    protocol: Protocol = "ordered",
    fill_megabytes: Annotated[
        float, typer.Option(min=0, metavar="N", help="MB stored before the kill.")
    ] = 400.0,
) -> None:
    """Measure the stall of appends when a node is killed. Private cluster."""
    from loomlog.cli.bench import failover

    target = private.target()
    measure = partial(failover.measure, target, protocol, private.seconds, fill_megabytes)
    private.run(failover.SCENARIOS, measure)


@command(app)
def takeover(
    private: Private,
    round_streams: Annotated[
        int, typer.Option(min=1, metavar="N", help="Log streams of a commit round.")
    ] = 10_000,
) -> None:
    """Measure one metadata repository against three, and leader failures. Private clusters."""
    from loomlog.cli.bench import takeovers

    measure = partial(takeovers.measure, private.target(), private.seconds, round_streams)
    private.run(takeovers.scenario_count(private.seconds), measure)


@command(app)
def switch(
    private: Private,
    entries: Annotated[int, typer.Option(min=1, metavar="N", help="Of a segment.")] = 1_000_000,
) -> None:
    """Measure how long appends pause when a log is switched between protocols. Private cluster."""
    from loomlog.cli.bench import switches

    measure = partial(switches.measure, private.target(), entries, private.seconds)
    private.run(switches.SCENARIOS, measure)


@command(app)
def steady(
    private: Private,
    protocol: Protocol = "ordered",
    size: Annotated[int, typer.Option(min=1, metavar="N", help="Bytes of a record.")] = 128,
    share: Annotated[
        float, typer.Option(min=0.01, max=1.0, metavar="SHARE", help="Of the peak.")
    ] = 0.7,
) -> None:
    """Measure how steady appends are close to the peak, beside retention, scrubs and readers: the
    tail of their latency, stalls, and memory over time. Private cluster."""
    from loomlog.cli.bench import steadiness

    target = private.target()
    measure = partial(steadiness.measure, target, protocol, size, share, private.seconds)
    private.run(steadiness.SCENARIOS, measure)


@command(app, "many-logs")
def many_logs(
    logs: Annotated[int, typer.Argument(min=1, metavar="N", help="How many.")],
    private: Private,
    up: Annotated[int | None, typer.Option(min=1, metavar="N", help="Nodes.")] = None,
    protocol: Protocol = "ordered",
    replicas: Replicas = 3,
) -> None:
    """Measure N logs with one append per second each. Private cluster."""
    from loomlog.cli.bench import many_logs

    target = private.target(up)
    measure = partial(many_logs.measure, target, protocol, replicas, logs, private.seconds)
    private.run(many_logs.SCENARIOS, measure)


@command(app)
def spark(
    private: Private,
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Of the log.")] = 4_000_000,
) -> None:
    """Measure reading and writing with Spark. Private cluster."""
    from loomlog.cli.bench import spark_rates

    measure = partial(spark_rates.measure, private.target(), rows, private.seconds)
    private.run(spark_rates.SCENARIOS, measure)


@command(app)
def start(
    gigabytes: Annotated[float, typer.Argument(min=0.001, metavar="GB", help="Data on the node.")],
    private: Private,
    protocol: Protocol = "ordered",
    small: Annotated[
        bool, typer.Option("--small", help="Store blocks of one record of 1 KiB each.")
    ] = False,
) -> None:
    """Measure how long a storage node with GB gigabytes takes to start. Private cluster."""
    from loomlog.cli.bench import start

    private.run(
        start.SCENARIOS, partial(start.measure, private.target(), protocol, gigabytes, small)
    )


def _measure(job: Measurement) -> BenchReport:
    from loomlog.cli.bench.reports import progress_bar

    with progress_bar(job.scenarios) as progress:
        return run_async(job.measure(progress))


def _print(report: BenchReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.fields())
    else:
        report.print()


def _numbers(text: str, option: str) -> tuple[int, ...]:
    numbers = [parse_number(part.strip()) for part in text.split(",")]
    if not all(numbers):
        raise typer.BadParameter(f"{text!r} is not a list such as 128,1024", param_hint=option)
    return tuple(number for number in numbers if number)
