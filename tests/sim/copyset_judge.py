"""What must hold of a copyset log, judged while a simulation runs."""

from __future__ import annotations

from typing import NamedTuple

from loomlog.core.copyset.lsn import Epoch, Lsn, epoch_of, words
from loomlog.core.copyset.reader_words import GapKind
from loomlog.core.copyset.record import Kind, Record


class Violation(Exception):  # noqa: N818 - it says what it is
    pass


class Void(NamedTuple):
    first: Lsn
    last: Lsn
    kind: Kind


class Judge:
    """Knows all that was given out, acknowledged and seen."""

    def __init__(self, *, losses: bool) -> None:
        """`losses`: so many nodes may lose their disks that records are lost."""
        self._losses = losses
        self.acknowledged: dict[Lsn, Record] = {}  # by their first LSN
        self.trimmed: Lsn = 0  # by some trim that began
        self.doubtful: set[Epoch] = set()  # too few nodes know of them, or did in recovery
        self.lost: set[Lsn] = set()  # no node that counts has a copy any more
        self.holes = 0
        self.losses_shown = 0
        self._floors: dict[int, Lsn] = {}  # what was acknowledged when an append began
        self.given_out: dict[Lsn, Record] = {}
        self._data: dict[Lsn, Record] = {}  # every LSN of what was seen
        self._voids: dict[Epoch, set[Void]] = {}

    # ---- writing

    def given(self, record: Record) -> None:
        """A sequencer gave its LSNs to a record."""
        other = self.given_out.setdefault(record.first, record)
        if other.batch != record.batch or other.count != record.count:
            raise Violation(f"{words(record.first)} was given to {other} and to {record}")

    def begins(self, append: int) -> None:
        self._floors[append] = max(self.acknowledged, default=0)

    def appended(self, lsn: Lsn, append: int) -> None:
        record = self.given_out[lsn]
        if lsn <= self._floors[append]:
            floor = words(self._floors[append])
            raise Violation(f"{words(lsn)} was acknowledged to an append that began behind {floor}")
        if lsn in self.acknowledged:
            raise Violation(f"{words(lsn)} was acknowledged twice")
        self.acknowledged[lsn] = record
        for void in self._voids.get(epoch_of(lsn), ()):
            self._check(record, void)

    # ---- reading: what anybody sees is so for everybody, for ever

    def seen(self, record: Record) -> None:
        if record.kind is Kind.DATA:
            self._seen_data(record)
        else:
            self._seen_void(Void(record.first, record.last, record.kind))

    def _seen_data(self, record: Record) -> None:
        if self._data.get(record.first) == record:
            return
        given = self.given_out.get(record.first)
        if given is None or (given.batch, given.count) != (record.batch, record.count):
            raise Violation(f"{words(record.first)} shows {record}; it was given to {given}")
        for lsn in range(record.first, record.last + 1):
            self._data[lsn] = record
        for void in self._voids.get(record.epoch, ()):
            self._check(record, void)

    def _seen_void(self, void: Void) -> None:
        known = self._voids.setdefault(epoch_of(void.first), set())
        if void in known:
            return
        for other in known:
            if other.kind is not void.kind and overlap(void, other):
                raise Violation(f"{words(void.first)} shows {other}, now {void}")
        known.add(void)
        self.holes += 1
        for record in [*self._data.values(), *self.acknowledged.values()]:
            self._check(record, void)

    def _check(self, record: Record, void: Void) -> None:
        if overlap(record, void):
            raise Violation(f"{words(record.first)} shows {record} and {void}")

    def gap(self, first: Lsn, last: Lsn, kind: GapKind) -> None:
        """A reader was told that there is nothing."""
        if kind is GapKind.TRIM:
            if last > self.trimmed:
                raise Violation(f"{words(last)} is said to be trimmed")
            return
        if kind is GapKind.DATALOSS:
            self.losses_shown += 1
            if not self._losses:
                raise Violation(f"[{words(first)}, {words(last)}] is said to be lost")
        for record in self.acknowledged.values():
            if first <= record.last and record.first <= last:
                self._check_loss(record, kind)
        if kind is GapKind.DATALOSS and not self._may_be_lost(first, last):
            raise Violation(f"[{words(first)}, {words(last)}] is said to be lost, and was not")

    def _check_loss(self, record: Record, kind: GapKind) -> None:
        if record.last <= self.trimmed:
            return
        if record.first not in self.lost:
            raise Violation(f"{record} was acknowledged and is shown as {kind}")
        if kind is not GapKind.DATALOSS and record.epoch not in self.doubtful:
            raise Violation(f"{record} was lost and is shown as {kind}")

    def _may_be_lost(self, first: Lsn, last: Lsn) -> bool:
        epochs = range(epoch_of(first), epoch_of(last) + 1)
        if last <= self.trimmed or any(epoch in self.doubtful for epoch in epochs):
            return True
        return any(first <= self.given_out[lsn].last and lsn <= last for lsn in self.lost)


def overlap(one: Record | Void, other: Record | Void) -> bool:
    return one.first <= other.last and other.first <= one.last
