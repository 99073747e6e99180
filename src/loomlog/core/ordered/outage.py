"""Predict what an `ordered` log loses while nodes are down. Pure.

A stream with a replica on a node that is down is sealed. If no other stream of the log runs, the
log gets a new one on the remaining nodes, provided that there are enough of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from loomlog.core.outage import PartOutage
from loomlog.types import NodeId, StreamId


class StreamCopies(NamedTuple):
    """A stream, and the nodes that have its entries."""

    stream_id: StreamId
    replicas: tuple[NodeId, ...]
    whole: frozenset[NodeId]  # those with every entry
    wanted: int  # number of replicas
    has_entries: bool
    takes_appends: bool


def outage(
    streams: Iterable[StreamCopies],
    away: Collection[NodeId],
    usable: Collection[NodeId],
    least: int | None,
) -> list[PartOutage]:
    """Return the outage of each stream. `usable` nodes could take a new stream. `least` is the
    number of replicas that appends need, None if this segment takes no appends."""
    streams = list(streams)
    stop = "" if least is None else _why_appends_stop(streams, away, usable, least)
    return [
        PartOutage(f"stream {stream.stream_id}", stream.wanted, _left(stream, away), stop)
        for stream in streams
    ]


def _left(stream: StreamCopies, away: Collection[NodeId]) -> int:
    return len(stream.whole.difference(away)) if stream.has_entries else stream.wanted


def _why_appends_stop(
    streams: list[StreamCopies], away: Collection[NodeId], usable: Collection[NodeId], least: int
) -> str:
    running = [stream for stream in streams if stream.takes_appends]
    if any(not set(stream.replicas).intersection(away) for stream in running):
        return ""
    left = set(usable).difference(away)
    if len(left) >= least:
        return ""
    return f"no stream is left that runs, and a new one needs {least} nodes of {len(left)}"
