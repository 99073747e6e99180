"""`loom pipeline …`: run pipelines, look at them, and change what they do."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loomlog.cli import pipeline_output as showing
from loomlog.cli.connection import connected_sync
from loomlog.cli.failures import UsageError
from loomlog.cli.output import bytes_field, print_json
from loomlog.cli.spark_session import start_spark, stop_spark
from loomlog.errors import LoomError, NotFound

if TYPE_CHECKING:
    from loomlog import BlockingCluster
    from loomlog.spark import Pipeline, Runner
    from loomlog.spark.pipelines.units import Progress


@dataclass(frozen=True, slots=True)
class Run:
    """How pipelines are run by a command."""

    address: str
    site: str | None
    spark_master: str
    metrics_file: Path | None
    as_json: bool


def run(how: Run, file: Path, name: str | None, *, once: bool) -> None:
    _run(how, _load(file, name), once=once)


def backfill(
    how: Run, file: Path, name: str | None, extent: tuple[Any, ...], version: int | None
) -> None:
    pipeline = _load(file, name)
    from loomlog.spark.pipelines import again

    first, last, from_time, to_time = extent
    with connected_sync(how.address) as cluster:
        if version is not None:
            derived = again.continued(cluster, pipeline, version)
        else:
            wanted = again.Extent(first, last, _utc(from_time), _utc(to_time))
            derived = again.backfill(cluster, pipeline, wanted)
    _run(how, derived, once=True)


def replay(how: Run, file: Path, name: str | None) -> None:
    pipeline = _load(file, name)
    from loomlog.spark.pipelines import again

    with connected_sync(how.address) as cluster:
        found = again.replays(cluster, pipeline)
    if not found:
        print(f"there are no dead letters in {pipeline.dead_letters}")
    for derived in found:
        _run(how, derived, once=True)


def status(address: str, name: str | None, metrics_file: Path | None, *, as_json: bool) -> None:
    from loomlog.spark.pipelines import metrics
    from loomlog.spark.pipelines.status import as_fields, statuses

    with connected_sync(address) as cluster:
        found = statuses(cluster, name)
    if metrics_file is not None:
        metrics.write(metrics_file, found)
    if as_json:
        fields = [as_fields(each) for each in found]
        print_json(fields if name is None else fields[0])
    elif found:
        showing.print_pipelines(found)
        if name is not None:
            showing.print_details(found[0])
    else:
        print("no pipelines yet: run one with `loom pipeline run FILE`")


def pause(address: str, name: str, *, wanted: bool, as_json: bool) -> None:
    from loomlog.spark.pipelines import operations

    with connected_sync(address) as cluster:
        progress = operations.pause(cluster, name, wanted=wanted)
    if as_json:
        print_json({"pipeline": name, "paused": progress.paused})
    elif not wanted:
        print(f"resumed {name}")
    else:
        under_way = f"; unit {progress.unit.number} is finished first" if progress.unit else ""
        print(f"paused {name}{under_way}")


def reset(address: str, name: str, to: str, *, same_output: bool, as_json: bool) -> None:
    from loomlog.spark.pipelines import operations

    if to not in ("earliest", "latest") and not (to.isascii() and to.isdigit() and int(to)):
        raise UsageError(f"--to {to}: give earliest, latest or a position from 1 on")
    wanted = int(to) if to.isdigit() else to
    with connected_sync(address) as cluster:
        progress = operations.reset(cluster, name, wanted, same_output=same_output)
    if as_json:
        positions = dict(progress.positions)
        print_json({"pipeline": name, "positions": positions, "version": progress.version})
    else:
        behind = ", ".join(f"{log} at {at + 1}" for log, at in progress.positions.items())
        print(f"reset {name}: goes on with {behind}, into version {progress.version}")


def list_letters(
    address: str, name: str, log: str | None, count_max: int, *, as_json: bool
) -> None:
    from loomlog.spark.pipelines.store import ProgressStore

    with connected_sync(address) as cluster:
        known = ProgressStore(cluster, name).load().definition.get("dead_letters")
        found = list(_letters(cluster, log or known or f"{name}.dead-letters", count_max))
    if as_json:
        print_json(found)
    elif found:
        showing.print_letters(found)
    else:
        print(f"{name} has no dead letters")


def _letters(cluster: BlockingCluster, name: str, count_max: int) -> Iterator[dict[str, Any]]:
    log = cluster.log(name)
    try:
        first, last = log.earliest(), log.tail()
    except NotFound:
        return
    first = max(first, last - count_max + 1)
    if first > last:
        return
    for entry in log.subscribe(first, last):
        letter = json.loads(entry.value)
        value = base64.b64decode(letter.pop("value"))
        yield {"letter": entry.position, **letter, **bytes_field("value", value)}


def _load(file: Path, name: str | None) -> Pipeline:
    try:
        from loomlog.spark.pipelines.loading import load
    except ImportError as error:
        raise LoomError(f"PySpark is missing ({error}): pip install 'loomlog[spark]'") from None
    return load(file, name)


def _run(how: Run, pipeline: Pipeline, *, once: bool) -> None:
    from loomlog.spark import Runner
    from loomlog.spark.pipelines.runner import Listener

    told = showing.Told(pipeline.name, as_json=how.as_json)
    with connected_sync(how.address):
        pass  # before Spark takes its time
    spark = start_spark(
        f"loom pipeline {pipeline.name}", how.spark_master, _settings(how, pipeline)
    )
    try:
        with _metrics(how, pipeline.name) as note:

            def committed(unit: Any, progress: Progress) -> None:
                told.committed(unit, progress)
                note()

            listener = Listener(committed=committed, said=told.said)
            runner = Runner(pipeline, how.address, spark, site=how.site, listener=listener)
            with stopped_by_signals(runner):
                told.ended(runner.run(once=once))
    finally:
        stop_spark(spark)


def _settings(how: Run, pipeline: Pipeline) -> dict[str, str]:
    """Spark's default of 200 tasks after a shuffle is for clusters."""
    local = how.spark_master.startswith("local")
    partitions = {"spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2))}
    return (partitions if local else {}) | dict(pipeline.spark)


@contextmanager
def _metrics(how: Run, name: str) -> Iterator[Any]:
    """Something to call when the figures have changed."""
    path = how.metrics_file
    if path is None:
        yield lambda: None
        return
    from loomlog.spark.pipelines import metrics
    from loomlog.spark.pipelines.status import statuses

    with connected_sync(how.address) as cluster:
        yield lambda: metrics.write(path, statuses(cluster, name))


@contextmanager
def stopped_by_signals(runner: Runner) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the runner; from a thread, for Spark does not like to be called from
    a signal handler."""
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
