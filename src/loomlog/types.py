"""The words of the domain as Python types.

GLSN: an entry's place in its log. LLSN: its place in its log stream. Both begin with 1 and only
grow; how dense they are is the protocol's. In both, 0 means "none". No behaviour lives here.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeAlias

Glsn: TypeAlias = int
Llsn: TypeAlias = int
LogId: TypeAlias = int
StreamId: TypeAlias = int
NodeId: TypeAlias = int
Buffer: TypeAlias = bytes | bytearray | memoryview

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Position(NamedTuple):
    """Where an appended entry stands."""

    position: Glsn
    stream: StreamId
    llsn: Llsn


class Entry(NamedTuple):
    """One entry as a reader sees it."""

    position: Glsn
    stream: StreamId
    llsn: Llsn
    timestamp_us: int
    key: bytes | None
    value: bytes

    @property
    def timestamp(self) -> datetime:
        """When the writer appended it, in UTC."""
        return _UNIX_EPOCH + timedelta(microseconds=self.timestamp_us)


class Gap(NamedTuple):
    """Positions without entry, for good: from `first` to `last` inclusive."""

    first: Glsn
    last: Glsn
    # "hole": a writer was given them and never wrote; "bridge": an epoch ended before them;
    # "trim": there was something, and its time is over; "dataloss": all copies of it are gone
    kind: str


class SyncMode(StrEnum):
    """What "written" means on a storage node."""

    ALWAYS = "always"  # fdatasync before anything is reported: survives power loss
    INTERVAL = "interval"  # fdatasync now and then: power loss may take the last moments
    NONE = "none"  # the kernel decides: power loss may take what it had not written back


class ReplicaState(StrEnum):
    """The states of a replica of a log stream (spec 1, "States of a replica")."""

    SEALING = "sealing"
    SEALED = "sealed"
    RUNNING = "running"


class CommitContext(NamedTuple):
    """A commit as a replica stores it: entries [llsn, llsn + length) became [glsn, glsn + length).

    With length 0 it only says that nothing else of the log up to `high_watermark` is here.
    """

    high_watermark: Glsn
    prev_high_watermark: Glsn
    glsn: Glsn
    llsn: Llsn
    length: int
    epoch: int

    @property
    def last_llsn(self) -> Llsn:
        """The last entry committed in the stream once this commit is applied."""
        return self.llsn + self.length - 1


class Report(NamedTuple):
    """What a replica tells the metadata repository."""

    stream_id: StreamId
    uncommitted_llsn_offset: Llsn
    uncommitted_llsn_length: int
    high_watermark: Glsn
    epoch: int
    state: ReplicaState
    stored_high_watermark: Glsn
    resend: bool
    damaged: bool = False

    @property
    def written_end(self) -> Llsn:
        return self.uncommitted_llsn_offset + self.uncommitted_llsn_length
