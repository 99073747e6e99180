"""Derives pipelines that process a range again into a new version of the output, or dead letters.

A derived pipeline has its own progress, lease and end. So the original one continues meanwhile, and
a derived one that is killed can be resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from loomlog.errors import InvalidArgument, NotFound
from loomlog.spark.pipelines import units
from loomlog.spark.pipelines.definition import ROWS, Letters, Pipeline, Rerun
from loomlog.spark.pipelines.log_output import LogOutput
from loomlog.spark.pipelines.store import ProgressStore, last_epoch
from loomlog.spark.pipelines.units import Progress
from loomlog.types import Glsn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from loomlog.client.blocking import BlockingCluster


@dataclass(frozen=True, slots=True)
class BackfillExtent:
    """The range to process again; None: from the first, or to the current last entry."""

    first: Glsn | None = None
    last: Glsn | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None


def backfill(cluster: BlockingCluster, pipeline: Pipeline, extent: BackfillExtent) -> Pipeline:
    """Return a pipeline that processes `extent` into a new version of the output."""
    if len(pipeline.sources) > 1 and (extent.first or extent.last):
        raise InvalidArgument("positions are of one log, this pipeline has several: give times")
    if extent.from_time and extent.to_time and extent.from_time >= extent.to_time:
        raise InvalidArgument(f"{extent.from_time} is not before {extent.to_time}")
    behind = {log: _first(cluster, log, extent) - 1 for log in pipeline.logs}
    ends = {log: _last(cluster, log, extent) for log in pipeline.logs}
    for log, end in ends.items():
        if extent.first is not None and extent.first > end:
            raise InvalidArgument(
                f"from {extent.first} to {end} there is no position of log {log!r}"
            )
    epoch = last_epoch(cluster, pipeline.name)
    store = ProgressStore(cluster, pipeline.name)
    version = store.change(lambda now: units.new_version(now, epoch)).versions
    again = _version(pipeline, version, extent)
    progress = Progress(again.summary(), behind, ends=ends, version=version, versions=version)
    ProgressStore(cluster, again.name).create(progress)
    return again


def continued(cluster: BlockingCluster, pipeline: Pipeline, version: int) -> Pipeline:
    """Return the interrupted backfill into this version."""
    found = ProgressStore(cluster, f"{pipeline.name}@{version}").load().definition
    from_time, to_time = (_time(found.get(name)) for name in ("from_time", "to_time"))
    return _version(pipeline, version, BackfillExtent(from_time=from_time, to_time=to_time))


def replays(cluster: BlockingCluster, pipeline: Pipeline) -> list[Pipeline]:
    """Return pipelines that process all dead letters of the output's version that were not
    processed again yet.

    For a stateless pipeline, they pass through its function to its output. For a stateful one, they
    are appended to their source again, because the state is only applied there."""
    letters = pipeline.dead_letters
    try:
        tail = cluster.log(letters).tail()
    except NotFound:
        return []
    version = ProgressStore(cluster, pipeline.name).load().version
    if not pipeline.stateful:
        found = [_replay(pipeline, f"{pipeline.name}@dead-letters", version, pipeline.log)]
    else:
        found = [_return(pipeline, version, log) for log in pipeline.logs]
    into = 1 if pipeline.stateful else version
    for again in found:
        store = ProgressStore(cluster, again.name)
        store.create(Progress(again.summary(), {letters: 0}, ends={letters: tail}, version=into))
        store.change(lambda now: units.extended(now, {letters: tail}, into))
    return found


def _version(pipeline: Pipeline, version: int, extent: BackfillExtent) -> Pipeline:
    return replace(
        pipeline,
        name=f"{pipeline.name}@{version}",
        rerun=Rerun(extent.from_time, extent.to_time),
        checkpoint=pipeline.checkpoint and f"{pipeline.checkpoint}.v{version}",
        heartbeat_s=None,
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _first(cluster: BlockingCluster, log: str, extent: BackfillExtent) -> Glsn:
    return cluster.log(log).earliest() if extent.first is None else extent.first


def _last(cluster: BlockingCluster, log: str, extent: BackfillExtent) -> Glsn:
    tail = cluster.log(log).tail()
    if extent.last is not None and extent.last > tail:
        raise InvalidArgument(f"position {extent.last} of log {log!r} is not written yet: {tail}")
    return tail if extent.last is None else extent.last


def _replay(pipeline: Pipeline, name: str, version: int, log: str, **changes: Any) -> Pipeline:
    letters = pipeline.dead_letters
    settings: Mapping[str, Any] = {
        "sources": {ROWS: letters},
        "decode": {letters: pipeline.decode[log]},
        "schemas": {letters: pipeline.schemas[log]},
        "rerun": Rerun(letters=Letters(pipeline.name, version, log)),
    }
    return replace(pipeline, name=name, **{**settings, **changes})


def _return(pipeline: Pipeline, version: int, log: str) -> Pipeline:
    letters = pipeline.dead_letters
    digest = blake2b(log.encode(), digest_size=4).hexdigest()
    return _replay(
        pipeline,
        f"{pipeline.name}@dead-letters-{digest}",
        version,
        log,
        function=_as_it_was,
        output=LogOutput(log),
        decode={letters: "raw"},
        schemas={letters: ""},
        stateful=False,
        checkpoint="",
        watermarks={},
        heartbeat_s=None,
    )


def _as_it_was(rows: DataFrame) -> DataFrame:
    return rows.select("value", "key", "timestamp")
