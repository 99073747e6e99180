"""The port to where the blocks of chains are kept, in any order and with holes.

Calls block: they run in a worker. Reads may run beside a commit, in another thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loomlog.core.chained.projection import Replica
from loomlog.core.chained.replica import Blocks, Change, Standing
from loomlog.types import Glsn


class TrimmedMeanwhileError(Exception):
    """A block was trimmed before it could be loaded: look it up again."""


class StoredReplica(Blocks, Protocol):
    """A replica as of one commit. To load may raise TrimmedMeanwhileError."""

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
        its own, beside everything else."""

    def interrupt(self) -> None:
        """Give up a `reclaim` that is under way: the table is about to be closed."""

    def close(self) -> None: ...
