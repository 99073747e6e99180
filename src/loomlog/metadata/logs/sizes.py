"""Retention by bytes: measure how much each log stores (core/sizes.py), as it grows.

Only logs with such a limit are measured. Marks are stored in the MetaStore; the loss of one only
keeps entries longer. Rows that are staged for a log count as soon as they are staged: rows staged
after the log had a certain tail are published after that tail.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from loomlog.core.requests import drive
from loomlog.core.segments import Segment
from loomlog.core.sizes import (
    PIECES_MAX,
    STEPS,
    AskSizes,
    Measured,
    SizeMark,
    SizeMarks,
    corrected,
    last_surplus,
    measure,
    noted,
    piece_of,
    refine,
)
from loomlog.errors import LoomError, NotLeader
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.logs.log_notes import LogNotes
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.store.contract import MetaStore
from loomlog.staging_logs import staging_name
from loomlog.types import Glsn, LogId

logger = logging.getLogger(__name__)

PIECES_AT_ONCE: Final = 256  # of a log that was never measured: the rest in later passes
SETTLED_S: Final = (
    5.0  # entries that were being written during a measurement are there after this time
)
_PREFIX: Final = "sizes/"


@dataclass(frozen=True, slots=True)
class SizesRecord:
    """The marks of a log."""

    marks: SizeMarks = ()

    def __post_init__(self) -> None:
        """Convert the plain tuples of a stored record."""
        object.__setattr__(self, "marks", tuple(SizeMark(*each) for each in self.marks))


class Sizes:
    """The sizes of the logs of a term."""

    def __init__(self, store: MetaStore, catalog: Catalog, keepers: Keepers) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._keepers = keepers
        self._notes = LogNotes(store, _PREFIX, SizesRecord)
        self._measuring: WeakValueDictionary[LogId, asyncio.Lock] = WeakValueDictionary()
        # Ends of pieces that may still grow, and when they were measured.
        self._fresh: dict[LogId, deque[tuple[Glsn, float]]] = {}

    async def last_surplus(self, log: LogRecord) -> Glsn:
        """Return the position up to which a log may be trimmed by its size; 0: none."""
        async with self._measuring.setdefault(log.log_id, asyncio.Lock()):
            marks = (await self._notes.all()).get(log.log_id, SizesRecord()).marks
            try:
                measured = await self._measured(log, marks)
            except NotLeader:
                raise
            except LoomError:
                if (known := last_surplus(marks, log.retention_bytes)) > log.trimmed:
                    return known
                raise
            if measured != marks:
                await self._notes.write(log.log_id, SizesRecord(measured))
        return last_surplus(measured, log.retention_bytes)

    async def forget_others(self) -> None:
        """Forget logs that were deleted, or have no limit any more."""
        logs = {log.log_id for log in self._catalog.logs.values() if log.retention_bytes}
        self._fresh = {log_id: fresh for log_id, fresh in self._fresh.items() if log_id in logs}
        try:
            await self._notes.keep_only(logs)
        except NotLeader:
            raise
        except LoomError as error:
            logger.info("cannot forget sizes of logs now: %s", error)

    async def _measured(self, log: LogRecord, marks: SizeMarks) -> SizeMarks:
        grown = await self._continue(log, await self._correct(log, marks))
        cutting = refine(grown, log.trimmed, log.retention_bytes)
        return await drive(cutting, partial(self._sizes_of, log))

    async def _correct(self, log: LogRecord, marks: SizeMarks) -> SizeMarks:
        """Measure again the pieces that were the newest ones a while ago."""
        fresh = self._fresh.setdefault(log.log_id, deque())
        settled_at = self._loop.time() - SETTLED_S
        ranges: list[AskSizes] = []
        while fresh and fresh[0][1] <= settled_at and len(ranges) < PIECES_MAX:
            if (piece := piece_of(marks, fresh.popleft()[0], log.trimmed)) is not None:
                ranges.append(piece)
        return corrected(marks, await self._sizes_of(log, ranges))

    async def _continue(self, log: LogRecord, marks: SizeMarks) -> SizeMarks:
        """Measure new entries; return all marks."""
        step = max(log.retention_bytes // STEPS, 1)
        tail = self._tail(log)  # before that of the staging log
        for _ in range(PIECES_AT_ONCE):
            newest = marks[-1] if marks else SizeMark(0, 0)
            first = max(newest.last, log.trimmed) + 1
            piece = await self._piece(log, first, tail)
            if piece.through < first:
                break
            at_end = piece.through >= tail
            staged, size = newest.staged, piece.size
            if at_end:
                staged, more = await self._measure_staged(log, newest.staged)
                size += more
            if at_end and 2 * size < step:
                break  # it may still grow
            if at_end:
                fresh = self._fresh.setdefault(log.log_id, deque())
                fresh.append((piece.through, self._loop.time()))
            marks = noted(marks, SizeMark(piece.through, size, staged), log.trimmed)
        return marks

    async def _measure_staged(self, log: LogRecord, after: Glsn) -> tuple[Glsn, int]:
        """Return the tail of the log's staging log, and the size of its entries after `after`."""
        staging = self._catalog.logs.get(staging_name(log.name))
        if staging is None or staging.unfinished:
            return after, 0
        first = max(after, staging.trimmed) + 1
        return await self._size_of(staging, AskSizes(first, self._tail(staging)))

    async def _sizes_of(self, log: LogRecord, ranges: list[AskSizes]) -> list[Measured]:
        return await asyncio.gather(*(self._size_of(log, range_) for range_ in ranges))

    async def _size_of(self, log: LogRecord, range_: AskSizes) -> Measured:
        """Measure a whole range, or as much of its beginning as is known."""
        reached, size = range_.first - 1, 0
        while reached < range_.last:
            piece = await self._piece(log, reached + 1, range_.last)
            if piece.through <= reached:
                break
            reached, size = piece.through, size + piece.size
        return Measured(reached, size)

    async def _piece(self, log: LogRecord, first: Glsn, tail: Glsn) -> Measured:
        """Measure a piece that begins at `first`, in its segment."""
        segment = _segment_at(log, first)
        if first > tail or segment is None:
            return Measured(first - 1, 0)
        keeper = self._keepers.of(segment.settings.protocol)
        last = tail if segment.end is None else min(tail, segment.end)

        async def ask(range_: AskSizes) -> list[Measured]:
            return list(await keeper.measure(log, segment, *range_))

        return await drive(measure(first, last), ask)

    def _tail(self, log: LogRecord) -> Glsn:
        return self._keepers.active(log).known_tail(log, log.layout.active)


def _segment_at(log: LogRecord, position: Glsn) -> Segment | None:
    for segment in log.segments:
        if segment.end is None or position <= segment.end:
            return segment if segment.start <= position else None
    return None
