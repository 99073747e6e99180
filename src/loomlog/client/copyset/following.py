"""A stretch of a copyset segment, read from the nodes that it is spread over.

Back-pressure: what is asked for ahead is bounded, in bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from loomlog.batch import read_header
from loomlog.client import pieces
from loomlog.client.copyset.reading import Reading
from loomlog.client.copyset.segments import SegmentGoneError, Segments
from loomlog.client.following import Following
from loomlog.client.orders import Order
from loomlog.client.parts import trimmed
from loomlog.client.pieces import Stored
from loomlog.core.copyset import reader_words as words
from loomlog.core.copyset.reader_words import Deliver, GapKind
from loomlog.errors import DataLoss, Retryable
from loomlog.types import Gap, Glsn
from loomlog.wire import loomlog_pb2 as pb

LOOK_S: Final = 0.05  # between looks for the end of a segment that takes no more
LOOK_S_MAX: Final = 5.0


class Source(NamedTuple):
    """What the parts of one subscription share."""

    segments: Segments
    window_bytes: int
    order: Order
    gaps: bool
    payloads: bool


class CopysetPart(Following):
    """The positions from `start` to `stop` inclusive, or to the end of the segment."""

    def __init__(self, source: Source, log: pb.Log, start: Glsn, stop: Glsn | None) -> None:
        super().__init__(start, stop)
        stretch = source.order.stretch(log, start)
        [stream] = stretch.streams
        self._source = source
        self._order = source.order
        self._stream = stream
        self._ends_at(stretch.last)
        self._looks = 0  # for the end
        self._coming: deque[Deliver | words.Gap] = deque()  # bridges, and what they lead to
        self._arrived = False  # the last of them is none
        self._behind = False  # reads what is behind the stretch
        self._reading = self._read(start, self._stop)

    def _read(self, first: Glsn, until: Glsn | None) -> Reading:
        return Reading(
            self._source.segments,
            self._source.segments.view(self._stream.log_stream_id),
            first,
            until,
            self._notify,
            room_bytes=self._source.window_bytes,
            payloads=self._source.payloads,
        )

    # ---- the consumer's side

    def next_ready(self) -> Stored | None:
        while not self._at_end() and self._failure is None:
            found = self._take()
            if found is None:
                return None
            if isinstance(found, Deliver):
                self._next = found.last + 1
                return self._piece(found)
            if (gap := self._gap(found)) is not None:
                return gap
        return None

    def _take(self) -> Deliver | words.Gap | None:
        """A bridge comes together with what it leads to: if that is the end of the segment, the
        next segment has entries where the bridge is."""
        while not self._arrived:
            found = self._reading.take()
            if found is None:
                return None
            self._coming.append(found)
            self._arrived = not (isinstance(found, words.Gap) and found.kind is GapKind.BRIDGE)
        found = self._coming.popleft()
        self._arrived = bool(self._coming)
        return found

    def _release(self) -> None:
        self._reading.close()

    def _piece(self, found: Deliver) -> Stored:
        record, rows = found.record, found.last - found.first + 1
        if not self._source.payloads:
            return pieces.blank(
                self._stream.log_stream_id, found.first, rows, record.epoch, record.timestamp_us
            )
        refers = pieces.refers(read_header(record.batch))
        return pieces.decode(record.batch, refers, found.skip, rows)

    def _gap(self, found: words.Gap) -> Gap | None:
        name = self._source.segments.log.name
        if found.kind is GapKind.TRIM:  # it may be archived
            self._failure = trimmed(self._order, self._next, name, found.last + 1)
            return None
        if found.kind is GapKind.DATALOSS and not self._source.gaps:
            self._failure = lost(name, found)
            return None
        self._next = found.last + 1
        return Gap(found.first, found.last, str(found.kind)) if self._source.gaps else None

    # ---- waiting

    async def _wait(self) -> None:
        if self._reading.failure is not None:
            self._gone(self._reading.failure)
        elif not self._reading.finished:
            await self._doze()
        elif self._coming and self._coming[-1].last == self._stop and not self._behind:
            self._look_behind(self._stop)
        else:
            await self._learn_end()

    def _look_behind(self, stop: Glsn) -> None:
        """All that was asked for ends in a bridge: does the segment go on behind it?"""
        self._behind = True
        self._reading.close()
        self._reading = self._read(stop + 1, None)

    async def _learn_end(self) -> None:
        """The segment takes no more: where is its end recorded?"""
        if self._order.crosses:
            try:
                log = await self._source.segments.log.refresh()
                self._adopt(log)
            except Retryable:
                pass
        if not self._at_end():
            patience_s = min(LOOK_S * (1 << min(self._looks, 10)), LOOK_S_MAX)
            await self._doze(self._loop.time() + patience_s)
            self._looks += 1

    def _adopt(self, log: pb.Log) -> None:
        for segment in log.segments:
            if segment.loglet_id == self._stream.loglet_id and segment.HasField("end"):
                self._ends_at(segment.end)
                return
        if all(segment.loglet_id != self._stream.loglet_id for segment in log.segments):
            self._ends_at(self._next - 1)  # all of it was delivered, then it was trimmed

    def _ends_at(self, last: Glsn | None) -> None:
        if last is not None:
            self._stop = self._clipped(last)

    def _gone(self, error: Exception) -> None:
        """The segment was trimmed: after all of it was delivered, or before."""
        log = self._source.segments.log.current
        is_passed = log is not None and log.head <= self._next
        if isinstance(error, SegmentGoneError) and self._order.crosses and is_passed:
            self._ends_at(self._next - 1)
        else:
            self._failure = error


def lost(log: str, gap: words.Gap) -> DataLoss:
    return DataLoss(
        f"positions {gap.first} to {gap.last} of log {log!r} were acknowledged, and all their "
        f"copies are gone: go on at {gap.last + 1}, or ask for gaps, too (gaps=True, --gaps)"
    )
