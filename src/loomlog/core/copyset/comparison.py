"""Find copies that shards should have and do not, and store them there again. Pure.

A shard compares its records with the other shards of their copysets. Only records that are released
count: these are on all shards of their last wave, so what a shard lacks of them was lost without
notice. A copy of an earlier wave says nothing, which the whole nodeset is asked about.

To store a record again is what its sequencer did, once more; after its epoch was recovered, it is
what a donor does (rebuild/).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from loomlog.core.copyset.messages import (
    Delivered,
    LogState,
    NodeRequest,
    Read,
    Restore,
    Store,
    Stored,
)
from loomlog.core.copyset.procedures import Exchange, Steps, ask_each
from loomlog.core.copyset.record import Epoch, Kind, Lsn, Record, last_of
from loomlog.core.requests import Ask
from loomlog.limits import KIB, MIB
from loomlog.types import LogId, ShardId

READ_BYTES: Final = MIB  # of heads, in one answer
PART_BYTES: Final = 64 * KIB  # of heads, that are compared at once


class Comparison(NamedTuple):
    """A shard that compares its records with those of others."""

    log: LogId
    me: ShardId
    state: LogState
    others: frozenset[ShardId]  # that should have what copies say; not drained or rebuilt ones
    version: int  # of rebuilding


class Missing(NamedTuple):
    """A copy that a shard should have."""

    shard: ShardId
    first: Lsn
    restored: bool


@dataclass
class Compared:
    """The result of a comparison."""

    missing: list[Missing] = field(default_factory=list)
    silent: set[ShardId] = field(default_factory=set)  # they did not answer
    behind: set[ShardId] = field(default_factory=set)  # they do not show as much yet, or lost it

    @property
    def left(self) -> int:
        """The number of records and shards to compare again."""
        unrestored = sum(not each.restored for each in self.missing)
        return unrestored + len(self.silent | self.behind)

    def add(self, other: Compared) -> None:
        self.missing += other.missing
        self.silent |= other.silent
        self.behind |= other.behind


@dataclass
class _Heads:
    """The records that a shard shows."""

    next_lsn: Lsn  # it shows all below
    records: list[Record] = field(default_factory=list)
    trimmed: Lsn = 0
    lost_through: Epoch = 0

    def take(self, answer: Delivered) -> None:
        self.records += answer.records
        self.next_lsn = answer.next_lsn
        self.trimmed = max(self.trimmed, answer.trimmed)
        self.lost_through = max(self.lost_through, answer.lost_through)

    def at(self, head: Record) -> Record | None:
        """Return the last record that overlaps another."""
        index = bisect_right(self.records, head.last, key=lambda record: record.first)
        found = self.records[index - 1] if index else None
        return found if found is not None and found.last >= head.first else None

    def is_sure(self, head: Record) -> bool:
        """Return whether it tells of the place of a record."""
        return self.next_lsn > head.last and self.lost_through < head.epoch


def compare(this: Comparison, first: Lsn, last: Lsn) -> Steps[Compared]:
    """Compare the records of this shard in [first, last] with those of others, and let these have
    what they lack."""
    result = Compared()
    mine = (yield from _read(this.log, [this.me], first, last)).get(this.me)
    heads = [head for head in (mine.records if mine else ()) if _is_of_copyset(this, head)]
    if not heads:
        return result
    members = {shard for head in heads for shard in head.copyset}
    shards = this.others & members - {this.me}
    shown = yield from _read(this.log, shards, heads[0].first, heads[-1].last)
    result.silent = set(shards).difference(shown)
    for head in heads:
        lacking = _lacking(this.state, head, shown, result)
        stale = (yield from _is_stale(this, head, shown)) if lacking else True
        if stale is not True:
            missing = yield from _restore(this, head, lacking, shown)
            # If it may be stale and is refused, it may well not be needed.
            result.missing += [each for each in missing if each.restored or stale is False]
    return result


def compare_all(this: Comparison, *, newest: bool = False) -> Steps[Compared]:
    """Compare all records of this shard that are of recovered epochs, a part at a time. With
    `newest`, also those of other epochs that are released here."""
    result = Compared()
    first, recovered = this.state.trimmed + 1, last_of(this.state.last_clean)
    last = last_of(this.state.epoch) if newest else recovered
    while first <= last:
        read = Read(this.log, first, last, PART_BYTES, everything=True, batches=False)
        mine = (yield from ask_each([this.me], read))[this.me]
        if not isinstance(mine, Delivered) or mine.next_lsn <= first:
            if first <= recovered:
                result.behind.add(this.me)
            break
        if mine.records:
            result.add((yield from compare(this, first, mine.next_lsn - 1)))
        first = mine.next_lsn
    return result


def _is_of_copyset(this: Comparison, head: Record) -> bool:
    """Return whether this shard should have a copy of a record. One that moved to other shards may
    have left one here, which does not know where the record is by now."""
    return (
        head.kind is Kind.DATA
        and head.last > this.state.trimmed
        and this.me in head.copyset
        and this.me in this.state.metadata_of(head.epoch).shards
    )


def _lacking(
    state: LogState, head: Record, shown: dict[ShardId, _Heads], result: Compared
) -> list[ShardId]:
    """Return the shards of the copyset of a record that do not have it. One that left the nodeset
    since need not."""
    lacking = []
    counted = set(state.metadata_of(head.epoch).shards).intersection(shown)
    for shard in head.copyset:
        if shard not in counted:
            continue
        if not shown[shard].is_sure(head):
            result.behind.add(shard)
        elif not _counts(shown[shard].at(head), head):
            lacking.append(shard)
    return lacking


def _counts(copy: Record | None, head: Record) -> bool:
    return copy is not None and copy.precedence >= head.precedence


def _is_stale(this: Comparison, head: Record, shown: dict[ShardId, _Heads]) -> Steps[bool | None]:
    """Return whether a newer wave or a recovery stored the record elsewhere, or it was trimmed;
    None: not known."""
    nodeset = this.state.metadata_of(head.epoch).shards
    unasked = [shard for shard in nodeset if shard not in shown and shard != this.me]
    others = shown | (yield from _read(this.log, unasked, head.first, head.last))
    copies = [each.at(head) for each in others.values()]
    if any(copy is not None and copy.precedence > head.precedence for copy in copies):
        return True
    if any(head.last <= each.trimmed for each in others.values()):
        return True
    are_sure = all(s in others and others[s].is_sure(head) for s in nodeset if s != this.me)
    return False if are_sure else None


def _restore(
    this: Comparison, head: Record, lacking: Sequence[ShardId], shown: dict[ShardId, _Heads]
) -> Steps[list[Missing]]:
    """Let shards have a record, unless another one of its copyset does so."""
    there = [
        shard
        for shard in head.copyset
        if shard == this.me or (shard in shown and _counts(shown[shard].at(head), head))
    ]
    end = this.state.end_of(head.epoch)
    if there[0] != this.me or (end is not None and head.offset > end.last):
        return []
    restored: Sequence[ShardId] = ()
    record = yield from _load(this, head)
    if record is not None:
        request: NodeRequest = Store(this.log, record)
        if end is not None:
            request = Restore(this.log, record, end, this.version)
        answers = yield from ask_each(lacking, request)
        restored = [shard for shard in lacking if isinstance(answers[shard], Stored)]
    return [Missing(shard, head.first, shard in restored) for shard in lacking]


def _load(this: Comparison, head: Record) -> Steps[Record | None]:
    read = Read(this.log, head.first, head.last, bytes_max=1, everything=True)
    answer = (yield from ask_each([this.me], read))[this.me]
    records = answer.records if isinstance(answer, Delivered) else ()
    return next((record for record in records if record._replace(batch=b"") == head), None)


def _read(
    log: LogId, shards: Iterable[ShardId], first: Lsn, last: Lsn
) -> Steps[dict[ShardId, _Heads]]:
    """Return all that each shard shows in [first, last], without batches; none of those that do
    not answer."""
    found = {shard: _Heads(first) for shard in sorted(shards)}
    unfinished = list(found)
    while unfinished:
        asks = [
            Ask(s, Read(log, found[s].next_lsn, last, READ_BYTES, everything=True, batches=False))
            for s in unfinished
        ]
        answers = yield Exchange(asks)
        asked, unfinished = unfinished, []
        for shard, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, Delivered):
                del found[shard]
                continue
            has_more = found[shard].next_lsn < answer.next_lsn <= last
            found[shard].take(answer)
            unfinished += [shard] if has_more else []
    return found
