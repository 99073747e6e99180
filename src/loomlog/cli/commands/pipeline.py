"""`loom pipeline …`: run, inspect and control pipelines."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loomlog.cli.console import changes
from loomlog.cli.console import pipeline_output as show
from loomlog.cli.console.command import command, connected_sync
from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import CLUSTER, SPARK_MASTER, Cluster, Json, SparkMaster, Yes
from loomlog.cli.console.output import print_json, say
from loomlog.cli.processes.spark_session import start_spark, stop_spark
from loomlog.config import parse_number
from loomlog.errors import LoomError, NotFound, Retryable

if TYPE_CHECKING:
    from loomlog.spark import Pipeline, Runner
    from loomlog.spark.pipelines.units import Progress, Unit

app = typer.Typer(help="Run pipelines: logs in, a table or a log out, each record exactly once.")
letters_app = typer.Typer(help="Records that pipelines could not process.")
app.add_typer(letters_app, name="dead-letters")

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="Definition of the pipeline: Python (.py) or SQL in TOML (.toml)."
    ),
]
PipelineName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]
Which = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the pipeline, if FILE defines several."),
]
Site = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default="the host's name",
        help="One site is active, others stand by; one of the same name is replaced at once.",
    ),
]
MetricsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File for metrics, in the text format of Prometheus."),
]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of commands that run a pipeline."""

    name: Which = None
    site: Site = None
    spark_master: SparkMaster = SPARK_MASTER
    cluster: Cluster = CLUSTER
    as_json: Json = False


@command(app)
def run(
    file: File,
    once: Annotated[
        bool, typer.Option("--once", help="Process the existing records, then stop.")
    ] = False,
    metrics_file: MetricsFile = None,
    *,
    how: RunOptions,
) -> None:
    """Run a pipeline until Ctrl-C; it continues where the last run ended."""
    _run(how, _load(file, how.name), once=once, metrics_file=metrics_file)


@app.command("list")
def list_all(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List all pipelines of the cluster."""
    _show(cluster, None, None, as_json=as_json)


@app.command()
def status(
    name: PipelineName,
    metrics_file: MetricsFile = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show a pipeline: its active site, its progress and its lag."""
    _show(cluster, name, metrics_file, as_json=as_json)


@app.command()
def pause(name: PipelineName, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Start no new unit, on any site, until the pipeline is resumed."""
    _pause(cluster, name, wanted=True, as_json=as_json)


@app.command()
def resume(name: PipelineName, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Continue after a pause."""
    _pause(cluster, name, wanted=False, as_json=as_json)


@app.command()
def reset(
    name: PipelineName,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION", help="earliest, latest, or the first position to process."
        ),
    ] = "earliest",
    same_output: Annotated[
        bool,
        typer.Option(
            "--same-output",
            help="Keep the current version of the output instead of starting a new one.",
        ),
    ] = False,
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Restart at another position, without state."""
    from loomlog.spark.pipelines import store

    changes.confirm(lambda: f"Reset {name} to {to}? Its state is discarded.", yes=yes)
    position = parse_number(to)
    if to not in ("earliest", "latest") and not position:
        raise UsageError(f"--to {to}: give earliest, latest or a position from 1 on")
    with connected_sync(cluster) as client:
        progress = store.reset(client, name, position or to, same_output=same_output)
    behind = ", ".join(f"{log} at {at + 1}" for log, at in progress.positions.items())
    text = f"reset {name}: continues with {behind}, into version {progress.version}"
    positions = dict(progress.positions)
    fields = {"pipeline": name, "positions": positions, "version": progress.version}
    say(fields, text, as_json=as_json)


@command(app)
def backfill(
    file: File,
    first: Annotated[
        int | None, typer.Option("--from", min=1, metavar="N", help="First position.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", min=1, metavar="N", help="Last position.")
    ] = None,
    from_time: Annotated[
        datetime | None, typer.Option(metavar="TIME", help="Only records from this time on (UTC).")
    ] = None,
    to_time: Annotated[
        datetime | None, typer.Option(metavar="TIME", help="Only records before this time (UTC).")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="Continue the backfill of this version."),
    ] = None,
    *,
    how: RunOptions,
) -> None:
    """Process a part of the sources again, into a new version of the output."""
    if version is not None and any(v is not None for v in (first, last, from_time, to_time)):
        raise typer.BadParameter("the backfill already has a range", param_hint="--version")
    pipeline = _load(file, how.name)
    from loomlog.spark.pipelines import rerun

    with connected_sync(how.cluster) as client:
        if version is not None:
            derived = rerun.continued(client, pipeline, version)
        else:
            extent = rerun.BackfillExtent(first, last, _utc(from_time), _utc(to_time))
            derived = rerun.backfill(client, pipeline, extent)
    _run(how, derived, once=True)


@letters_app.command("list")
def list_letters(
    name: PipelineName,
    count_max: Annotated[
        int, typer.Option("--max", "-n", min=1, metavar="N", help="Show the newest N.")
    ] = 100,
    log: Annotated[
        str | None,
        typer.Option(metavar="LOG", show_default="that of the pipeline", help="Where they are."),
    ] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show records that a pipeline could not process, and why."""
    from loomlog.spark.pipelines.letter_reader import dead_letters

    with connected_sync(cluster) as client:
        found = dead_letters(client, name, count_max, log)
        letters = [letter | _shown(letter.pop("value")) for letter in found]
    if as_json:
        print_json(letters)
    elif letters:
        show.print_letters(letters)
    else:
        print(f"{name} has no dead letters")


@command(letters_app, "replay")
def replay_letters(file: File, how: RunOptions) -> None:
    """Process dead letters again, with the current pipeline."""
    pipeline = _load(file, how.name)
    from loomlog.spark.pipelines import rerun

    with connected_sync(how.cluster) as client:
        replays = rerun.replays(client, pipeline)
    if not replays:
        print(f"there are no dead letters in {pipeline.dead_letters}")
    for derived in replays:
        _run(how, derived, once=True)


def _shown(value: bytes) -> dict[str, str]:
    from loomlog.console.entries import bytes_field

    return bytes_field("value", value)


def _show(cluster: str, name: str | None, metrics_file: Path | None, *, as_json: bool) -> None:
    from loomlog.spark.pipelines.status import as_fields, statuses, write_metrics

    with connected_sync(cluster) as client:
        pipelines = statuses(client, name)
    if metrics_file is not None:
        write_metrics(metrics_file, pipelines)
    if as_json:
        fields = [as_fields(each) for each in pipelines]
        print_json(fields if name is None else fields[0])
    elif pipelines:
        show.print_pipelines(pipelines)
        if name is not None:
            show.print_details(pipelines[0])
    else:
        print("no pipelines yet: run one with `loom pipeline run FILE`")


def _pause(cluster: str, name: str, *, wanted: bool, as_json: bool) -> None:
    from loomlog.spark.pipelines import store

    with connected_sync(cluster) as client:
        progress = store.pause(client, name, wanted=wanted)
    under_way = f"; unit {progress.unit.number} is finished first" if progress.unit else ""
    text = f"paused {name}{under_way}" if wanted else f"resumed {name}"
    say({"pipeline": name, "paused": progress.paused}, text, as_json=as_json)


def _load(file: Path, name: str | None) -> Pipeline:
    try:
        from loomlog.spark.pipelines.loader import load
    except ImportError as error:
        raise LoomError(f"PySpark is missing ({error}): pip install 'loomlog[spark]'") from None
    return load(file, name)


def _run(
    how: RunOptions, pipeline: Pipeline, *, once: bool, metrics_file: Path | None = None
) -> None:
    from loomlog.spark import Runner
    from loomlog.spark.pipelines.runner import Listener

    output = show.RunOutput(pipeline.name, as_json=how.as_json)
    with connected_sync(how.cluster):
        pass  # before Spark starts, which takes long
    spark = start_spark(
        f"loom pipeline {pipeline.name}", how.spark_master, _settings(how, pipeline)
    )
    try:
        with written_metrics(how.cluster, pipeline.name, metrics_file) as note:

            def committed(unit: Unit, progress: Progress) -> None:
                output.committed(unit, progress)
                note()

            listener = Listener(committed=committed, said=output.said)
            runner = Runner(pipeline, how.cluster, spark, site=how.site, listener=listener)
            with stopped_by_signals(runner), output.signs_of_life():
                output.ended(runner.run(once=once))
    finally:
        stop_spark(spark)


def _settings(how: RunOptions, pipeline: Pipeline) -> dict[str, str]:
    """Spark's default of 200 tasks after a shuffle is for clusters."""
    local = how.spark_master.startswith("local")
    partitions = {"spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2))}
    return (partitions if local else {}) | dict(pipeline.spark)


@contextmanager
def written_metrics(address: str, name: str, path: Path | None) -> Iterator[Callable[[], None]]:
    """Yield a function to call when the metrics of a pipeline have changed. They are also written
    at the end, when the pipeline no longer runs."""
    if path is None:
        yield lambda: None
        return
    from loomlog.spark.pipelines.status import statuses, write_metrics

    with connected_sync(address) as cluster:

        def write() -> None:
            write_metrics(path, statuses(cluster, name))

        try:
            yield write
        finally:
            with suppress(Retryable, NotFound):  # must not hide why the run failed
                write()


@contextmanager
def stopped_by_signals(runner: Runner) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the runner; from a thread, because Spark must not be called from a
    signal handler."""
    stopping: list[threading.Thread] = []

    def stop(*_: Any) -> None:
        stopping.append(threading.Thread(target=runner.stop, daemon=True))
        stopping[-1].start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for thread in stopping:
            thread.join()  # it talks to Spark, which is stopped next


def _utc(time: datetime | None) -> datetime | None:
    return time if time is None or time.tzinfo is not None else time.replace(tzinfo=UTC)
