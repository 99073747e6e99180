"""One entry by its position."""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.batch import read_header
from loomlog.client.copyset.following import lost
from loomlog.client.copyset.guessing import Guessing
from loomlog.client.copyset.reading import Reading
from loomlog.client.copyset.segments import Segments, View
from loomlog.client.copyset.tails import Tails
from loomlog.client.pieces import Referred, decode, refers
from loomlog.core.copyset.landmarks import tail
from loomlog.core.copyset.reader_words import Deliver, Gap, GapKind
from loomlog.core.copyset.record import Record
from loomlog.errors import LoomError, NotFound, NotYetWritten, Timeout, Trimmed
from loomlog.limits import KIB
from loomlog.types import Entry, Glsn, StreamId

ROOM_BYTES: Final = 64 * KIB  # one batch comes in any case


class CopysetFinder:
    """Reads of one client from the copyset segments of one log."""

    def __init__(self, segments: Segments, tails: Tails) -> None:
        self._segments = segments
        self._tails = tails
        self._guessing = Guessing(segments)
        self._name = segments.log.name
        self._written: dict[StreamId, Glsn] = {}  # as far as it is known

    async def read(
        self, stream: StreamId, position: Glsn, deadline_s: float
    ) -> Entry | Referred | None:
        """None: the segment has ended before that position. NotFound: nothing will be there."""
        view = self._segments.view(stream)
        if position > max(view.state.tail, self._written.get(stream, 0)):
            last = await self._tails.find(view)
            view = self._segments.view(stream)
            if last is None or position > last:
                self._require_written(view, position, last)
                return None
            self._written[stream] = last
        if (record := await self._guessing.find(view, position, ROOM_BYTES)) is not None:
            return _entry(record, position)
        found = await self._take(view, position, deadline_s)
        if isinstance(found, Deliver):
            return _entry(found.record, position)
        raise self._nothing(found, position)

    def _require_written(self, view: View, position: Glsn, last: Glsn | None) -> None:
        """Above all that is known to be written there may be doubt, or a next segment."""
        if last is not None and tail(view.state, None) is None:
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
            f"nothing stands at position {position} of log {self._name!r}, and nothing ever will"
        )


def _entry(record: Record, position: Glsn) -> Entry | Referred:
    index = position - record.first
    piece = decode(record.batch, refers(read_header(record.batch)), index, 1)
    return piece if isinstance(piece, Referred) else piece.batch.entry(index)
