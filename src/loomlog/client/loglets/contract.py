"""The contract of a loglet: how a client writes and reads segments of one protocol.

A log is a sequence of segments (core/segments.py), each kept by one protocol. A client has one
Loglet per log and protocol, made by the registry. Nothing else in client/ depends on a protocol's
name. Guarantees of every protocol, checked by tests/conformance/test_loglet_contract.py:

    append   atomic for a batch, at consecutive positions; acknowledged means durable. A batch that
             expects a tail is appended only if nothing else has, or may get, a position behind it.
             Otherwise: Conflict, for good; or NotYetWritten, if the position is not given yet
    read     the entry at a position never changes; an acknowledged entry is found by every later
             read until it is trimmed
    follow   the same entries, in order, each once
    tail     at or above every entry acknowledged before the call, and never lower than before
    seal     once the segment's end is recorded, no append succeeds, and everything acknowledged is
             at or below it
    trim     deletes a prefix, for every later reader

Trimming and sealing are requests to the metadata repository and do not involve a loglet. A writer
that does not know of a seal may still write above the recorded end, where readers stop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from loomlog.client.append.carriers import Carrier, Outcomes
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.loglets.times import TimeQuery, find_by_halves
from loomlog.client.subscribe.numbering import Numbering, Run
from loomlog.client.subscribe.part import Part
from loomlog.client.subscribe.pieces import Single
from loomlog.errors import InvalidArgument, LoomError
from loomlog.types import Glsn, Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Raises an error if another process has changed the writer's state."""


class FollowOptions(NamedTuple):
    """Options of a subscription."""

    numbering: Numbering
    window_bytes: int  # read-ahead
    gaps: bool = False  # deliver gaps


class Fixed(NamedTuple):
    """The destination of a batch that several processes may append but that must be stored once.

    It is chosen before the first append, and stored as JSON."""

    protocol: str
    stream: StreamId
    above: Glsn  # the batch can only be above this position ...
    last: Glsn | None = None  # ... and up to this one; None: up to the end of its segment
    place: Any = None  # opaque to all but its loglet


class Loglet(ABC):
    """A client's access to the segments of one log that are kept by one protocol."""

    joins_neighbours: ClassVar[bool] = False
    """Whether adjacent segments share one sequence of commits and are read as one run."""

    counts_llsns: ClassVar[bool] = False
    """Whether LLSNs count a stream's entries from 1; otherwise they are positions."""

    finds_fixed: ClassVar[bool] = False
    """Whether `append_fixed` always detects a batch that was appended before; otherwise callers
    must search the stream for an old one."""

    settles: ClassVar[bool] = False
    """Whether it decides on reserved positions: see `settle`."""

    @staticmethod
    def gap_ends(first: Glsn, last: Glsn) -> Sequence[Glsn]:
        """Return the positions above `first`, up to `last`, before which this protocol may leave a
        gap that is far wider than the ranges written."""
        return ()

    def __init__(self, log: CachedLog, client: Client) -> None:
        self._log = log
        self._client = client

    @abstractmethod
    def carrier(self, outcomes: Outcomes) -> Carrier:
        """Return the carrier that appends batches to streams and reports to `outcomes`."""

    @abstractmethod
    async def read(self, run: Run, position: Glsn, deadline_s: float) -> Single | LoomError:
        """Return what is at `position`, or an error if a retry with fresh metadata may succeed.
        Raise permanent errors, e.g. NotFound for a position that will never have an entry."""

    @abstractmethod
    def follow(self, options: FollowOptions, log: pb.Log, start: int, stop: int | None) -> Part:
        """Follow the run that holds the number `start`, to `stop` inclusive or to its end."""

    @abstractmethod
    async def tail(self, log: pb.Log, *, fresh: bool) -> pb.Log:
        """Return the current log, with its tail if this protocol still keeps the active segment.
        `fresh`: `log` was fetched for this call."""

    async def locate(self, stream: pb.LogStream, position: Glsn) -> Llsn:
        """Return the LLSN of the stream's first entry at or after a position of its segment."""
        return position

    async def find_time(self, streams: Sequence[pb.LogStream], query: TimeQuery) -> Glsn | None:
        """Answer a query about one segment; None if no entry is that late. Raise Retryable if it
        cannot be answered now."""
        return await find_by_halves(query)

    @abstractmethod
    async def reserve(self, stream: StreamId, tail: Glsn, rows: int) -> Fixed:
        """Choose the destination of a batch, given the log's tail as found before. Raise Sealed if
        the segment has ended."""

    @abstractmethod
    async def append_fixed(self, fixed: Fixed, batch: bytearray, confirm: Confirm) -> Glsn:
        """Return the batch's first position; 0 if its destination takes no more appends, so that
        the batch is there now or never. Any number of processes may call this at any time."""

    async def settle(self, fixed: Fixed, producer_id: int, patience_s: float) -> bool:
        """Return whether the batch of a producer was appended to its reserved destination; False:
        it never will be. If nothing is there, that is prevented after `patience_s`."""
        raise InvalidArgument("this protocol does not decide on reserved positions")

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Called when the client is closed: fail what is waiting."""
