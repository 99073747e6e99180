"""The port to where the blocks of chains are kept, in any order and with holes; and blocks in
memory, for those that are not committed yet.

Calls block: they run in a worker. Reads may run during a commit, in another thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from loomlog.core.chained.chain import Block, Extent, Replica
from loomlog.core.chained.replica import Blocks, Change, Standing
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

    def bytes_in_files(self, replica: Replica) -> int:
        """Return how much of that are blocks of the replica in files of their own."""

    def reclaim(self, replica: Replica, position: Glsn) -> None:
        """Free the space of what was deleted up to this position. May take long; in a worker of
        its own, while everything else continues."""

    def interrupt(self) -> None:
        """Give up a `reclaim` that is under way: the table is about to be closed."""

    def close(self) -> None: ...


class MemoryBlocks:
    """Blocks by their last position: they do not overlap, so that is their order, too."""

    def __init__(self) -> None:
        self.lasts: list[Glsn] = []
        self.by_last: dict[Glsn, Block] = {}

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
        return self.by_last[extent.last]._replace(acknowledged=())

    def latest_us(self, extent: Extent) -> int:
        return self.by_last[extent.last].latest_us

    def size_of(self, extent: Extent) -> int:
        return len(self.by_last[extent.last].batch)

    def acknowledged_in(self, extent: Extent) -> tuple[Glsn, ...]:
        return self.by_last[extent.last].acknowledged

    def put(self, block: Block) -> None:
        self.lasts.insert(bisect_left(self.lasts, block.last), block.last)
        self.by_last[block.last] = block
