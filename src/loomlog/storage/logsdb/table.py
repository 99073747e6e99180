"""The port to where the records of `copyset` logs are kept.

Calls block, but `standing`, `logs` and `stored_bytes`: they run in a worker. One worker commits and
tends; others may ask beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from loomlog.core.copyset.landmarks import Ages
from loomlog.core.copyset.record import Lsn, Record
from loomlog.core.copyset.storage import Change, LogStanding, Records
from loomlog.types import LogId

Found = TypeVar("Found")


class StoredLog(Records, Protocol):
    """A log as of one commit. What is trimmed does not show. Reading raises `Corrupt` where the
    disk does not give back what was written."""

    @property
    def standing(self) -> LogStanding:
        """The standing of the log; the initial one if it is not stored here."""

    def scan(self, first: Lsn, last: Lsn) -> Iterator[Record]:
        """The heads of all copies that overlap [first, last], in order."""

    def scan_back(self, last: Lsn) -> Iterator[Record]:
        """The heads of all copies that begin at `last` or before, the last one first."""


class LogsTable(Protocol):
    """All logs on one volume."""

    def logs(self) -> list[LogId]:
        """Return the logs that are stored here, in order."""

    def standing(self, log: LogId) -> LogStanding: ...

    def stored_bytes(self, log: LogId) -> int:
        """About: what was stored of it and is not trimmed, in whole partitions."""

    def look(self, log: LogId) -> StoredLog:
        """Return a view for the committing worker, valid for one commit."""

    def ask(self, log: LogId, question: Callable[[StoredLog], Found]) -> Found:
        """Answer as of one commit, in any worker. The question may be called several times."""

    def commit(self, changes: Sequence[tuple[LogId, Change]], *, sync: bool) -> None:
        """Apply all changes atomically, in order; with `sync` they survive a power loss once this
        returns. No reader sees a change earlier."""

    def ages(self, log: LogId, before_us: int) -> Ages:
        """Return which copies are older than this time. A partition with a younger copy of the log
        counts as young as a whole."""

    def tend(self, now_us: int) -> bool:
        """Between commits: begin a new partition if it is time, drop what is trimmed. True: there
        is more to be dropped; commits may come first."""

    def compact(self) -> None:
        """Give back what was dropped out of partitions that stay. May take long; in a worker of its
        own, beside everything else."""

    def interrupt(self) -> None:
        """Give up a `compact` that is under way: the table is about to be closed."""

    def close(self) -> None: ...
