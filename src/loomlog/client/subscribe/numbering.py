"""Numberings: whether a subscription counts positions or LLSNs, and which runs of a log it reads.

A log is a sequence of segments, each of one protocol. If a protocol merges streams across segments,
its adjacent segments form one run; every other segment is a run by itself.
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple, Protocol

from loomlog.batch import Header
from loomlog.errors import NotFound
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb


class Run(NamedTuple):
    """A stretch of a log that uses one protocol."""

    protocol: str
    streams: list[pb.LogStream]
    last: int | None  # None: the run is still growing


class Protocols(Protocol):
    """The properties of protocols that numberings need, implemented by the registry's `Loglets`."""

    def joins_neighbours(self, protocol: str) -> bool: ...

    def counts_llsns(self, protocol: str) -> bool: ...


class Numbering(Protocol):
    """The numbers that a subscription counts."""

    crosses: bool  # whether it continues in the next run: numbers are positions of the log

    def first(self, header: Header) -> int: ...

    def bounds(self, log: pb.Log) -> tuple[int, int]:
        """Return the first number kept (1 if unknown) and the last one committed."""

    def run(self, log: pb.Log, number: int) -> Run:
        """Return the run that contains a number, without the segments before it."""

    def describe(self, number: int) -> str: ...


class ByPosition:
    """Counts positions: the whole log, in its total order."""

    crosses = True

    def __init__(self, protocols: Protocols) -> None:
        self._protocols = protocols

    def first(self, header: Header) -> int:
        return header.first_position

    def bounds(self, log: pb.Log) -> tuple[int, int]:
        return max(log.head, 1), log.tail

    def run(self, log: pb.Log, number: int) -> Run:
        rest = [s for s in log.segments if not s.HasField("end") or s.end >= number]
        protocol = rest[0].protocol
        joins = self._protocols.joins_neighbours(protocol)
        joined = list(takewhile(lambda s: s.protocol == protocol, rest)) if joins else rest[:1]
        last = joined[-1].end if joined[-1].HasField("end") else None
        loglets = {segment.loglet_id for segment in joined}
        if joins and last is None:
            # Include the streams of the next segment, which is not listed as a segment yet.
            listed = {segment.loglet_id for segment in log.segments}
            loglets |= {stream.loglet_id for stream in log.streams} - listed
        streams = [s for s in log.streams if s.loglet_id in loglets and s.protocol == protocol]
        return Run(protocol, streams, last)

    def describe(self, number: int) -> str:
        return f"position {number}"


class InStream:
    """Counts LLSNs: one stream, in its own order."""

    crosses = False

    def __init__(self, stream: StreamId, protocols: Protocols) -> None:
        self._stream = stream
        self._protocols = protocols

    def first(self, header: Header) -> int:
        return header.first_llsn

    def bounds(self, log: pb.Log) -> tuple[int, int]:
        stream = self._find(log)
        if self._protocols.counts_llsns(stream.protocol):
            return 1, stream.entries
        return max(log.head, 1), log.tail

    def run(self, log: pb.Log, number: int) -> Run:
        stream = self._find(log)
        return Run(stream.protocol, [stream], None)

    def describe(self, number: int) -> str:
        return f"LLSN {number} of stream {self._stream}"

    def _find(self, log: pb.Log) -> pb.LogStream:
        for stream in log.streams:
            if stream.log_stream_id == self._stream:
                return stream
        raise NotFound(f"log {log.name!r} has no stream {self._stream}")
