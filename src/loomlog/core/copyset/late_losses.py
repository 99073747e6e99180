"""Note losses that are known only after the recovery of an epoch. Pure.

Two know what was acknowledged when the disks that recovery asked have forgotten it: a node that was
absent, and the writer (evidence.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Final

from loomlog.core.copyset import evidence
from loomlog.core.copyset.evidence import with_forgotten, with_loss
from loomlog.core.copyset.messages import EpochEnd, LogState, Miss
from loomlog.core.copyset.record import Epoch, Lsn, Offset, epoch_of, make, offset_of
from loomlog.types import ShardId

FORGOTTEN_MAX: Final = 512  # ranges in one report of a writer; fits a frame's header


def miss(state: LogState, request: Miss) -> LogState:
    """Note what was acknowledged in a recovered epoch, as an absent node knows."""
    end = next((end for end in state.ends if end.epoch == request.epoch), None)
    return state if end is None else _with_end(state, with_loss(end, request.lng))


def absent_shards(state: LogState) -> list[ShardId]:
    """Return the shards that have not said yet what they know of recoveries without them."""
    return sorted({shard for end in state.ends for shard in end.absent})


def heard(state: LogState, shard: ShardId, through: Epoch) -> LogState:
    """Note that a shard has said what it knows of the epochs up to one."""
    ends = tuple(
        replace(end, absent=tuple(each for each in end.absent if each != shard))
        if end.epoch <= through and shard in end.absent
        else end
        for end in state.ends
    )
    return replace(state, ends=ends)


def forgotten(state: LogState, ranges: Iterable[tuple[Lsn, Lsn]]) -> LogState:
    """Note what was acknowledged in recovered epochs, as its writer knows. What is not recovered
    yet, or trimmed, is ignored."""
    for epoch, offsets in _by_epoch(state, ranges).items():
        if (end := state.end_of(epoch)) is not None:
            state = _with_end(state, with_forgotten(end, offsets))
    return state


def revealing(state: LogState, ranges: Iterable[tuple[Lsn, Lsn]]) -> Iterator[tuple[Lsn, Lsn]]:
    """Yield the ranges each of which `forgotten` would note, as far as it would."""
    for epoch, offsets in _by_epoch(state, ranges).items():
        if (end := state.end_of(epoch)) is not None:
            found = evidence.revealing(end, offsets)
            yield from ((make(epoch, first), make(epoch, last)) for first, last in found)


def _by_epoch(
    state: LogState, ranges: Iterable[tuple[Lsn, Lsn]]
) -> dict[Epoch, list[tuple[Offset, Offset]]]:
    """Return ranges by epoch, without those that are trimmed."""
    by_epoch: dict[Epoch, list[tuple[Offset, Offset]]] = {}
    first_epoch = max(state.history[0].since, epoch_of(state.trimmed))
    for first, last in ranges:
        epoch, first = epoch_of(first), max(first, state.trimmed + 1)
        if epoch == epoch_of(last) >= first_epoch and first <= last:
            by_epoch.setdefault(epoch, []).append((offset_of(first), offset_of(last)))
    return by_epoch


def _with_end(state: LogState, end: EpochEnd) -> LogState:
    """Replace the end of an epoch by one with a loss. The end of a closed log stays where it is:
    the next segment may begin behind it."""
    if end == state.end_of(end.epoch):
        return state
    tail = state.tail if state.closed else max(state.tail, end.tail)
    others = [each for each in state.ends if each.epoch != end.epoch]
    ends = sorted([*others, end], key=attrgetter("epoch"))
    return replace(state, ends=tuple(ends), tail=tail)
