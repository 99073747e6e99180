"""Logs that make commit rounds durable, in a file or a quorum of metadata repositories.

Records are opaque here. Every record carries the epoch of the leader that appended it, and an
epoch below the highest one seen is refused: a leader that was replaced can decide nothing more.
With the embedded file there is one leader, and every start takes the next epoch; with a quorum of
metadata repositories the epoch was taken before, and opening is the takeover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

RECORD_FORMAT: Final = 1  # the newest that this release reads. 1: a round may leave out streams

Done = Callable[[BaseException | None], None]
Snapshot = Callable[[], Iterable[bytes]]


class RoundLog(Protocol):
    """Makes the commit rounds of a leader durable."""

    @property
    def epoch(self) -> int:
        """The epoch to append in: that of the leader that opened it, above all that it holds."""

    @property
    def is_doubtful(self) -> bool:
        """Whether the last record found may not be the last one that was durable: after it are
        remains, of one that never was or of one that is damaged."""

    @property
    def record_format(self) -> int:
        """The newest format of records that all who may read them understand."""

    def trust(self) -> None:
        """Called when nodes have confirmed that no round is missing: doubt it no longer, nor at the
        next start."""

    def read(self) -> list[bytes]:
        """Return the records found at the start, oldest first."""

    def begin(self, snapshot: Snapshot) -> None:
        """Take appends from now on. `snapshot` gives, whenever old records are to be dropped, those
        that a start would still need of all that was appended and done."""

    def append(self, epoch: int, record: bytes, done: Done) -> None:
        """Make a record durable, then call `done`, in the order of the appends.

        NotLeader (raised, or given to `done`): there is a newer epoch. Any other error is final."""

    def close(self) -> None:
        """Close it when nothing is under way. Blocks."""
