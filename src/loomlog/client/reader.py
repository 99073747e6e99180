"""Reads one entry by its position, and locates positions in streams and by time.

The loglet that holds the position does the work; for times, the loglets of all segments are asked
in order. Only the metadata repository decides whether a position is trimmed or not yet written.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client, Retries
from loomlog.client.loglets.registry import Loglets
from loomlog.client.loglets.times import RowsFrom, TimeQuery
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.client.subscribe.numbering import ByPosition
from loomlog.client.subscribe.pieces import Single
from loomlog.errors import (
    Corrupt,
    DataLoss,
    LoomError,
    NotFound,
    NotYetWritten,
    Retryable,
    Timeout,
    Trimmed,
    Unavailable,
    seconds,
)
from loomlog.types import Glsn, Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

_DAMAGE: Final = (Corrupt, DataLoss)  # a retry can only succeed if the metadata was outdated
_TRANSIENT: Final = (Retryable, *_DAMAGE, NotFound)  # a retry may succeed
_TRANSIENT_IN_SEARCH: Final = (Trimmed, *_TRANSIENT)


class Reader:
    """Reads entries of one log by position."""

    def __init__(self, log: CachedLog, loglets: Loglets, client: Client) -> None:
        self._log = log
        self._loglets = loglets
        self._numbering = ByPosition(loglets)
        self._timeout_s = client.settings.request_timeout_s
        self._rng = client.rng

    async def read(self, position: Glsn) -> Single:
        retries = Retries(self._rng, self._timeout_s)
        log = await self._log.cached()
        while True:
            self._check_trimmed(log, position)  # its segment may not exist any more
            run = self._numbering.run(log, position)
            outcome: Single | LoomError
            try:
                loglet = self._loglets.of(run.protocol)
                outcome = await loglet.read(run, position, retries.deadline_s)
            except SegmentGoneError as error:  # the position may be in a later segment
                outcome = error
            if not isinstance(outcome, LoomError):
                return outcome
            # The entry was not found, or a node failed: the bounds of the log decide what to raise.
            log = await self._loglets.fetch_with_tail()
            self._check_bounds(log, position)
            await self._pause(retries, outcome, position)

    async def locate(self, position: Glsn) -> dict[StreamId, Llsn]:
        """Return, for each stream, the LLSN of its first entry at or after `position`."""
        retries = Retries(self._rng, self._timeout_s)
        while True:
            # Streams that are not listed yet have no entries at or below the tail.
            log = await self._loglets.fetch_with_tail()
            self._check_bounds(log, position, beyond=1)
            answers = await asyncio.gather(
                *(self._locate_in(log, stream, position) for stream in log.streams),
                return_exceptions=True,
            )
            failures = [answer for answer in answers if isinstance(answer, BaseException)]
            if not failures:
                streams = [stream.log_stream_id for stream in log.streams]
                return {s: a for s, a in zip(streams, answers, strict=True) if isinstance(a, int)}
            error = failures[0]
            if not isinstance(error, _TRANSIENT):
                raise error
            await self._pause(retries, error, position)

    async def _locate_in(self, log: pb.Log, stream: pb.LogStream, position: Glsn) -> Llsn:
        """Locate `position` in one stream. Nodes are asked only if its segment has the position."""
        loglet = self._loglets.of(stream.protocol)
        for segment in log.segments:
            if segment.loglet_id != stream.loglet_id:
                continue
            if position <= segment.start:
                return 1 if loglet.counts_llsns else segment.start
            if segment.HasField("end") and position > segment.end:
                if loglet.counts_llsns and not stream.HasField("entries"):
                    raise Unavailable(
                        f"the end of stream {stream.log_stream_id} is not known at present"
                    )
                return (stream.entries if loglet.counts_llsns else segment.end) + 1
        return await loglet.locate(stream, position)

    def _check_trimmed(self, log: pb.Log, position: Glsn) -> None:
        if position < log.head:
            raise Trimmed(
                f"position {position} of log {self._log.name!r} was trimmed; "
                f"the first one kept is {log.head}"
            )

    def _check_bounds(self, log: pb.Log, position: Glsn, beyond: int = 0) -> None:
        self._check_trimmed(log, position)
        if position > log.tail + beyond:
            raise NotYetWritten(
                f"position {position} of log {self._log.name!r} is not written yet; "
                f"the last one is {log.tail}"
            )

    async def _pause(self, retries: Retries, error: LoomError, position: Glsn) -> None:
        """Wait before the next attempt; raise the error if that would be too late or no use."""
        if retries.pauses and isinstance(error, _DAMAGE):
            raise type(error)(
                f"position {position} of log {self._log.name!r} cannot be read: {error}; see "
                "`loom status`"
            ) from error
        if await retries.pause():
            return
        kind = type(error) if isinstance(error, (*_DAMAGE, Unavailable)) else Timeout
        raise kind(
            f"position {position} of log {self._log.name!r} could not be read within "
            f"{seconds(self._timeout_s)}, last: {error}; try again, and see `loom status`"
        ) from error


class TimeSearch:
    """Searches for the first entry of one log at or after a time."""

    def __init__(self, log: str, loglets: Loglets, client: Client) -> None:
        self._log = log
        self._loglets = loglets
        self._timeout_s = client.settings.request_timeout_s
        self._rng = client.rng

    async def find(self, timestamp_us: int, rows_from: RowsFrom) -> Glsn:
        """Return the position of the first entry at or after a time, or one past the tail if there
        is none."""
        retries = Retries(self._rng, self._timeout_s)
        while True:
            log = await self._loglets.fetch_with_tail()
            try:
                return await self._find(log, timestamp_us, rows_from)
            except _TRANSIENT_IN_SEARCH as error:
                if retries.pauses and isinstance(error, _DAMAGE):
                    raise
                if not await retries.pause():
                    raise Unavailable(
                        f"log {self._log!r} could not be searched within "
                        f"{seconds(self._timeout_s)}, last: {error}; try again, and see "
                        "`loom status`"
                    ) from error

    async def _find(self, log: pb.Log, timestamp_us: int, rows_from: RowsFrom) -> Glsn:
        for segment in log.segments:
            first = max(segment.start, log.head)
            last = segment.end if segment.HasField("end") else log.tail
            if first > last:
                continue
            loglet = self._loglets.of(segment.protocol)
            streams = [s for s in log.streams if s.loglet_id == segment.loglet_id]
            query = TimeQuery(timestamp_us, first, last, rows_from)
            position = await loglet.find_time(streams, query)
            if position is not None:
                return position
        return log.tail + 1
