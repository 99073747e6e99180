"""The port to the storage of chains, which accepts blocks in any order and with holes; and blocks
in memory, for those that are not committed yet.

Calls block, and run in a worker. Reads may run during a commit, in another thread.
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
    """The state of a replica after some commit. `load` may raise TrimmedMeanwhileError."""

    @property
    def standing(self) -> Standing | None:
        """The standing of the replica; None if it does not exist."""


class BlockTable(Protocol):
    """All replicas of chains on one volume."""

    def replicas(self) -> dict[Replica, Standing]:
        """Return the stored replicas, in order."""

    def look(self, replica: Replica) -> StoredReplica:
        """Return a snapshot of the last commit, for one look-up."""

    def commit(self, changes: Sequence[tuple[Replica, Change]], *, sync: bool) -> None:
        """Apply all changes atomically, in order. With `sync`, they survive a power loss once this
        returns. Readers do not see them earlier."""

    def get_ready(self) -> None:
        """Prepare the next commit in advance. Does not block."""

    def stored_bytes(self) -> int:
        """Return the approximate space used on disk."""

    def bytes_in_files(self, replica: Replica) -> int:
        """Return the space of the replica's blocks in files (not in the table)."""

    def reclaim(self, replica: Replica, position: Glsn) -> None:
        """Free the space of deleted blocks up to this position. May take long, so it runs in a
        worker of its own while everything else continues."""

    def interrupt(self) -> None:
        """Abort a running `reclaim`: the table is about to be closed."""

    def close(self) -> None: ...


class MemoryBlocks:
    """Blocks sorted by their last position. They do not overlap, so that is also their order."""

    def __init__(self) -> None:
        self.lasts: list[Glsn] = []
        self.by_last: dict[Glsn, Block] = {}

    def find(self, position: Glsn) -> Extent | None:
        extents = self.scan(position, 1)
        return extents[0] if extents else None

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
