"""Records that arrived before their turn, in order and each once. Pure.

Invariant: spans never overlap. Where copies differ, the one of higher precedence counts; a batch
counts as a whole or not at all, a range without entries may be cut.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from typing import NamedTuple

from loomlog.core.copyset.record import HEAD_BYTES, Kind, Lsn, Record
from loomlog.types import ShardId


class WindowSpan(NamedTuple):
    """The part of a record that counts."""

    first: Lsn
    last: Lsn
    record: Record
    shard: ShardId  # sent it

    @property
    def size(self) -> int:
        return HEAD_BYTES + len(self.record.batch)


class Room:
    """The memory used, by the shard that sent the records. Each has its share, so the next
    record always finds room, however far ahead the others are."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._taken: Counter[ShardId] = Counter()
        self._with_consumer: deque[tuple[ShardId, int]] = deque()

    def free_for(self, shard: ShardId, shards: int) -> int:
        """Return how much room a shard has; 0 until it is worth a question."""
        share = max(1, self.capacity_bytes // shards)
        free = share - self._taken[shard]
        return free if 2 * free >= share else 0

    def take(self, span: WindowSpan) -> None:
        self._taken[span.shard] += span.size

    def give_back(self, span: WindowSpan) -> None:
        self._taken[span.shard] -= span.size

    def delivered(self, span: WindowSpan) -> None:
        """Keep the room taken until the consumer is done with it."""
        self._with_consumer.append((span.shard, span.size))

    def consumed(self, spans: int) -> None:
        for _ in range(spans):
            shard, size = self._with_consumer.popleft()
            self._taken[shard] -= size


class ReadWindow:
    """Records at the head of the reader or above it."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._firsts: list[Lsn] = []  # of all spans, in order
        self._spans: dict[Lsn, WindowSpan] = {}

    @property
    def first(self) -> Lsn | None:
        return self._firsts[0] if self._firsts else None

    def add(self, record: Record, shard: ShardId, head: Lsn) -> None:
        if record.last < head:
            return
        span = WindowSpan(max(record.first, head), record.last, record, shard)
        others = self._overlapping(span.first, span.last)
        if not others:
            self._insert(span)
            return
        stronger = [other for other in others if other.record.precedence >= record.precedence]
        if stronger and record.kind is Kind.DATA:
            return
        for other in others:
            if other not in stronger:
                self._remove(other.first)
                self._insert_rests(other, [span])
        self._insert_rests(span, stronger)

    def kind_at(self, head: Lsn) -> Kind | None:
        """Return the kind of the record at the head, if it is there."""
        return self._spans[head].record.kind if self.first == head else None

    def pop(self, head: Lsn) -> WindowSpan | None:
        """Return the span that begins at the head. Its room stays taken."""
        if self.first != head:
            return None
        del self._firsts[0]
        return self._spans.pop(head)

    def drop_below(self, head: Lsn) -> None:
        while self._firsts and self._firsts[0] < head:
            span = self._remove(self._firsts[0])
            if span.last >= head:
                self._insert(span._replace(first=head))

    def clear(self) -> None:
        for span in self._spans.values():
            self._room.give_back(span)
        self._firsts.clear()
        self._spans.clear()

    # ---- inside

    def _overlapping(self, first: Lsn, last: Lsn) -> list[WindowSpan]:
        index = bisect_right(self._firsts, first)
        if index and self._spans[self._firsts[index - 1]].last >= first:
            index -= 1
        return [self._spans[key] for key in self._firsts[index : bisect_right(self._firsts, last)]]

    def _insert_rests(self, span: WindowSpan, covered: list[WindowSpan]) -> None:
        """Insert the parts of a span that `covered`, which is in order, leaves."""
        if covered and span.record.kind is Kind.DATA:
            return
        first = span.first
        for other in covered:
            if first < other.first:
                self._insert(span._replace(first=first, last=other.first - 1))
            first = max(first, other.last + 1)
        if first <= span.last:
            self._insert(span._replace(first=first))

    def _insert(self, span: WindowSpan) -> None:
        insort(self._firsts, span.first)
        self._spans[span.first] = span
        self._room.take(span)

    def _remove(self, first: Lsn) -> WindowSpan:
        del self._firsts[bisect_left(self._firsts, first)]
        span = self._spans.pop(first)
        self._room.give_back(span)
        return span
