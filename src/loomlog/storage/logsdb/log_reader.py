"""Reads one log in RocksDB, merging its copies from all partitions in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from heapq import merge
from itertools import islice
from typing import NamedTuple

from rocksdict import Rdict

from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import Epoch, Lsn, Record
from loomlog.core.copyset.storage import LogStanding
from loomlog.errors import Corrupt
from loomlog.storage.batch_files import BatchFiles
from loomlog.storage.files import File
from loomlog.storage.logsdb import rows
from loomlog.storage.logsdb.rows import Beginnings, PartitionId, Share, runs
from loomlog.storage.rocks import Cursor
from loomlog.types import Buffer, LogId


class LogEntry(NamedTuple):
    """The state of a log in memory; a commit replaces it as a whole."""

    standing: LogStanding = LogStanding()
    shares: Mapping[PartitionId, Share] = {}
    last: Lsn = 0  # no copy is stored above it


class Partitions(NamedTuple):
    """The partitions of a table; replaced as a whole when one is created or dropped."""

    beginnings: Beginnings
    tables: Mapping[PartitionId, Rdict]


class LogRows:
    """The rows of one log in one partition, as of the creation of the cursor, and its large
    batches."""

    def __init__(self, cursor: Cursor, log: LogId, open_file: Callable[[], File]) -> None:
        self._cursor = cursor
        self._log = log
        self._heads = rows.log_key(rows.HEADS, log)
        self._open_file = open_file

    def batch(self, head: rows.Head) -> Buffer | None:
        """Return the stored batch without verifying it; None if it is missing."""
        if not head.size:
            return b""
        if head.is_in_a_row:
            return self._cursor.get_content(
                rows.place_key(rows.BATCHES, self._log, head.record.first)
            )
        return self._read_file(head)

    @cached_property
    def _file(self) -> File:
        return self._open_file()

    def _read_file(self, head: rows.Head) -> Buffer:
        try:
            return self._file.read(head.size, head.offset)
        except OSError as error:
            raise Corrupt(f"a batch cannot be read: {error}") from error

    def covering_or_after(self, lsn: Lsn) -> Iterator[rows.Head]:
        """Yield heads, beginning with the copy that covers `lsn`, or the next one."""
        before = self._head(self._cursor.seek_back(self._key(lsn)))
        if before is not None and before.record.last >= lsn:
            yield before
        head = self._head(self._cursor.seek(self._key(lsn + 1)))
        while head is not None:
            yield head
            self._go_back_to(head)
            head = self._head(self._cursor.next())

    def before(self, last: Lsn) -> Iterator[rows.Head]:
        """Yield the heads that start at or before `last`, in descending order."""
        head = self._head(self._cursor.seek_back(self._key(last)))
        while head is not None:
            yield head
            self._go_back_to(head)
            head = self._head(self._cursor.previous())

    def _go_back_to(self, head: rows.Head) -> None:
        """Move the cursor back if another scan has moved it."""
        if self._cursor.key != (key := self._key(head.record.first)):
            self._cursor.seek(key)

    def _head(self, key: bytes | None) -> rows.Head | None:
        if key is None or not key.startswith(self._heads):
            return None
        return rows.unpack_head(rows.place_of(key), self._cursor.value)

    def _key(self, lsn: Lsn) -> bytes:
        return rows.place_key(rows.HEADS, self._log, lsn)


class LogReader:
    """The state of a log after some commit. It may include newer copies, but none is missing.
    `open_cursor` waits for the sync of a commit in progress."""

    def __init__(
        self,
        log: LogId,
        entry: LogEntry,
        partitions: Partitions,
        meta: Rdict,
        open_cursor: Callable[[Rdict], Cursor],
        files: BatchFiles,
        note_damage: Callable[[LogId, Lsn], None],
    ) -> None:
        self._log = log
        self._entry = entry
        self._trimmed = entry.standing.trimmed
        self._partitions = partitions
        self._meta = meta
        self._open_cursor = open_cursor
        self._files = files
        self._note_damage = note_damage
        self._rows: dict[PartitionId, LogRows] = {}
        self._scanned: dict[Lsn, tuple[LogRows, rows.Head]] = {}

    @property
    def standing(self) -> LogStanding:
        return self._entry.standing

    def heads(self, first: Lsn, last: Lsn, records_max: int) -> list[Record]:
        return list(islice(self.scan(first, last), records_max))

    def last_head(self, last: Lsn) -> Record | None:
        return next(self.scan_back(last), None)

    def load(self, head: Record) -> Record:
        """Load the record of a head that `scan` returned."""
        log_rows, stored = self._scanned[head.first]
        try:
            batch = rows.checked_batch(stored, log_rows.batch(stored))
            return stored.record._replace(batch=batch)
        except Corrupt:
            self._note_damage(self._log, head.first)
            raise

    def size_of(self, head: Record) -> int:
        return self._scanned[head.first][1].size

    def is_batch_of(self, head: Record, batch: Buffer) -> bool:
        return rows.is_batch_of(self._scanned[head.first][1], batch)

    def end_of(self, epoch: Epoch) -> EpochEnd | None:
        cursor = self._open_cursor(self._meta)
        value = cursor.get(rows.place_key(rows.ENDS, self._log, epoch))
        return None if value is None else rows.unpack_end(epoch, value)

    def scan(self, first: Lsn, last: Lsn) -> Iterator[Record]:
        first = max(first, self._trimmed + 1)
        for run in self._runs(first, last):
            for head, log_rows in merge(*(self._ahead(partition, first) for partition in run)):
                if head.record.first > last:
                    return
                self._scanned[head.record.first] = log_rows, head
                yield head.record

    def scan_back(self, last: Lsn) -> Iterator[Record]:
        for run in reversed(self._runs(self._trimmed + 1, last)):
            heads = [self._rows_in(partition).before(last) for partition in run]
            for head in merge(*heads, reverse=True):
                if head.record.last <= self._trimmed:
                    return
                yield head.record

    def _ahead(self, partition: PartitionId, lsn: Lsn) -> Iterator[tuple[rows.Head, LogRows]]:
        log_rows = self._rows_in(partition)
        return ((head, log_rows) for head in log_rows.covering_or_after(lsn))

    def _runs(self, first: Lsn, last: Lsn) -> list[list[PartitionId]]:
        if first > self._entry.last:
            return []  # the usual case when a record is stored
        return runs(item for item in self._entry.shares.items() if item[1].overlaps(first, last))

    def _rows_in(self, partition: PartitionId) -> LogRows:
        log_rows = self._rows.get(partition)
        if log_rows is None:
            cursor = self._open_cursor(self._partitions.tables[partition])
            log_rows = LogRows(cursor, self._log, partial(self._files.open, partition, self._log))
            self._rows[partition] = log_rows
        return log_rows
