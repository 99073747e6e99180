"""The domain's vocabulary as Python types, without behaviour.

A GLSN is an entry's position in its log, an LLSN its position in its log stream. Both start at 1
and only grow; each protocol decides how dense they are. 0 means "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

Glsn: TypeAlias = int
Llsn: TypeAlias = int
LogId: TypeAlias = int
StreamId: TypeAlias = int
NodeId: TypeAlias = int
ShardId: TypeAlias = int  # a volume of a node, see core/copyset/nodeset.py
Buffer: TypeAlias = bytes | bytearray | memoryview

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Position(NamedTuple):
    """The position of an appended entry."""

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
    headers: Mapping[str, bytes] = NO_HEADERS

    @property
    def timestamp(self) -> datetime:
        """When the writer appended the entry, in UTC."""
        return moment_of(self.timestamp_us)


def moment_of(timestamp_us: int) -> datetime:
    """Return the time of an entry, in UTC."""
    return _UNIX_EPOCH + timedelta(microseconds=timestamp_us)


class Gap(NamedTuple):
    """Positions `first` to `last` (inclusive) that will never have an entry."""

    first: Glsn
    last: Glsn
    # "hole": a writer reserved them and never wrote; "bridge": the epoch ended before them;
    # "trim": entries were there and have been trimmed; "dataloss": all copies are gone
    kind: str
    exact: bool = True  # False: how far the lost entries reached is unknown


class SyncMode(StrEnum):
    """When a storage node counts data as written."""

    ALWAYS = "always"  # fdatasync before anything is reported: survives power loss
    INTERVAL = "interval"  # fdatasync periodically: power loss may take the last moments
    NONE = "none"  # the kernel decides: power loss takes what it has not written back


class ReplicaState(StrEnum):
    """The states of a replica of a log stream (docs/design/ordered.md)."""

    SEALING = "sealing"
    SEALED = "sealed"
    RUNNING = "running"


class CommitContext(NamedTuple):
    """A commit as a replica stores it: entries [llsn, llsn + length) became [glsn, glsn + length).

    With length 0 it says that the stream has no other entry up to `high_watermark`.
    """

    high_watermark: Glsn
    prev_high_watermark: Glsn
    glsn: Glsn
    llsn: Llsn
    length: int
    epoch: int

    @property
    def last_llsn(self) -> Llsn:
        """The last committed entry of the stream once this commit is applied."""
        return self.llsn + self.length - 1


class Precondition(NamedTuple):
    """A batch of a stream, [llsn, end), that gets positions only directly behind `expected`."""

    llsn: Llsn
    end: Llsn
    expected: Glsn


class Report(NamedTuple):
    """A replica's report to the metadata repository."""

    stream_id: StreamId
    uncommitted_llsn_offset: Llsn
    uncommitted_llsn_length: int
    high_watermark: Glsn
    epoch: int
    state: ReplicaState
    stored_high_watermark: Glsn
    resend: bool
    damaged: bool = False
    precondition: Precondition | None = None  # of an uncommitted batch, on a primary

    @property
    def written_end(self) -> Llsn:
        return self.uncommitted_llsn_offset + self.uncommitted_llsn_length


class ProducerMark(NamedTuple):
    """A stored batch: what it was numbered by its producer and where it stands."""

    producer_id: int
    sequence: int
    first_llsn: Llsn
    count: int  # type: ignore[assignment]  # the batch header's word
