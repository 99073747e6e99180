"""A log and its archive as one sequence: positions below the log's head come from Parquet.

Who meets no trimmed position never asks for the archive. A reader that does reads from the archive
up to the head as it is then, and goes on with the log; a trim meanwhile only sends it back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from loomlog.archive import record
from loomlog.archive.record import ArchiveInfo
from loomlog.client.metadata import CachedLog, Metadata
from loomlog.client.registers import Register
from loomlog.errors import Corrupt, DataLoss, LoomError, NotFound, Trimmed
from loomlog.types import Entry, Gap, Glsn, LogId

if TYPE_CHECKING:
    from loomlog.archive.reading import Archive


class Rows(Protocol):
    """Some records of a sequence."""

    @property
    def rows(self) -> int: ...

    @property
    def last_position(self) -> Glsn: ...

    def entries(self) -> list[Entry]: ...

    def to_arrow(self) -> Any: ...


class Pieces(Protocol):
    """A sequence of records, and of gaps if somebody asked for them, for one consumer at a time."""

    async def next(self) -> Rows | Gap | None: ...

    def next_ready(self) -> Rows | Gap | None: ...

    def close(self) -> None: ...


FromLog: TypeAlias = Callable[[Glsn], Pieces]
"""Opens the log itself, from a position on."""


class TrimmedPart(NamedTuple):
    """Rows out of the archive; there may be gaps between them."""

    batches: Iterator[Any]
    last: Glsn  # no later position is among them


class ArchivedLog:
    """What a client knows of one log's archive."""

    def __init__(self, log: CachedLog, metadata: Metadata, rng: random.Random) -> None:
        self._log = log
        self._register = Register(record.register_name(log.name), metadata, rng)
        self._archive: Archive | None = None

    async def info(self) -> ArchiveInfo | None:
        """As it is now; None if the log has none."""
        return await self._info_of((await self._log.look()).log_id)

    async def earliest(self) -> Glsn:
        """The first position from which on everything can be read."""
        log = await self._log.look()
        head = max(log.head, 1)
        info = await self._info_of(log.log_id) if head > 1 else None
        return head if info is None or not info.covers(head - 1) else info.first

    async def latest(self) -> Glsn:
        """The position after the last one."""
        return (await self._log.describe()).tail + 1

    async def trimmed_part(self, first: Glsn, stop: Glsn | None) -> TrimmedPart | None:
        """The archived rows from `first` to the head or to `stop`; None if `first` is not archived
        or not trimmed."""
        log = await self._log.look()
        archive = await self._covering(first, log.log_id) if first < log.head else None
        if archive is None:
            return None
        last = log.head - 1 if stop is None else min(log.head - 1, stop)
        last = min(last, archive.info.through)
        return TrimmedPart(archive.batches(first, last), last)

    async def kept_from(self, position: Glsn) -> Glsn:
        """The first position from there on that is archived, or not trimmed."""
        log = await self._log.look()
        if position >= log.head:
            return position
        info = await self._info_of(log.log_id)
        if info is None or info.through < position:
            return log.head
        return min(max(position, info.first), log.head)

    async def skips_trims(self) -> bool:
        """Readers of `copyset` logs have gaps in any case: those of trims are no error, either."""
        segments = (await self._log.look()).segments
        return bool(segments) and segments[0].protocol == "copyset"

    async def refresh(self) -> bool:
        """Look again; whether it is another archive than before, or another state of it."""
        return await self._refresh((await self._log.look()).log_id)

    async def _covering(self, position: Glsn, log_id: LogId) -> Archive | None:
        """The archive if it has that position."""
        known = None if self._archive is None else self._archive.info
        if known is None or known.log_id != log_id or not known.covers(position):
            await self._refresh(log_id)
        archive = self._archive
        return archive if archive is not None and archive.info.covers(position) else None

    async def _refresh(self, log_id: LogId) -> bool:
        from loomlog.archive.reading import Archive

        before = None if self._archive is None else self._archive.info
        info = await self._info_of(log_id)
        if info != before:
            self._archive = None if info is None else Archive(info)
        return info != before

    async def _info_of(self, log_id: LogId) -> ArchiveInfo | None:
        found = await self._register.get()
        info = None if found is None else record.decode(found.value, self._log.name)
        # A log that was made anew under this name has no part in the archive of the old one.
        return info if info is not None and info.log_id == log_id else None

    async def read(self, position: Glsn) -> Entry | None:
        """The entry at a trimmed position; None if it is not archived."""
        while (part := await self.trimmed_part(position, position)) is not None:
            try:
                batch = await asyncio.to_thread(next, part.batches, None)
            except (DataLoss, Corrupt):
                if not await self.refresh():
                    raise
            else:
                if batch is None:
                    raise NotFound(f"nothing stands at position {position}, and nothing ever will")
                return Archived(batch).entries()[0]
        return None


class Archived(NamedTuple):
    """Records out of the archive."""

    batch: Any  # pyarrow.RecordBatch

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    @property
    def last_position(self) -> Glsn:
        return int(self.batch.column(0)[-1].as_py())

    def entries(self) -> list[Entry]:
        columns = self.batch.columns
        columns[3] = columns[3].view("int64")  # timestamps in microseconds
        return list(map(Entry._make, zip(*(c.to_pylist() for c in columns), strict=True)))

    def to_arrow(self) -> Any:
        return self.batch


class _FromArchive:
    """Archived rows, read in a thread, one batch ahead."""

    def __init__(self, part: TrimmedPart) -> None:
        self.end = part.last + 1  # where it ends, and somebody else goes on
        self._batches = part.batches
        self._ahead: asyncio.Future[Any] = self._fetch()

    async def next(self) -> Archived | None:
        return self._taken(await self._ahead)

    def next_ready(self) -> Archived | None:
        ahead = self._ahead
        if not ahead.done() or ahead.cancelled() or ahead.exception() is not None:
            return None
        return self._taken(ahead.result())

    def close(self) -> None:
        self._ahead.cancel()

    def _taken(self, batch: Any) -> Archived | None:
        if batch is None:
            return None
        self._ahead = self._fetch()
        return Archived(batch)

    def _fetch(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(None, next, self._batches, None)


class OneSequence:
    """A log's records from `start` to `stop`, wherever they are. For one consumer at a time."""

    def __init__(
        self,
        archived: ArchivedLog,
        from_log: FromLog,
        start: Glsn | str,
        stop: Glsn | None,
        *,
        gaps: bool,
    ) -> None:
        """`from_log` gives records up to `stop`, too. With `gaps` what was trimmed and is not
        archived is one; else Trimmed is raised, or it is passed over in silence."""
        self._gaps = gaps
        self._archived = archived
        self._from_log = from_log
        self._start = start
        self._stop = stop
        self._next: Glsn = 0  # the position that is delivered next; 0: not begun
        self._source: Pieces | None = None

    async def next(self) -> Rows | Gap | None:
        """The next records; None when `stop` was delivered."""
        source = self._source or await self._begin()
        while True:
            try:
                piece = await source.next()
            except Trimmed as error:
                skips = self._gaps or await self._archived.skips_trims()
                gap = await self._trimmed() if skips else None
                if gap is None:
                    source = await self._turn_to_archive(error)
                elif self._gaps:
                    return self._passed(gap)
                else:
                    self._passed(gap)
                    if self._at_end():
                        return None
                    assert self._source is not None
                    source = self._source
            except (DataLoss, Corrupt) as error:
                if not isinstance(source, _FromArchive) or not await self._archived.refresh():
                    raise
                source = await self._turn_to_archive(error)  # a file was written anew
            else:
                if piece is not None:
                    return self._passed(piece)
                if isinstance(source, _FromArchive):
                    self._next = source.end
                    if not self._at_end():
                        source = self._turn_to_log()
                        continue
                return None

    def next_ready(self) -> Rows | Gap | None:
        """The next records if they are here already."""
        piece = None if self._source is None else self._source.next_ready()
        return None if piece is None else self._passed(piece)

    def _passed(self, piece: Rows | Gap) -> Rows | Gap:
        last = piece.last if isinstance(piece, Gap) else piece.last_position
        self._next = last + 1
        return piece

    def close(self) -> None:
        if self._source is not None:
            self._source.close()

    async def _begin(self) -> Pieces:
        if self._start == "earliest":
            self._next = await self._archived.earliest()
        elif self._start == "latest":
            self._next = await self._archived.latest()
        else:
            self._next = int(self._start)
        return self._turn_to_log()

    def _turn_to_log(self) -> Pieces:
        return self._turn_to(self._from_log(self._next))

    async def _trimmed(self) -> Gap | None:
        """What is trimmed from here on and not archived; None: it is archived, or not trimmed."""
        kept_from = await self._archived.kept_from(self._next)
        if kept_from <= self._next:
            return None
        last = kept_from - 1 if self._stop is None else min(kept_from - 1, self._stop)
        gap = Gap(self._next, last, "trim")
        self._turn_to(self._from_log(last + 1))
        return gap

    async def _turn_to_archive(self, error: LoomError) -> Pieces:
        part = await self._archived.trimmed_part(self._next, self._stop)
        if part is None:
            raise error
        return self._turn_to(_FromArchive(part))

    def _turn_to(self, source: Pieces) -> Pieces:
        self.close()
        self._source = source
        return source

    def _at_end(self) -> bool:
        return self._stop is not None and self._next > self._stop
