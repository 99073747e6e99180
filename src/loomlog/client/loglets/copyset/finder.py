"""Reads one entry of a copyset segment by its position."""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.batch import read_header
from loomlog.client.loglets.copyset.known_segments import Segments, View
from loomlog.client.loglets.copyset.likely_holders import Guessing
from loomlog.client.loglets.copyset.part import lost
from loomlog.client.loglets.copyset.reader_driver import Reading
from loomlog.client.loglets.copyset.tail import CopysetTail
from loomlog.client.subscribe.pieces import Referred, decode, refers
from loomlog.core.copyset.effects import Deliver, Gap, GapKind
from loomlog.core.copyset.landmarks import tail
from loomlog.core.copyset.record import Record
from loomlog.errors import LoomError, NotFound, NotYetWritten, Timeout, Trimmed, Unavailable
from loomlog.limits import KIB
from loomlog.types import Entry, Glsn, StreamId

SHOWN_S: Final = 1.0  # far longer than nodes take to answer
ROOM_BYTES: Final = 64 * KIB  # at least one batch is always sent


class CopysetFinder:
    """Reads from the copyset segments of one log by position."""

    def __init__(self, segments: Segments, tails: CopysetTail) -> None:
        self._segments = segments
        self._tails = tails
        self._guessing = Guessing(segments)
        self._name = segments.log.name
        self._written: dict[StreamId, Glsn] = {}  # the last known position of each stream

    async def read(
        self, stream: StreamId, position: Glsn, deadline_s: float
    ) -> Entry | Referred | LoomError:
        """Implement Loglet.read."""
        found = await self._read(stream, position, deadline_s)
        return found or Unavailable(f"position {position} is in another segment by now")

    async def _read(
        self, stream: StreamId, position: Glsn, deadline_s: float
    ) -> Entry | Referred | None:
        """Return the entry; None if the segment ends before it, or that cannot be found out."""
        view = self._segments.view(stream)
        if (record := await self._guessing.find(view, position, ROOM_BYTES)) is not None:
            return _entry(record, position)
        if position > max(view.state.tail, self._written.get(stream, 0)):
            last = await self._tails.find(view)
            view = self._segments.view(stream)
            if last is None:
                return await self._take_shown(view, position)
            if position > last:
                self._require_written(view, position, last)
                return None
            self._written[stream] = last
        found = await self._take(view, position, deadline_s)
        if isinstance(found, Deliver):
            return _entry(found.record, position)
        raise self._nothing(found, position)

    async def _take_shown(self, view: View, position: Glsn) -> Entry | Referred | None:
        """Return the entry if nodes show it although the segment's tail is unknown."""
        deadline_s = asyncio.get_running_loop().time() + SHOWN_S
        try:
            found = await self._take(view, position, deadline_s)
        except Timeout:
            return None
        return _entry(found.record, position) if isinstance(found, Deliver) else None

    def _require_written(self, view: View, position: Glsn, last: Glsn) -> None:
        """Raise NotYetWritten unless the segment has ended, so that the next one may have it."""
        if tail(view.state, None) is None:
            raise NotYetWritten(
                f"position {position} of log {self._name!r} is not written yet; the last one is "
                f"{last}"
            )

    async def _take(self, view: View, position: Glsn, deadline_s: float) -> Deliver | Gap | None:
        changed = asyncio.Event()
        reading = Reading(
            self._segments, view, position, position, changed.set, room_bytes=ROOM_BYTES
        )
        try:
            async with asyncio.timeout_at(deadline_s):
                while (found := reading.take()) is None and not reading.finished:
                    if reading.failure is not None:
                        raise reading.failure
                    changed.clear()
                    await changed.wait()
                return found
        except TimeoutError:
            raise Timeout(
                f"position {position} of log {self._name!r} could not be read in time: too few "
                "nodes answer; try again, and see `loom status`"
            ) from None
        finally:
            reading.close()

    def _nothing(self, gap: Gap | None, position: Glsn) -> LoomError:
        if gap is not None and gap.kind is GapKind.TRIM:
            return Trimmed(f"position {position} of log {self._name!r} was trimmed")
        if gap is not None and gap.kind is GapKind.DATALOSS:
            return lost(self._name, gap)
        return NotFound(
            f"position {position} of log {self._name!r} has no entry and never will: skip it"
        )


def _entry(record: Record, position: Glsn) -> Entry | Referred:
    index = position - record.first
    piece = decode(record.batch, refers(read_header(record.batch)), index, 1)
    return piece if isinstance(piece, Referred) else piece.batch.entry(index)
