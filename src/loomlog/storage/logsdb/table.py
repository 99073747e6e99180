"""The port to where the records of `copyset` logs are kept.

Calls block, but `standing`, `logs` and `stored_bytes`: they run in a worker. One worker commits and
tends; others may ask beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.record import Record
from loomlog.core.copyset.storage import Change, LogStanding, Records
from loomlog.types import LogId

Found = TypeVar("Found")


class TimeRange(NamedTuple):
    """Where a time begins, as far as a node can tell: in (after, until]."""

    after: Lsn  # all that is here up to this is older
    until: Lsn  # the first copy here that is not; LSN_MAX: there is none


class StoredLog(Records, Protocol):
    """A log as of one commit. What is trimmed does not show. Reading raises `Corrupt` where the
    disk does not give back what was written."""

    @property
    def standing(self) -> LogStanding:
        """Of a log that is not here, the one that all begin with."""

    def scan(self, first: Lsn, last: Lsn) -> Iterator[Record]:
        """The heads of all copies that overlap [first, last], in order."""

    def scan_back(self, last: Lsn) -> Iterator[Record]:
        """The heads of all copies that begin at `last` or before, the last one first."""

    def find_time(self, timestamp_us: int) -> TimeRange:
        """Timestamps of a log do not fall; where they did, some place where they pass this one."""

    def is_empty(self) -> bool:
        """No copy of a batch is here, whatever marks are."""


class LogsTable(Protocol):
    """All logs on one volume."""

    def logs(self) -> list[LogId]:
        """Those of which anything is here, in order."""

    def standing(self, log: LogId) -> LogStanding: ...

    def stored_bytes(self, log: LogId) -> int:
        """About: what was stored of it and is not trimmed, in whole partitions."""

    def look(self, log: LogId) -> StoredLog:
        """For the worker that commits; use it for one commit and let go of it."""

    def ask(self, log: LogId, question: Callable[[StoredLog], Found]) -> Found:
        """For any worker: the answer holds as of one commit. The question may be put again."""

    def commit(self, changes: Sequence[tuple[LogId, Change]], *, sync: bool) -> None:
        """All of it or nothing, in order; with `sync` it survives a power loss once this returns.
        Nobody sees a change before."""

    def expired(self, log: LogId, before_us: int) -> Lsn:
        """Where the log may be trimmed if nothing is kept that is older than this: the last LSN of
        its partitions that are over by then; 0: there is none."""

    def tend(self, now_us: int) -> bool:
        """Between commits: begin a new partition if it is time, drop what is trimmed. True: there
        is more to be dropped; commits may come first."""

    def compact(self) -> None:
        """Give back what was dropped out of partitions that stay. May take long; in a worker of its
        own, beside everything else."""

    def interrupt(self) -> None:
        """Give up a `compact` that is under way: the table is about to be closed."""

    def close(self) -> None: ...
