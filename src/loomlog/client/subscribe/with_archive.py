"""Reads a log and its archive as one sequence: positions below the log's head come from Parquet.

The archive is opened only when a reader encounters a trimmed position. The archive is then read up
to the current head, and reading continues in the log; after another trim it may return to the
archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from loomlog.archive import record
from loomlog.archive.record import ArchiveInfo
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.kv.registers import Register
from loomlog.client.loglets.registry import Loglets
from loomlog.client.subscribe.pieces import Pieces, Shown
from loomlog.errors import Corrupt, DataLoss, LoomError, NotFound, Trimmed
from loomlog.types import Entry, Gap, Glsn, LogId

if TYPE_CHECKING:
    from loomlog.archive.contents import Archive


FromLog: TypeAlias = Callable[[Glsn], Pieces[Shown]]
"""Opens the log itself at a position."""


class TrimmedPart(NamedTuple):
    """Rows from the archive, perhaps with gaps between them."""

    batches: Iterator[Any]
    last: Glsn  # no row has a position above this


class ArchivedLog:
    """The archive of one log, if there is one."""

    def __init__(self, log: CachedLog, loglets: Loglets, client: Client) -> None:
        self.name = log.name
        self._log = log
        self._loglets = loglets
        self._register = Register(record.register_name(log.name), client.metadata, client.rng)
        self._archive: Archive | None = None

    async def info(self) -> ArchiveInfo | None:
        """Return the current description of the archive, or None if the log has none."""
        return await self._info_of((await self._log.fetch()).log_id)

    async def earliest(self) -> Glsn:
        """Return the first position that can be read, from the log or its archive."""
        log = await self._log.fetch()
        head = max(log.head, 1)
        info = await self._info_of(log.log_id) if head > 1 else None
        return head if info is None or not info.covers(head - 1) else info.first

    async def latest(self) -> Glsn:
        """Return the position after the tail."""
        return (await self._loglets.fetch_with_tail()).tail + 1

    async def trimmed_part(self, first: Glsn, stop: Glsn | None) -> TrimmedPart | None:
        """Return the archived rows from `first` to the head or to `stop`, or None if `first` is not
        archived or not trimmed."""
        log = await self._log.fetch()
        archive = await self._covering(first, log.log_id) if first < log.head else None
        if archive is None:
            return None
        last = log.head - 1 if stop is None else min(log.head - 1, stop)
        last = min(last, archive.info.through)
        return TrimmedPart(archive.batches(first, last), last)

    async def kept_from(self, position: Glsn) -> Glsn:
        """Return the first position at or after `position` that is archived or not trimmed."""
        log = await self._log.fetch()
        if position >= log.head:
            return position
        info = await self._info_of(log.log_id)
        if info is None or info.through < position:
            return log.head
        return min(max(position, info.first), log.head)

    async def refresh(self) -> bool:
        """Reload the description of the archive; return whether it has changed."""
        return await self._refresh((await self._log.fetch()).log_id)

    async def end_of_file(self, position: Glsn, otherwise: Glsn) -> Glsn:
        """Return the last position of the file that contains `position`, or `otherwise` if that is
        not known."""
        archive = self._archive
        try:
            file = None if archive is None else await asyncio.to_thread(archive.file, position)
        except LoomError:  # the manifest is gone as well
            file = None
        return otherwise if file is None else file.last

    async def _covering(self, position: Glsn, log_id: LogId) -> Archive | None:
        """Return the archive if it contains `position`."""
        info = None if self._archive is None else self._archive.info
        if info is None or info.log_id != log_id or not info.covers(position):
            await self._refresh(log_id)
        archive = self._archive
        return archive if archive is not None and archive.info.covers(position) else None

    async def _refresh(self, log_id: LogId) -> bool:
        from loomlog.archive.contents import Archive

        before = None if self._archive is None else self._archive.info
        info = await self._info_of(log_id)
        if info != before:
            self._archive = None if info is None else Archive(info)
        return info != before

    async def _info_of(self, log_id: LogId) -> ArchiveInfo | None:
        current = await self._register.get()
        info = None if current is None else record.decode(current.value, self._log.name)
        # Ignore the archive of a deleted log of the same name.
        return info if info is not None and info.log_id == log_id else None

    async def read(self, position: Glsn) -> Entry | None:
        """Return the entry at a trimmed position, or None if the position is not archived. Raise
        NotFound if it is an archived gap."""
        while (part := await self.trimmed_part(position, position)) is not None:
            try:
                batch = await asyncio.to_thread(next, part.batches, None)
            except (DataLoss, Corrupt):
                if not await self.refresh():
                    raise
            else:
                if batch is None:
                    raise NotFound(f"position {position} has no entry and never will: skip it")
                return Archived(batch).entries()[0]
        return None


class Archived(NamedTuple):
    """Records from the archive."""

    batch: Any  # pyarrow.RecordBatch

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    @property
    def last_position(self) -> Glsn:
        return int(self.batch.column(0)[-1].as_py())

    def entries(self) -> list[Entry]:
        from loomlog.columns.reader import headers_of

        columns = self.batch.columns
        columns[3] = columns[3].view("int64")  # timestamps in microseconds
        headers = headers_of(columns.pop())
        fields = (column.to_pylist() for column in columns)
        return list(map(Entry._make, zip(*fields, headers, strict=True)))

    def to_arrow(self) -> Any:
        return self.batch

    def positions_and_keys(self) -> tuple[Any, Any]:
        from loomlog.columns.reader import int64_numbers

        return int64_numbers(self.batch.column("position")), self.batch.column("key")

    def chosen(self, indices: Any) -> list[Entry]:
        from loomlog.columns.reader import index_column

        return Archived(self.batch.take(index_column(indices))).entries()


class _ArchivedPieces:
    """Archived rows, which a thread reads one batch ahead."""

    def __init__(self, part: TrimmedPart) -> None:
        self.end = part.last + 1
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


class WithArchive:
    """The records of a log from `start` to `stop`, from the log or its archive, for one consumer at
    a time."""

    def __init__(
        self,
        archived: ArchivedLog,
        from_log: FromLog,
        start: Glsn | str,
        stop: Glsn | None,
        *,
        gaps: bool,
        passes_lost_files: bool,
    ) -> None:
        """`from_log` ends at `stop`, too. With `gaps`, positions that are trimmed and not archived
        are gaps; otherwise they raise Trimmed. With `passes_lost_files`, positions in missing or
        damaged files are gaps; otherwise they raise DataLoss or Corrupt."""
        self._gaps = gaps
        self._passes_lost_files = passes_lost_files
        self._archived = archived
        self._from_log = from_log
        self._start = start
        self._stop = stop
        self._next: Glsn = 0  # the next position to deliver; 0: not started
        self._source: Pieces[Shown] | None = None

    async def next(self) -> Shown | None:
        """Return the next records; None after `stop`."""
        source = self._source or await self._begin()
        while True:
            try:
                piece = await source.next()
            except Trimmed as error:
                gap = await self._trimmed() if self._gaps else None
                if gap is not None:
                    return self._passed(gap)
                source = await self._switch_to_archive(error)
            except (DataLoss, Corrupt) as error:
                if not isinstance(source, _ArchivedPieces):
                    raise
                if not await self._archived.refresh():
                    return self._passed(await self._lost(source.end - 1, error))
                source = await self._switch_to_archive(error)  # a file was replaced
            else:
                if piece is not None:
                    return self._passed(piece)
                if isinstance(source, _ArchivedPieces):
                    self._next = source.end
                    if not self._at_end():
                        source = self._switch_to_log()
                        continue
                return None

    def next_ready(self) -> Shown | None:
        """Return the next records if they have arrived."""
        piece = None if self._source is None else self._source.next_ready()
        return None if piece is None else self._passed(piece)

    def _passed(self, piece: Shown) -> Shown:
        last = piece.last if isinstance(piece, Gap) else piece.last_position
        self._next = last + 1
        return piece

    def close(self) -> None:
        if self._source is not None:
            self._source.close()

    async def _begin(self) -> Pieces[Shown]:
        if self._start == "earliest":
            self._next = await self._archived.earliest()
        elif self._start == "latest":
            self._next = await self._archived.latest()
        else:
            self._next = int(self._start)
        return self._switch_to_log()

    def _switch_to_log(self) -> Pieces[Shown]:
        return self._switch_to(self._from_log(self._next))

    async def _trimmed(self) -> Gap | None:
        """Return the gap of positions here that are trimmed and not archived, or None."""
        kept_from = await self._archived.kept_from(self._next)
        if kept_from <= self._next:
            return None
        last = kept_from - 1 if self._stop is None else min(kept_from - 1, self._stop)
        gap = Gap(self._next, last, "trim")
        self._switch_to(self._from_log(last + 1))
        return gap

    async def _lost(self, last: Glsn, error: DataLoss | Corrupt) -> Gap:
        """Return the gap of archived positions here, up to `last`, that cannot be read; raise the
        error instead unless lost files are to be passed."""
        last = min(last, await self._archived.end_of_file(self._next, last))
        if not self._passes_lost_files:
            raise type(error)(
                f"positions {self._next} to {last} of log {self._archived.name!r} cannot be read: "
                f"{error}; continue at {last + 1}, or ask for gaps, too (gaps=True, --gaps)"
            ) from error
        gap = Gap(self._next, last, "dataloss", exact=False)
        self._switch_to(self._from_log(last + 1))
        return gap

    async def _switch_to_archive(self, error: LoomError) -> Pieces[Shown]:
        part = await self._archived.trimmed_part(self._next, self._stop)
        if part is None:
            raise error
        return self._switch_to(_ArchivedPieces(part))

    def _switch_to(self, source: Pieces[Shown]) -> Pieces[Shown]:
        self.close()
        self._source = source
        return source

    def _at_end(self) -> bool:
        return self._stop is not None and self._next > self._stop
