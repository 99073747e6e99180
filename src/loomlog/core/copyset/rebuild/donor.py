"""A donor scans its copies of a log and restores the records that a rebuilt shard had. Pure.

For each record: store it on new shards, then let all copies name the new copyset, its own last. A
new shard may have had a copy already, which keeps its copyset until then. So a copy names only
shards that have the record, or that are rebuilt. A shard that is refilled gets its own copies
again: it is asked for each whether it has it.

The first scan covers the records that are this donor's task. When all donors have finished it, the
second covers every copy that still names a rebuilt shard: an interrupted change may have left
copies that disagree on whose task it is. What could not be done is left for the next scan; the
driver repeats it, and limits how fast it runs.

While most records are due, a scan reads them with their batches, and restores many at once: each
step waits for disks. Otherwise it reads heads, and the batches of the few that are due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from loomlog.core import requests
from loomlog.core.copyset.log_state import short_epochs
from loomlog.core.copyset.messages import (
    Delivered,
    EpochEnd,
    LogState,
    NodeAnswer,
    NodeRequest,
    NotHere,
    Read,
    Reassign,
    Restore,
    Stored,
    Superseded,
)
from loomlog.core.copyset.nodeset import EpochMetadata
from loomlog.core.copyset.rebuild.plan import Part, choose_targets, donor_of, gone_at, parts
from loomlog.core.copyset.rebuild.restore import RestoreRequest
from loomlog.core.copyset.record import Epoch, Kind, Lsn, Record, last_of, make
from loomlog.core.requests import Ask, Lost, Outcome
from loomlog.limits import MIB
from loomlog.types import Buffer, LogId, ShardId

DonorAsk: TypeAlias = Ask[ShardId, NodeRequest]
DonorAnswer: TypeAlias = NodeAnswer | Lost
Steps: TypeAlias = requests.Steps[Sequence[DonorAsk], Sequence[DonorAnswer], Outcome]

SCAN_BYTES: Final = MIB  # of heads, or of records, in one answer
TOGETHER: Final = 256  # records that are restored at once, if their batches were scanned
READ_TOGETHER: Final = 16  # the same, if each batch is read by itself, however large


class RebuildOrder(NamedTuple):
    """The part of one donor in one version, for one log."""

    log: LogId
    version: int
    me: ShardId
    through: Mapping[ShardId, Epoch]  # see plan.py
    absent: frozenset[ShardId]  # of these shards, those that lack what they had
    usable: frozenset[ShardId]  # may get copies


@dataclass
class Scan:
    """The result of a scan, which grows while it runs."""

    records: Counter[ShardId] = field(default_factory=Counter)  # restored, by rebuilt shard
    size_bytes: Counter[ShardId] = field(default_factory=Counter)
    left: int = 0  # could not be restored, or not be looked at yet
    superseded: int = 0  # the version to start again with; 0: none


@dataclass
class _Sent:
    """The batch of a record, and the number of copies that were sent."""

    batch: Buffer  # empty until it is read
    copies: int = 0

    @property
    def size_bytes(self) -> int:
        return len(self.batch) * self.copies


def scan(order: RebuildOrder, state: LogState, scans: int, result: Scan) -> Steps[None]:
    """Restore all records that are due in a scan: the first (1) or the second (2). `state` is the
    log's newest."""
    donor = _Donor(order, state, is_second=scans > 1, result=result)
    for part in parts(state, order.through):
        if part.last > state.last_clean:
            result.left += 1  # wait until it is recovered
        elif order.me in part.metadata.shards and not result.superseded:
            yield from donor.scan_part(part, max(make(part.first, 1), state.trimmed + 1))


def fill(order: RebuildOrder, state: LogState, result: Scan) -> Steps[None]:
    """Complete the records of recovered epochs that are on short copysets which this shard belongs
    to: they are on every shard of these. `state` is the log's newest."""
    donor = _Donor(order, state, is_second=True, result=result)
    for epoch in short_epochs(state):
        metadata = state.metadata_of(epoch)
        is_here = any(order.me in short for short in metadata.short)
        if is_here and epoch <= state.last_clean and not result.superseded:
            part = Part(metadata._replace(short=()), epoch, epoch)
            yield from donor.scan_part(part, max(make(epoch, 1), state.trimmed + 1))


class _Donor:
    def __init__(
        self, order: RebuildOrder, state: LogState, *, is_second: bool, result: Scan
    ) -> None:
        self._order = order
        self._state = state
        self._is_second = is_second
        self._result = result
        self._are_most_due = not is_second  # of those seen last

    def scan_part(self, part: Part, first: Lsn) -> Steps[None]:
        last = last_of(part.last) - 1
        while first <= last:
            answer = yield from self._scan(first, last)
            if answer is None or answer.next_lsn <= first:
                self._result.left += 1  # later epochs are not released here yet
                return
            due = [record for record in answer.records if self._is_due(record, part.metadata)]
            at_once = TOGETHER if self._are_most_due else READ_TOGETHER
            for index in range(0, len(due), at_once):
                some = due[index : index + at_once]
                yield from _together([self._restore(record, part.metadata) for record in some])
                if self._result.superseded:
                    return
            self._are_most_due = len(due) * 2 > len(answer.records)
            first = answer.next_lsn

    def _scan(self, first: Lsn, last: Lsn) -> Steps[Delivered | None]:
        """Return records if most are due, otherwise heads."""
        me = self._order.me
        if self._are_most_due:
            answer = yield from self._read(me, first, last, batches=True)
            if answer is None or not answer.damaged:
                return answer
            last = answer.next_lsn - 1  # other shards have the batches that are damaged here
            self._are_most_due = False
        return (yield from self._read(me, first, last, batches=False))

    def _is_due(self, head: Record, metadata: EpochMetadata) -> bool:
        gone = gone_at(head.epoch, self._order.through)
        if gone.isdisjoint(head.copyset) and metadata.can_hold_a_copyset(head.copyset):
            return False
        absent = gone & self._order.absent
        donor = donor_of(head.copyset, head.first, absent)
        return self._is_second or donor == self._order.me

    def _restore(self, record: Record, metadata: EpochMetadata) -> Steps[None]:
        order, old = self._order, record.copyset
        head, sent = record._replace(batch=b""), _Sent(record.batch)
        end = self._state.end_of(head.epoch)
        lost = gone_at(head.epoch, order.through).intersection(old)
        # One that left the nodeset was rebuilt while this shard was away. (If it joined just now,
        # the record gets a copy too many.)
        kept = set(metadata.shards).intersection(old) - lost
        avoided: set[ShardId] = set()
        while end is not None:
            targets = choose_targets(old, kept, metadata, order.usable - avoided)
            if targets is None:
                break
            head = head._replace(copyset=tuple(sorted(kept.union(targets))))
            failed = yield from self._store(head, end, targets, old, kept, sent)
            missing: set[ShardId] | None = set()
            if not failed:
                new = set(targets).difference(old)
                missing = yield from self._reassign(head, kept.union(new) - {order.me})
            if self._result.superseded or missing is None:
                break
            avoided |= failed.union(missing.intersection(targets))
            kept -= missing
            if failed or missing:
                continue
            if head.copyset != old and (yield from self._reassign(head, {order.me})) is None:
                break
            self._count(lost, sent)
            return
        self._result.left += 1

    def _count(self, lost: Collection[ShardId], sent: _Sent) -> None:
        for shard in lost if sent.copies else ():
            self._result.records[shard] += 1
            self._result.size_bytes[shard] += sent.size_bytes

    def _store(
        self,
        head: Record,
        end: EpochEnd,
        targets: Collection[ShardId],
        old: Collection[ShardId],
        kept: Collection[ShardId],
        sent: _Sent,
    ) -> Steps[set[ShardId]]:
        """Let the targets have the record. Return those that did not take it. Targets of the old
        copyset may have it already; they come last, since their copies then name all others."""
        new = [shard for shard in targets if shard not in old]
        failed = yield from self._send(head, end, new, kept, sent)
        again = [shard for shard in targets if shard in old]
        if failed or not again or self._result.superseded:
            return failed
        reassign = Reassign(self._order.log, head, self._order.version)
        answers = yield from self._ask(again, reassign)
        lacking = [shard for shard, answer in answers.items() if isinstance(answer, NotHere)]
        silent = {s for s, answer in answers.items() if not isinstance(answer, Stored | NotHere)}
        return silent | (yield from self._send(head, end, lacking, kept, sent))

    def _send(
        self,
        head: Record,
        end: EpochEnd,
        targets: Collection[ShardId],
        kept: Collection[ShardId],
        sent: _Sent,
    ) -> Steps[set[ShardId]]:
        if not targets:
            return set()
        if head.kind is Kind.DATA and not sent.batch:
            sent.batch = yield from self._load(head, kept)
            if not sent.batch:
                return set(targets)
        sent.copies += len(targets)
        record = head._replace(batch=sent.batch)
        restore = Restore(self._order.log, record, end, self._order.version)
        answers = yield from self._ask(targets, restore)
        return {shard for shard, answer in answers.items() if not isinstance(answer, Stored)}

    def _reassign(self, head: Record, shards: Collection[ShardId]) -> Steps[set[ShardId] | None]:
        """Let copies name the new copyset. Return the shards without a copy; None: some did not
        answer."""
        if not shards:
            return set()
        answers = yield from self._ask(shards, Reassign(self._order.log, head, self._order.version))
        if not all(isinstance(answer, Stored | NotHere) for answer in answers.values()):
            return None
        return {shard for shard, answer in answers.items() if isinstance(answer, NotHere)}

    def _ask(
        self, shards: Collection[ShardId], request: RestoreRequest
    ) -> Steps[dict[ShardId, DonorAnswer]]:
        order = sorted(shards)
        answers = yield [Ask(shard, request) for shard in order]
        newer = [answer.version for answer in answers if isinstance(answer, Superseded)]
        self._result.superseded = max([self._result.superseded, *newer])
        return dict(zip(order, answers, strict=True))

    def _load(self, head: Record, kept: Collection[ShardId]) -> Steps[Buffer]:
        """Return the record's batch, from here, or, if this copy is damaged, another. It is empty
        if none can be read."""
        me = self._order.me
        for shard in [me, *sorted(set(kept) - {me})]:
            answer = yield from self._read(shard, head.first, head.last, batches=True)
            for record in answer.records if answer else ():
                if (record.first, record.count, record.kind) == (head.first, head.count, head.kind):
                    return record.batch
        return b""

    def _read(
        self, shard: ShardId, first: Lsn, last: Lsn, *, batches: bool
    ) -> Steps[Delivered | None]:
        read = Read(self._order.log, first, last, SCAN_BYTES, everything=True, batches=batches)
        [answer] = yield [Ask(shard, read)]
        return answer if isinstance(answer, Delivered) else None


def _together(several: Iterable[Steps[None]]) -> Steps[None]:
    """Take the steps of all at once."""
    waiting = [(steps, asks) for steps in several if (asks := _next(steps, None)) is not None]
    while waiting:
        answers = iter((yield [ask for _, asks in waiting for ask in asks]))
        waiting = [
            (steps, following)
            for steps, asks in waiting
            if (following := _next(steps, [*islice(answers, len(asks))])) is not None
        ]


def _next(steps: Steps[None], answers: Sequence[DonorAnswer] | None) -> Sequence[DonorAsk] | None:
    try:
        return next(steps) if answers is None else steps.send(answers)
    except StopIteration:
        return None
