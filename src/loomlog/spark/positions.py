"""Resolves where a read starts to a position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loomlog.errors import NotFound
from loomlog.spark.options import Committed, Start
from loomlog.spark.pipelines.store import ProgressStore
from loomlog.types import Glsn

if TYPE_CHECKING:
    from loomlog.client.blocking import BlockingCluster, BlockingLog


def first_position(cluster: BlockingCluster, log: BlockingLog, start: Start) -> Glsn:
    """The first position to read; above the tail, if only what comes is wanted."""
    if start == "earliest":
        return log.earliest()
    if start == "latest":
        return log.tail() + 1
    if isinstance(start, Committed):
        return committed_position(cluster, start.pipeline, log.name) + 1
    return start


def committed_position(cluster: BlockingCluster, pipeline: str, log: str) -> Glsn:
    """The last position of `log` that the pipeline has committed."""
    positions = ProgressStore(cluster, pipeline).load().positions
    if log not in positions:
        raise NotFound(f"pipeline {pipeline!r} does not read log {log!r}: {', '.join(positions)}")
    return positions[log]
