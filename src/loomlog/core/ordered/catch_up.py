"""Decide what a stream has become since metadata was copied. Pure; see core/catch_up.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loomlog.core.catch_up import Unknowable
from loomlog.types import NodeId, ReplicaState, Report


class Stream(NamedTuple):
    """The replicas of a stream, and the epoch that they are in."""

    replicas: tuple[NodeId, ...]
    epoch: int
    sealed: bool


def newest_stream(known: Stream | None, reports: Mapping[NodeId, Report]) -> Stream | Unknowable:
    """Return a stream as the nodes know it. A change of its replicas seals it, and a seal raises
    the epoch of every replica that stays: those of the highest epoch are its replicas."""
    epoch = max((report.epoch for report in reports.values()), default=0)
    if known is not None and known.epoch >= epoch and not (known.sealed and known.epoch == epoch):
        return known
    there = tuple(node for node, report in reports.items() if report.epoch == epoch)
    if not there:
        return known or Unknowable("no node has anything of it")
    before = known.replicas if known is not None else ()
    kept = tuple(node for node in before if node in there)
    replicas = (*kept, *sorted(set(there).difference(kept)))
    running = any(reports[node].state is ReplicaState.RUNNING for node in there)
    return Stream(replicas, epoch, not running)
