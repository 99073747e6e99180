"""Builds one commit: rows for RocksDB, batches for files, and the new in-memory state of the logs
that it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rocksdict import ColumnFamily, WriteBatch

from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import Lsn, Record
from loomlog.core.copyset.storage import Change, Erase, Gone, LogStanding, Put, Rewrite
from loomlog.errors import Corrupt
from loomlog.storage.batch_files import BatchFiles
from loomlog.storage.logsdb import rows
from loomlog.storage.logsdb.log_reader import LogEntry, Partitions
from loomlog.storage.logsdb.rows import PartitionId, Share, share_of
from loomlog.storage.rocks import Cursor
from loomlog.types import LogId

_FILES_MAX: Final = 4  # synced by one commit; large batches of further logs go to rows


@dataclass
class ChangedLog:
    """The state of a log after the commit."""

    standing: LogStanding
    shares: dict[PartitionId, Share]
    last: Lsn
    written: LogStanding | None  # the standing in its present row
    touched: set[PartitionId] = field(default_factory=set)
    is_gone: bool = False

    @property
    def entry(self) -> LogEntry:
        return LogEntry(self.standing, self.shares, self.last)


class Commit:
    """Collects the changes of one commit."""

    def __init__(
        self,
        entries: Mapping[LogId, LogEntry],
        partitions: Partitions,
        families: Mapping[PartitionId, ColumnFamily],
        files: BatchFiles,
        large_batch_bytes: int,
    ) -> None:
        self._entries = entries
        self._partitions = partitions
        self._families = families
        self._files = files
        self._large_batch_bytes = large_batch_bytes
        self._batch = WriteBatch(raw_mode=True)
        self.logs: dict[LogId, ChangedLog] = {}
        self.has_files = False  # it has batches for files, to be flushed before the rows
        self.takes_away = False  # it removes rows from a partition without replacing them there
        self._put: dict[tuple[LogId, Lsn], tuple[PartitionId, rows.Head]] = {}

    def add(self, log: LogId, change: Change) -> None:
        changed = self._changed(log)
        changed.is_gone = isinstance(change, Gone)
        match change:
            case Put(record):
                self._put_record(log, changed, record)
            case Rewrite(head):
                self._rewrite(log, changed, head)
            case Erase(first, last):
                self._erase(log, changed, first, last)
            case LogStanding():
                changed.standing = change
            case EpochEnd():
                key = rows.place_key(rows.ENDS, log, change.epoch)
                self._batch.put(key, rows.pack_end(change))
            case Gone():
                self._remove(log, changed)

    def drop_share(self, log: LogId, partition: PartitionId) -> None:
        """Delete all rows of a log in a partition."""
        changed = self._changed(log)
        del changed.shares[partition]
        changed.touched.add(partition)
        self.takes_away = True
        family = self._families[partition]
        for kind in (rows.HEADS, rows.BATCHES):
            self._batch.delete_range(rows.log_key(kind, log), rows.after_log(kind, log), family)

    def finish(self) -> WriteBatch:
        """Return all rows."""
        for log, changed in self.logs.items():
            self._put_shares(log, changed)
            if not changed.is_gone and changed.standing != changed.written:
                key = rows.log_key(rows.STANDINGS, log)
                self._batch.put(key, rows.pack_standing(changed.standing))
        return self._batch

    def _changed(self, log: LogId) -> ChangedLog:
        changed = self.logs.get(log)
        if changed is None:
            entry = self._entries.get(log)
            if entry is None:
                changed = ChangedLog(LogStanding(), {}, 0, None)
            else:
                changed = ChangedLog(entry.standing, dict(entry.shares), entry.last, entry.standing)
            self.logs[log] = changed
        return changed

    def _put_record(self, log: LogId, changed: ChangedLog, record: Record) -> None:
        head = rows.head_of(record)
        partition = self._partitions.beginnings.place_of(record)
        if record.first <= changed.last:
            self._erase(log, changed, record.first, record.first, but=partition)
        if self._is_for_a_file(log, partition, head):
            self.has_files = True
            head = head._replace(offset=self._files.add(partition, log, record.batch))
        self._put_head(log, partition, head)
        key = rows.place_key(rows.BATCHES, log, record.first)
        if head.size and head.is_in_a_row:
            self._batch.put(key, bytes(record.batch), self._families[partition])
        elif record.first <= changed.last:
            self._batch.delete(key, self._families[partition])  # of the record that it replaces
        share = changed.shares.get(partition)
        changed.shares[partition] = share.with_record(record) if share else share_of(record)
        changed.touched.add(partition)
        changed.last = max(changed.last, record.last)

    def _is_for_a_file(self, log: LogId, partition: PartitionId, head: rows.Head) -> bool:
        files = self._files
        is_large = head.size >= self._large_batch_bytes
        return is_large and (files.changed < _FILES_MAX or files.is_changed(partition, log))

    def _put_head(self, log: LogId, partition: PartitionId, head: rows.Head) -> None:
        first = head.record.first
        key = rows.place_key(rows.HEADS, log, first)
        self._batch.put(key, rows.pack_head(head), self._families[partition])
        self._put[log, first] = partition, head

    def _rewrite(self, log: LogId, changed: ChangedLog, record: Record) -> None:
        partition, head = self._find(log, changed, record.first)
        self._put_head(log, partition, head._replace(record=record))
        changed.shares[partition] = changed.shares[partition].with_time(record)
        changed.touched.add(partition)

    def _find(self, log: LogId, changed: ChangedLog, first: Lsn) -> tuple[PartitionId, rows.Head]:
        if (put := self._put.get((log, first))) is not None:
            return put
        for partition, share in changed.shares.items():
            if share.overlaps(first, first):
                key = rows.place_key(rows.HEADS, log, first)
                value = Cursor(self._partitions.tables[partition]).get(key)
                if value is not None:
                    return partition, rows.unpack_head(first, value)
        raise Corrupt(f"there is no copy at {first} of log {log} to be changed: check the disk")

    def _erase(
        self,
        log: LogId,
        changed: ChangedLog,
        first: Lsn,
        last: Lsn,
        *,
        but: PartitionId | None = None,
    ) -> None:
        """Erase records in all partitions except one."""
        for partition, share in changed.shares.items():
            if partition != but and share.overlaps(first, last):
                self.takes_away = True
                self._erase_in(self._families[partition], log, first, last)

    def _erase_in(self, family: ColumnFamily, log: LogId, first: Lsn, last: Lsn) -> None:
        for kind in (rows.HEADS, rows.BATCHES):
            key = rows.place_key(kind, log, first)
            if first == last:
                self._batch.delete(key, family)
            else:
                self._batch.delete_range(key, rows.place_key(kind, log, last + 1), family)

    def _remove(self, log: LogId, changed: ChangedLog) -> None:
        for partition in list(changed.shares):
            self.drop_share(log, partition)
        changed.standing, changed.last, changed.written = LogStanding(), 0, None
        self._batch.delete(rows.log_key(rows.STANDINGS, log))
        self._batch.delete_range(rows.log_key(rows.ENDS, log), rows.after_log(rows.ENDS, log))

    def _put_shares(self, log: LogId, changed: ChangedLog) -> None:
        for partition in changed.touched:
            key = rows.place_key(rows.SHARES, log, partition)
            if (share := changed.shares.get(partition)) is None:
                self._batch.delete(key)
            else:
                self._batch.put(key, rows.pack_share(share))
