"""The rules of a chained log, checked while a simulation runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from violation import Violation

from loomlog.core.chained.chain import Block, Projection, Replica
from loomlog.types import Glsn


class Value(NamedTuple):
    """A batch, identified by its writer."""

    producer_id: int
    sequence: int


class ChainedJudge:
    """Knows everything; a moment is a count of what happened."""

    def __init__(self) -> None:
        self.least = 1  # copies that an acknowledged block has
        self.copies: Callable[[Block, int], int]  # on disks that were not lost before a moment
        self.moment = 0
        self.acknowledged: dict[Value, Block] = {}
        self.acknowledged_end: Glsn = 1
        self.trimmed: Glsn = 0  # by some trim that began
        self.tail: Glsn = 0  # the highest that any client learnt
        self.closed_at: Glsn = 0  # 0: it is open
        self.junk = 0
        self._decided: dict[Glsn, tuple[Block, int]] = {}  # position -> its block, since when
        self._places: dict[Value, Glsn] = {}
        self._lost: set[tuple[Value, Glsn]] = set()
        self._projections: dict[int, Projection] = {}
        self.newest: Projection | None = None  # that came into force
        self.fresh: set[Replica] = set()  # with which lost chains are to begin again
        self.begun_again: dict[int, Glsn] = {}  # below which position chains may have lost blocks
        self.losses = 0  # of acknowledged blocks, all of them reported

    def now(self) -> int:
        self.moment += 1
        return self.moment

    def is_lost(self, block: Block) -> bool:
        """Return whether the chain of a block began again since, without all that it had."""
        if self.newest is None:
            return False
        return block.first < self.begun_again.get(block.first % len(self.newest.chains), 0)

    def in_force_now(self, projection: Projection) -> None:
        """Called when a projection comes into force."""
        self.newest = projection
        for index, chain in enumerate(projection.chains):
            if self.fresh.intersection(chain):
                self.fresh.difference_update(chain)
                self.begun_again[index] = projection.start

    # ---- what was seen

    def seen(self, block: Block) -> None:
        """Called when a block was read or reported as written: it must stay so for all readers."""
        for position in range(block.first, block.end):
            before, _ = self._decided.setdefault(position, (block, self.now()))
            if self.is_lost(before):
                self._decided[position] = (block, self.now())
            elif not before.is_same(block):
                raise Violation(f"position {position} showed {before}, now {block}")
        if block.is_junk:
            self.junk += 1
            return
        if self.is_lost(block):  # a copy of it was left
            return
        value = Value(block.producer_id, block.sequence)
        if (value, block.first) in self._lost:
            raise Violation(f"{block} was said to be lost")
        if self._places.setdefault(value, block.first) != block.first:
            raise Violation(f"{value} is at {self._places[value]} and at {block.first}")

    def appended(self, block: Block, floor: Glsn, since: int) -> None:
        """Called when an append is acknowledged; it began at the moment `since`, when `floor` was
        the last acknowledged position."""
        copies = self.least if block.last <= self.trimmed else self.copies(block, since)
        if copies < self.least:
            raise Violation(f"{block} is acknowledged with {copies} copies, not {self.least}")
        if block.first < floor:
            raise Violation(f"{block.first} was given to an append that began behind {floor}")
        if self.closed_at and block.first >= self.closed_at:
            raise Violation(f"{block} was appended to a log that was closed at {self.closed_at}")
        self.seen(block)
        self.acknowledged[Value(block.producer_id, block.sequence)] = block
        self.acknowledged_end = max(self.acknowledged_end, block.end)

    def tried(self, block: Block) -> None:
        """Called when a writer tries a position; a new epoch may give it the same one again."""
        self._lost.discard((Value(block.producer_id, block.sequence), block.first))

    def lost(self, block: Block) -> None:
        """Called when a block was reported as not written there, now and later."""
        value = Value(block.producer_id, block.sequence)
        self._lost.add((value, block.first))
        if self._places.get(value) == block.first and not self.is_lost(block):
            raise Violation(f"{block} was seen, and is said to be lost")
        self._places.pop(value, None)

    def not_written(self, position: Glsn, since: int) -> None:
        """Called when a request of the moment `since` found nothing there."""
        found = self._decided.get(position)
        if found is not None and found[1] <= since and not self.is_lost(found[0]):
            raise Violation(f"{position} held {found[0]} and is said to be unwritten")

    def was_trimmed(self, position: Glsn) -> None:
        if position > self.trimmed:
            raise Violation(f"{position} is said to be trimmed; asked for was {self.trimmed}")

    def end_found(self, end: Glsn, floor: Glsn) -> None:
        if end < floor:
            raise Violation(f"the log is said to end at {end}; acknowledged was up to {floor}")

    def tail_found(self, tail: Glsn, floor: Glsn) -> None:
        """Called with a tail; `floor` was reported or acknowledged before the request."""
        if tail < floor:
            raise Violation(f"the tail is said to be {tail}; it was {floor}")
        self.tail = max(self.tail, tail)

    def tail_floor(self) -> Glsn:
        return max(self.tail, self.acknowledged_end - 1)

    def in_force(self, projection: Projection) -> None:
        before = self._projections.setdefault(projection.epoch, projection)
        if before != projection:
            raise Violation(f"epoch {projection.epoch} has two projections")
        if projection.closed:
            self.closed_at = projection.start
            self.end_found(projection.start, self.acknowledged_end)

    # ---- at the end

    def whole(self, blocks: Iterable[Block]) -> None:
        """Called with all blocks of the log, in order: none is missing, none is new."""
        found = {block.first: block for block in blocks}
        for block in found.values():
            self.seen(block)
        reported = {
            position
            for block in found.values()
            if self.newest is not None and self.newest.is_lost(block)
            for position in range(block.first, block.end)
        }
        for block in self.acknowledged.values():
            if block.last > self.trimmed and block.first not in found:
                if not self.is_lost(block):
                    raise Violation(f"{block} was acknowledged and is gone")
                if max(block.first, self.trimmed + 1) not in reported:
                    raise Violation(f"{block} was acknowledged and lost, and nobody says so")
                self.losses += 1
