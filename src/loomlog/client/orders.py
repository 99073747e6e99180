"""What a subscription counts by, and which stretches of a log it passes.

A log is a chain of segments, each of one protocol. Neighbouring segments whose protocol merges
streams by itself are one stretch to a reader; every other segment is one of its own.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final, NamedTuple, Protocol

from loomlog.batch import Header
from loomlog.errors import NotFound
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb

ORDERED: Final = "ordered"
_JOINED: Final = frozenset({ORDERED})  # protocols whose segments share one sequence of commits


class Stretch(NamedTuple):
    """A part of a log that one protocol keeps."""

    protocol: str
    streams: list[pb.LogStream]
    last: int | None  # None: it goes on


class Order(Protocol):
    """What a subscription counts by."""

    crosses: bool  # from one stretch to the next

    def first(self, header: Header) -> int: ...

    def bounds(self, log: pb.Log) -> tuple[int, int]:
        """The first number kept (1 if that is not known) and the last one committed."""

    def stretch(self, log: pb.Log, number: int) -> Stretch:
        """Where the number is, and what comes after it in the same stretch."""

    def request(self, stream: StreamId, start: int) -> pb.Subscribe:
        """To a replica of an `ordered` stream."""

    def describe(self, number: int) -> str: ...


class ByPosition:
    """The whole log, in its total order."""

    crosses = True

    def first(self, header: Header) -> int:
        return header.first_position

    def bounds(self, log: pb.Log) -> tuple[int, int]:
        return max(log.head, 1), log.tail

    def stretch(self, log: pb.Log, number: int) -> Stretch:
        rest = [s for s in log.segments if not s.HasField("end") or s.end >= number]
        if not rest:
            return Stretch(ORDERED, list(log.streams), None)
        protocol = rest[0].protocol
        joined = rest[:1]
        if protocol in _JOINED:
            joined = list(takewhile(lambda segment: segment.protocol == protocol, rest))
        last = joined[-1].end if joined[-1].HasField("end") else None
        loglets = {segment.loglet_id for segment in joined}
        if protocol in _JOINED and last is None:
            # What is to follow is in no list yet; it is good to know its streams early.
            listed = {segment.loglet_id for segment in log.segments}
            loglets |= {stream.loglet_id for stream in log.streams} - listed
        streams = [s for s in log.streams if s.loglet_id in loglets and protocol_of(s) == protocol]
        return Stretch(protocol, streams, last)

    def request(self, stream: StreamId, start: int) -> pb.Subscribe:
        return pb.Subscribe(log_stream_id=stream, first_glsn=start)

    def describe(self, number: int) -> str:
        return f"position {number}"


class ByLlsn:
    """One stream, in its own order."""

    crosses = False

    def __init__(self, stream: StreamId) -> None:
        self._stream = stream

    def first(self, header: Header) -> int:
        return header.first_llsn

    def bounds(self, log: pb.Log) -> tuple[int, int]:
        found = self._find(log)
        if protocol_of(found) == ORDERED:
            return 1, found.entries
        return max(log.head, 1), log.tail  # its LLSNs are positions

    def stretch(self, log: pb.Log, number: int) -> Stretch:
        found = self._find(log)
        return Stretch(protocol_of(found), [found], None)

    def request(self, stream: StreamId, start: int) -> pb.Subscribe:
        return pb.Subscribe(log_stream_id=stream, first_llsn=start)

    def describe(self, number: int) -> str:
        return f"LLSN {number} of stream {self._stream}"

    def _find(self, log: pb.Log) -> pb.LogStream:
        for stream in log.streams:
            if stream.log_stream_id == self._stream:
                return stream
        raise NotFound(f"log {log.name!r} has no stream {self._stream}")


def protocol_of(stream: pb.LogStream) -> str:
    return stream.protocol or ORDERED
