"""The domain's vocabulary as plain Python types.

A GLSN is an entry's position in its log, an LLSN its position in its log stream. Both start at 1
and only grow; whether they have gaps depends on the protocol. 0 means "none".
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
    """The place of an appended entry: its position in the log, and its LLSN in its stream."""

    position: Glsn
    stream: StreamId
    llsn: Llsn


class Entry(NamedTuple):
    """One entry of a log, as readers get it."""

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
    """Return the UTC datetime of a timestamp in microseconds since 1970."""
    return _UNIX_EPOCH + timedelta(microseconds=timestamp_us)


class Gap(NamedTuple):
    """A range of positions, `first` to `last` inclusive, that have no entry and never will.

    `kind` is "hole" (reserved by a writer and never written), "bridge" (between the last entry of
    an epoch and the next epoch), "trim" (trimmed) or "dataloss" (all copies are lost). `exact` is
    False if it is unknown how far lost entries reached."""

    first: Glsn
    last: Glsn
    kind: str
    exact: bool = True


class SyncMode(StrEnum):
    """When a storage node reports data as written."""

    ALWAYS = "always"  # after fdatasync: survives power loss
    INTERVAL = "interval"  # before a periodic fdatasync: power loss may take the last moments
    NONE = "none"  # without fdatasync: power loss takes what the kernel has not written back


class ReplicaState(StrEnum):
    """The states of a replica of a log stream (docs/design/ordered.md)."""

    SEALING = "sealing"
    SEALED = "sealed"
    RUNNING = "running"


class CommitContext(NamedTuple):
    """A commit as a replica stores it: entries [llsn, llsn + length) got the positions
    [glsn, glsn + length).

    A length of 0 means that the stream has no further entry up to `high_watermark`.
    """

    high_watermark: Glsn
    prev_high_watermark: Glsn
    glsn: Glsn
    llsn: Llsn
    length: int
    epoch: int

    @property
    def last_llsn(self) -> Llsn:
        """The LLSN of the last entry that is committed once this commit is applied."""
        return self.llsn + self.length - 1


class Precondition(NamedTuple):
    """A condition on a batch of a stream, [llsn, end): it may only get the positions that directly
    follow `expected`."""

    llsn: Llsn
    end: Llsn
    expected: Glsn


class Report(NamedTuple):
    """A replica's report of what it has written, for the metadata repository."""

    stream_id: StreamId
    uncommitted_llsn_offset: Llsn
    uncommitted_llsn_length: int
    high_watermark: Glsn
    epoch: int
    state: ReplicaState
    stored_high_watermark: Glsn
    resend: bool
    damaged: bool = False
    precondition: Precondition | None = None  # of an uncommitted batch; reported by primaries

    @property
    def written_end(self) -> Llsn:
        return self.uncommitted_llsn_offset + self.uncommitted_llsn_length


class ProducerMark(NamedTuple):
    """The place of a stored batch, and the sequence number that its producer gave it."""

    producer_id: int
    sequence: int
    first_llsn: Llsn
    count: int  # type: ignore[assignment]  # named as in the batch header
