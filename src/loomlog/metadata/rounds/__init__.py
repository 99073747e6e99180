"""Logs that make commit rounds durable, in a file or a quorum of metadata repositories.

Records are opaque here. Every record carries the epoch of the leader that appended it, and an epoch
below the highest one seen is refused, so that a replaced leader can decide nothing more. With the
embedded file there is one leader, and every start takes the next epoch; with a quorum of metadata
repositories the epoch was taken before, and opening the log is the takeover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

RECORD_FORMAT: Final = 1  # the newest that this release reads. 1: a round may omit streams

Done = Callable[[BaseException | None], None]
Snapshot = Callable[[], Iterable[bytes]]


class RoundLog(Protocol):
    """Makes the commit rounds of a leader durable."""

    @property
    def epoch(self) -> int:
        """The epoch of appends: that of the leader that opened the log, above all epochs in it."""

    @property
    def is_doubtful(self) -> bool:
        """True if the last record may not be the last durable one, because it is followed by
        remains of a torn or a damaged record."""

    @property
    def record_format(self) -> int:
        """The newest format of records that all possible readers support."""

    def trust(self) -> None:
        """Called when nodes have confirmed that no round is missing: the log is no longer doubtful,
        also at the next start."""

    def read(self) -> list[bytes]:
        """Return the records found at the start, oldest first."""

    def begin(self, snapshot: Snapshot) -> None:
        """Take appends from now on. Whenever old records are dropped, `snapshot` returns the
        appended records that a start would still need."""

    def append(self, epoch: int, record: bytes, done: Done) -> None:
        """Make a record durable, then call `done`, in the order of the appends.

        NotLeader (raised, or passed to `done`): there is a newer epoch. Any other error is
        final."""

    def close(self) -> None:
        """Close the log when no append is in progress. Blocks."""
