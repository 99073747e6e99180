"""Describe what is not as it should be with a copyset log. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from loomlog.core.conditions import Condition, Kind, Shortage, under_replicated
from loomlog.core.copyset.log_state import awaited, is_recovered, short_epochs
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import shard_name
from loomlog.core.copyset.record import Epoch, Lsn, epoch_of, offset_of
from loomlog.core.copyset.upkeep import (
    copies_of,
    losses,
    unreadable,
    unrecovered,
    why_appends_wait,
)
from loomlog.types import ShardId, StreamId


@dataclass(frozen=True, slots=True)
class LogView:
    """A log, its nodes, and what its upkeep does."""

    log: str
    stream: StreamId
    state: LogState
    tail: Lsn  # as far as it is known
    is_tail_known: bool  # but for the most recent entries
    alive: Collection[ShardId]
    lost: Mapping[ShardId, Epoch]  # shards that lost copies, and up to which epoch
    refusing: Mapping[ShardId, str]  # shards that take no copies, and why
    failing: Mapping[ShardId, str]  # those of them that cannot take part in a recovery
    reason: str  # for another epoch
    trouble: str
    sizes: Mapping[ShardId, int] = field(default_factory=dict)  # bytes that shards store, as known
    lossy: Collection[Epoch] = ()  # those of which something may be lost
    restored: Collection[ShardId] = ()  # shards that lost copies and have all that are left again

    def of(self, kind: Kind, text: str) -> Condition:
        return Condition(kind, text, log=self.log, stream=self.stream)


def conditions(view: LogView) -> list[Condition]:
    shortages = list(_shortages(view))
    lost = [view.of(Kind.DATA_LOST, text) for text in losses(view.state, view.lost, view.lossy)]
    return [*under_replicated(view.log, shortages), *_waits(view), *lost, *_work(view)]


def _shortages(view: LogView) -> Iterator[Shortage]:
    short, found = set(short_epochs(view.state)), 0
    for epoch in _epochs(view.state):
        shards = view.state.metadata_of(epoch).shards
        lost = [shard for shard in shards if view.lost.get(shard, 0) >= epoch]
        away = [s for s in shards if s not in view.alive and (s not in lost or s in view.restored)]
        emptied = [shard for shard in lost if shard not in view.restored]
        reasons = [f"node {shard_name(shard)} lost its copies" for shard in emptied]
        reasons += [f"node {shard_name(shard)} is away" for shard in away]
        if epoch in short:
            reasons.append(copies_of(view.state.metadata_of(epoch)))
        records = _records(view, epoch)
        # An epoch of which nothing was reported yet does not make the others unknown.
        if reasons and not (found and records is None and _is_unused(view, epoch)):
            found += records or 0
            yield Shortage(records, _bytes(view, epoch), reasons)


def _is_unused(view: LogView, epoch: Epoch) -> bool:
    """Return whether nothing was appended in an epoch, but for the most recent entries."""
    return view.is_tail_known and epoch == view.state.epoch


def _epochs(state: LogState) -> list[Epoch]:
    """Return the epochs that may have entries that are not trimmed."""
    recovered = [end.epoch for end in state.ends if end.last or not end.exact]
    newest = state.epoch + (not state.closed)  # a closed log takes nothing in its last epoch
    epochs = (*recovered, *range(state.last_clean + 1, newest))
    return [epoch for epoch in epochs if epoch >= epoch_of(state.trimmed)]


def _records(view: LogView, epoch: Epoch) -> int | None:
    """Return how many positions of an epoch are not trimmed; None if that is not known."""
    state, end = view.state, view.state.end_of(epoch)
    told = offset_of(view.tail) if epoch_of(view.tail) == epoch else 0
    last = max(told, state.acknowledged_in(epoch).last) if end is None else end.last
    trimmed = offset_of(state.trimmed) if epoch_of(state.trimmed) == epoch else 0
    return max(last - trimmed, 0) if last else None


def _bytes(view: LogView, epoch: Epoch) -> int | None:
    """Return about how large the entries of an epoch are, by their number; None: not known. Every
    entry has R copies on some shards of its nodeset, so those that are away have as much on average
    as the others."""
    state = view.state
    known = [size for shard, size in view.sizes.items() if not view.lost.get(shard)]
    counts = {each: _records(view, each) for each in _epochs(state)}
    entries, records = sum(count or 0 for count in counts.values()), counts[epoch]
    is_unknown = any(n is None and not _is_unused(view, each) for each, n in counts.items())
    if not known or not entries or records is None or is_unknown:
        return None
    stored = sum(known) / len(known) * len(state.all_shards)
    return round(stored / state.metadata_of(epoch).replication * records / entries)


def _waits(view: LogView) -> Iterator[Condition]:
    state = view.state
    if not state.closed and (text := why_appends_wait(state, view.alive, view.refusing)):
        yield view.of(Kind.APPENDS_WAIT, text)
    if not is_recovered(state):
        waits = awaited(state, set(view.alive).difference(view.failing), state.epoch - 1)
        kind = Kind.READS_WAIT if waits else Kind.NOT_RECOVERED
        yield view.of(kind, unrecovered(state, view.alive, view.failing))
        if waits:
            return
    used = [epoch for epoch in _epochs(state) if _records(view, epoch) != 0]
    if text := unreadable(state, used, view.alive, view.lost):
        yield view.of(Kind.READS_WAIT, text)


def _work(view: LogView) -> Iterator[Condition]:
    words = [f"gets a new epoch: {view.reason}"] if view.reason else []
    words += [view.trouble] if view.trouble else []
    if words:
        yield view.of(Kind.REPAIR, "; ".join(words))
