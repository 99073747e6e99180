"""The port to where the blocks of chains are kept, in any order and with holes; and a table in
memory, for simulations.

Calls block: they run in a worker. Reads may run during a commit, in another thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from loomlog.core.chained.chain import Block, Extent, Replica
from loomlog.core.chained.replica import Blocks, Change, Gone, Put, Standing
from loomlog.types import Glsn


class TrimmedMeanwhileError(Exception):
    """A block was trimmed before it could be loaded: look it up again."""


class StoredReplica(Blocks, Protocol):
    """A replica as of one commit. Loading a block may raise TrimmedMeanwhileError."""

    @property
    def standing(self) -> Standing | None:
        """Return the standing of a replica; None if it is not here."""


class BlockTable(Protocol):
    """All replicas of chains on one volume."""

    def replicas(self) -> dict[Replica, Standing]:
        """Return the stored replicas, in order."""

    def look(self, replica: Replica) -> StoredReplica:
        """Return a snapshot as of the last commit, for one look-up."""

    def commit(self, changes: Sequence[tuple[Replica, Change]], *, sync: bool) -> None:
        """Apply all changes atomically, in order; with `sync` they survive a power loss once this
        returns. No reader sees a change earlier."""

    def get_ready(self) -> None:
        """Prepare the next commit in advance. Does not block."""

    def stored_bytes(self) -> int:
        """Return the approximate space used on disk."""

    def reclaim(self, replica: Replica, position: Glsn) -> None:
        """Free the space of what was deleted up to this position. May take long; in a worker of
        its own, while everything else continues."""

    def interrupt(self) -> None:
        """Give up a `reclaim` that is under way: the table is about to be closed."""

    def close(self) -> None: ...


@dataclass
class MemoryReplica:
    """Blocks by their last position: they do not overlap, so that is their order, too."""

    standing: Standing | None = None
    lasts: list[Glsn] = field(default_factory=list)
    by_last: dict[Glsn, Block] = field(default_factory=dict)
    stored_bytes: int = 0

    def find(self, position: Glsn) -> Extent | None:
        found = self.scan(position, 1)
        return found[0] if found else None

    def find_before(self, position: Glsn) -> Extent | None:
        index = bisect_left(self.lasts, position)
        return self.by_last[self.lasts[index - 1]].extent if index else None

    def last(self) -> Extent | None:
        return self.by_last[self.lasts[-1]].extent if self.lasts else None

    def scan(self, position: Glsn, blocks_max: int) -> list[Extent]:
        index = bisect_left(self.lasts, position)
        return [self.by_last[last].extent for last in self.lasts[index : index + blocks_max]]

    def load(self, extent: Extent) -> Block:
        return self.by_last[extent.last]

    def latest_us(self, extent: Extent) -> int:
        return self.load(extent).latest_us

    def put(self, block: Block) -> None:
        self.lasts.insert(bisect_left(self.lasts, block.last), block.last)
        self.by_last[block.last] = block
        self.stored_bytes += len(block.batch)

    def trim(self, position: Glsn) -> None:
        index = bisect_right(self.lasts, position)
        for last in self.lasts[:index]:
            self.stored_bytes -= len(self.by_last.pop(last).batch)
        del self.lasts[:index]

    def copy(self) -> MemoryReplica:
        return replace(self, lasts=list(self.lasts), by_last=dict(self.by_last))


class MemoryTable:
    """Loses what was not synced when the power fails."""

    def __init__(self) -> None:
        self._replicas: dict[Replica, MemoryReplica] = {}
        self._durable: dict[Replica, MemoryReplica] | None = None  # if it is not all

    def replicas(self) -> dict[Replica, Standing]:
        found = sorted(self._replicas.items(), key=lambda item: item[0])
        return {replica: kept.standing for replica, kept in found if kept.standing is not None}

    def look(self, replica: Replica) -> MemoryReplica:
        return self._replicas.get(replica) or MemoryReplica()

    def commit(self, changes: Sequence[tuple[Replica, Change]], *, sync: bool) -> None:
        if not sync and self._durable is None:
            self._durable = {replica: kept.copy() for replica, kept in self._replicas.items()}
        for replica, change in changes:
            self._apply(replica, change)
        if sync:
            self._durable = None

    def get_ready(self) -> None:
        pass

    def lose_power(self) -> None:
        """Go back to the last sync."""
        if self._durable is not None:
            self._replicas, self._durable = self._durable, None

    def stored_bytes(self) -> int:
        return sum(kept.stored_bytes for kept in self._replicas.values())

    def reclaim(self, replica: Replica, position: Glsn) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _apply(self, replica: Replica, change: Change) -> None:
        match change:
            case Put(block):
                self._replicas[replica].put(block)
            case Standing():
                kept = self._replicas.setdefault(replica, MemoryReplica())
                kept.standing = change
                kept.trim(change.trimmed)
            case Gone():
                del self._replicas[replica]
