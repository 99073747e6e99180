"""Follows a copyset segment, read from all nodes of its nodeset.

Back-pressure: read-ahead is limited in bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from loomlog.batch import read_header
from loomlog.client.loglets.contract import FollowOptions
from loomlog.client.loglets.copyset.reader_driver import RunningReader
from loomlog.client.loglets.copyset.segments import Segments
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.client.subscribe import pieces
from loomlog.client.subscribe.part import FollowedPart, trimmed
from loomlog.client.subscribe.pieces import Stored
from loomlog.core.backoff import Backoff
from loomlog.core.copyset.effects import Deliver, GapKind, ReadGap
from loomlog.errors import DataLoss, Retryable
from loomlog.types import Gap, Glsn
from loomlog.wire import loomlog_pb2 as pb

LOOKS: Final = Backoff(0.05, 5.0)  # between polls for the recorded end of a closed segment


class CopysetPart(FollowedPart):
    """The positions from `start` to `stop` inclusive, or to the end of the segment."""

    def __init__(
        self,
        segments: Segments,
        options: FollowOptions,
        log: pb.Log,
        start: Glsn,
        stop: Glsn | None,
    ) -> None:
        super().__init__(start, stop)
        run = options.numbering.run(log, start)
        [stream] = run.streams
        self._segments = segments
        self._options = options
        self._numbering = options.numbering
        self._stream = stream
        self._ends_at(run.last)
        self._looks = 0  # polls for the end
        self._coming: deque[Deliver | ReadGap] = deque()  # bridges and the item after them
        self._arrived = False  # whether the last of them is no bridge
        self._behind = False  # whether it reads beyond the run
        self._reading = self._read(start, self._stop)

    def _read(self, first: Glsn, until: Glsn | None) -> RunningReader:
        return RunningReader(
            self._segments,
            self._segments.view(self._stream.log_stream_id),
            first,
            until,
            self._notify,
            room_bytes=self._options.window_bytes,
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

    def _take(self) -> Deliver | ReadGap | None:
        """Return the next item if it has arrived. A bridge is held back until the item after it
        arrives: if the segment ends there, the next segment has entries in place of the bridge."""
        while not self._arrived:
            found = self._reading.take()
            if found is None:
                return None
            self._coming.append(found)
            self._arrived = not (isinstance(found, ReadGap) and found.kind is GapKind.BRIDGE)
        found = self._coming.popleft()
        self._arrived = bool(self._coming)
        return found

    def _release(self) -> None:
        self._reading.close()

    def _piece(self, found: Deliver) -> Stored:
        record, rows = found.record, found.last - found.first + 1
        return pieces.decode(record.batch, read_header(record.batch), found.skip, rows)

    def _gap(self, found: ReadGap) -> Gap | None:
        name = self._segments.log.name
        if found.kind is GapKind.TRIM:  # an error, since it may be archived
            self._failure = trimmed(self._numbering, self._next, name, found.last + 1)
            return None
        if found.kind is GapKind.DATALOSS and not self._options.gaps:
            self._failure = lost(name, found)
            return None
        last = found.last if self._stop is None else min(found.last, self._stop)
        self._next = last + 1
        if not self._options.gaps:
            return None
        return Gap(found.first, last, str(found.kind), found.exact)

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
        """Read beyond a bridge at the end of the run, to see whether the segment continues."""
        self._behind = True
        self._reading.close()
        self._reading = self._read(stop + 1, None)

    async def _learn_end(self) -> None:
        """Poll the metadata repository for the recorded end of the closed segment."""
        if self._numbering.crosses:
            try:
                log = await self._segments.log.refresh()
                self._adopt(log)
            except Retryable:
                pass
        if not (self._arrived or self._at_end()):
            patience_s = LOOKS.delay_s(self._looks)
            await self._doze(self._loop.time() + patience_s)
            self._looks += 1

    def _adopt(self, log: pb.Log) -> None:
        for segment in log.segments:
            if segment.loglet_id == self._stream.loglet_id and segment.HasField("end"):
                self._ends_at(segment.end)
                if self._coming and self._coming[0].first <= segment.end:
                    self._arrived = True  # the bridge is part of the segment
                return
        if all(segment.loglet_id != self._stream.loglet_id for segment in log.segments):
            self._ends_at(self._next - 1)  # trimmed after all of it was delivered

    def _ends_at(self, last: Glsn | None) -> None:
        if last is not None:
            self._stop = self._clipped(last)

    def _gone(self, error: Exception) -> None:
        """End if the segment was trimmed after all of it was delivered, else fail."""
        log = self._segments.log.last_known
        is_passed = log is not None and log.head <= self._next
        if isinstance(error, SegmentGoneError) and self._numbering.crosses and is_passed:
            self._ends_at(self._next - 1)
        else:
            self._failure = error


def lost(log: str, gap: ReadGap) -> DataLoss:
    what = (
        f"positions {gap.first} to {gap.last} of log {log!r} were acknowledged, and all their "
        "copies are gone"
        if gap.exact
        else f"entries of log {log!r} from position {gap.first} on may have been acknowledged, if "
        "any, how many is not known, and their copies are gone"
    )
    return DataLoss(f"{what}: continue at {gap.last + 1}, or ask for gaps, too (gaps=True, --gaps)")
