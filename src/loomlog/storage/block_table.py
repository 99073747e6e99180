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
    """What was found cannot be loaded any more: look again."""


class StoredReplica(Blocks, Protocol):
    """A replica as of one commit. To load may raise TrimmedMeanwhileError."""

    @property
    def standing(self) -> Standing | None:
        """None if the replica is not here."""


class BlockTable(Protocol):
    """All replicas of chains on one volume."""

    def replicas(self) -> dict[Replica, Standing]:
        """Those that are here, in order."""

    def look(self, replica: Replica) -> StoredReplica:
        """As of the last commit; use it for one look-up and let go of it."""

    def commit(self, changes: Sequence[tuple[Replica, Change]], *, sync: bool) -> None:
        """All of it or nothing, in order; with `sync` it survives a power loss once this returns.
        Nobody sees a change before."""

    def get_ready(self) -> None:
        """For the next commit, while nobody waits for it. Does not block."""

    def stored_bytes(self) -> int:
        """What it takes on the disk, about."""

    def reclaim(self, replica: Replica, position: Glsn) -> None:
        """Free the space of what was deleted up to this position. May take long; in a worker of
        its own, beside everything else."""

    def interrupt(self) -> None:
        """Give up a `reclaim` that is under way: the table is about to be closed."""

    def close(self) -> None: ...
