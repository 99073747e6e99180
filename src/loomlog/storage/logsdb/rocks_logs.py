"""A LogsTable in RocksDB: a column family for each partition, and one for everything else.

One write-ahead log serves all column families, so a commit is one synced write, whatever partitions
it touches. Dropping a partition unlinks its files.

The state of logs without their records (standings, shares) is also in memory, so commits do not
read it from the disk. A commit replaces an entry as a whole. A reader creates a cursor for each
partition when it first needs it: it may see copies that are newer than the entry, but misses none.
If a commit removes something meanwhile, `ask` notices and retries.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final

from rocksdict import ColumnFamily, Options, Rdict

from loomlog.core.copyset.landmarks import Ages
from loomlog.core.copyset.record import Lsn, lsn_words
from loomlog.core.copyset.storage import Change, LogStanding, Put
from loomlog.errors import Corrupt
from loomlog.limits import MIB
from loomlog.storage import rocks
from loomlog.storage.batch_files import BatchFiles
from loomlog.storage.disk import RealFiles
from loomlog.storage.files import closed_on_failure
from loomlog.storage.logsdb import rows
from loomlog.storage.logsdb.commit import ChangedLog, Commit
from loomlog.storage.logsdb.log_reader import LogEntry, LogReader, Partitions
from loomlog.storage.logsdb.rows import (
    Beginnings,
    PartitionId,
    PartitionSettings,
    Share,
    ages,
)
from loomlog.storage.logsdb.table import Found
from loomlog.storage.synced_mark import SyncedMark
from loomlog.types import LogId

logger = logging.getLogger(__name__)

_FILES_OPEN_MAX: Final = 512  # most partitions are hardly ever read
_COMPACTED_BYTES_MIN: Final = MIB  # less is not worth the work
_FIRST: Final = 1  # id of the first partition
_DAMAGE_LOGGED_MAX: Final = 1000  # copies; then it is clear that the disk is bad

# Whether a compaction searches blob files for garbage. Partitions are written only once, so there
# is none unless logs were trimmed or deleted, and that is left to `compact`.
_COLLECT_ALL: Final = {"blob_garbage_collection_age_cutoff": "1.0"}
_COLLECT_NONE: Final = {"blob_garbage_collection_age_cutoff": "0.0"}

_NO_ENTRY: Final = LogEntry()


def options() -> Options:
    made = rocks.options()
    made.set_max_open_files(_FILES_OPEN_MAX)
    made.set_blob_gc_age_cutoff(0.0)
    return made


_FAMILY: Final = "partition-"


def family_name(partition: PartitionId) -> str:
    return f"{_FAMILY}{partition:010d}"


def partition_of_family(name: str) -> PartitionId:
    return int(name.removeprefix(_FAMILY))


@dataclass
class _Use:
    """The use of a partition."""

    logs: int = 0
    size: int = 0  # of their data there, in bytes
    freed: int = 0  # bytes, since the last compaction

    def count(self, before: Share | None, after: Share | None) -> None:
        """Update the numbers after a share changed."""
        self.logs += (after is not None) - (before is not None)
        grown = (after.size if after else 0) - (before.size if before else 0)
        self.size += grown
        self.freed += max(0, -grown)


class RocksLogs:
    """The logs of one volume. Opening and closing block. The first partition of an empty table
    begins at `now_us`. `was_used`: the table must exist."""

    def __init__(
        self,
        path: str,
        now_us: int,
        settings: PartitionSettings | None = None,
        *,
        was_used: bool = False,
    ) -> None:
        rocks.prepare(path, was_used=was_used)
        self._settings = settings or PartitionSettings()
        self._committing = Lock()  # held until a commit is synced; readers wait for it
        names = rocks.families(path, options())
        self._db = rocks.open_database(path, options, names)
        with closed_on_failure(self._db):
            self._mark = SyncedMark(path, self._db)
        self._files = BatchFiles(RealFiles(), path)
        self._entries: dict[LogId, LogEntry] = {}
        self._uses: dict[PartitionId, _Use] = {}
        self._handles: dict[PartitionId, ColumnFamily] = {}
        self._cut: set[LogId] = set()  # trimmed since the last search for data to drop
        self._drops = 0  # number of commits that removed something
        self._damaged: set[tuple[LogId, Lsn]] = set()  # copies that were logged as damaged
        self._partitions = Partitions(Beginnings({}), {})
        with closed_on_failure(self):
            self._load(names, now_us)

    # ---- contents

    def logs(self) -> list[LogId]:
        return sorted(self._entries)

    def standing(self, log: LogId) -> LogStanding:
        return self._entries.get(log, _NO_ENTRY).standing

    def last(self, log: LogId) -> Lsn:
        return self._entries.get(log, _NO_ENTRY).last

    def stored_bytes(self, log: LogId) -> int:
        return sum(share.size for share in self._entries.get(log, _NO_ENTRY).shares.values())

    def look(self, log: LogId) -> LogReader:
        return LogReader(
            log,
            entry=self._entries.get(log, _NO_ENTRY),
            partitions=self._partitions,
            meta=self._db,
            open_cursor=self._open_cursor,
            files=self._files,
            note_damage=self._note_damage,
        )

    def ask(self, log: LogId, question: Callable[[LogReader], Found]) -> Found:
        while True:
            with self._committing:
                drops, stored = self._drops, self.look(log)
            answer = question(stored)
            if drops == self._drops:
                return answer

    @property
    def damaged_copies(self) -> list[tuple[LogId, Lsn]]:
        return sorted(self._damaged)

    def _note_damage(self, log: LogId, lsn: Lsn) -> None:
        """Log the damage for the operator. Readers use another copy."""
        if (log, lsn) not in self._damaged and len(self._damaged) < _DAMAGE_LOGGED_MAX:
            self._damaged.add((log, lsn))
            logger.warning(
                "loglet %d: the copy at %s is damaged, readers get another one: check the disk",
                log,
                lsn_words(lsn),
            )

    def _open_cursor(self, table: Rdict) -> rocks.Cursor:
        with self._committing:
            return rocks.Cursor(table)

    def ages(self, log: LogId, before_us: int) -> Ages:
        return ages(self._entries.get(log, _NO_ENTRY).shares.values(), before_us)

    # ---- commits

    def commit(self, changes: Sequence[tuple[LogId, Change]], *, sync: bool) -> None:
        commit = self._new_commit()
        for log, change in changes:
            commit.add(log, change)
            if isinstance(change, LogStanding) and change.trimmed:
                self._cut.add(log)
        self._write(commit, sync=sync)
        if self._damaged:
            self._damaged -= {(log, c.record.first) for log, c in changes if isinstance(c, Put)}

    def _new_commit(self) -> Commit:
        return Commit(
            entries=self._entries,
            partitions=self._partitions,
            families=self._handles,
            files=self._files,
            large_batch_bytes=self._settings.large_batch_bytes,
        )

    def _write(self, commit: Commit, *, sync: bool) -> None:
        batch = commit.finish()
        if commit.has_files:
            self._files.flush(sync=sync)
        with self._committing:
            self._drops += commit.takes_away
            self._db.write(batch)
            if sync:
                self._mark.sync()
            for log, changed in commit.logs.items():
                self._replace_entry(log, changed)
        for log, changed in commit.logs.items():
            for partition in changed.touched - changed.shares.keys():
                self._files.remove(partition, log)

    def _replace_entry(self, log: LogId, changed: ChangedLog) -> None:
        before = self._entries.get(log, _NO_ENTRY)
        for partition in changed.touched:
            use = self._uses[partition]
            use.count(before.shares.get(partition), changed.shares.get(partition))
        if changed.is_gone:
            self._entries.pop(log, None)
        else:
            self._entries[log] = changed.entry

    # ---- upkeep

    def tend(self, now_us: int) -> bool:
        beginnings = self._partitions.beginnings
        use = self._uses[beginnings.at(now_us)]
        if use.logs and beginnings.is_over(now_us, use.size, self._settings):
            self._begin(beginnings.newest + 1, now_us)
        self._drop_trimmed()
        self._damaged -= {each for each in self._damaged if self._is_gone(*each)}
        newest = self._partitions.beginnings.newest
        unused = [part for part, use in self._uses.items() if not use.logs and part != newest]
        if unused:
            self._drop(unused[0])  # one at a time: commits wait meanwhile
        return len(unused) > 1

    def _is_gone(self, log: LogId, lsn: Lsn) -> bool:
        return log not in self._entries or lsn <= self._entries[log].standing.trimmed

    def compact(self) -> None:
        for partition, use in list(self._uses.items()):
            if use.freed >= max(use.size, _COMPACTED_BYTES_MIN):
                use.freed = 0
                self._compact(partition)

    def interrupt(self) -> None:
        self._db.cancel_all_background(False)

    def close(self) -> None:
        self._handles = {}
        self._files.close()
        for table in self._partitions.tables.values():
            with suppress(Exception):  # what it fails to flush is in its log
                table.close()
        rocks.close(self._db, self._mark)

    def _begin(self, partition: PartitionId, start_us: int) -> None:
        tables = self._partitions.tables
        table = self._db.create_column_family(family_name(partition), options())
        self._db.put(rows.partition_key(partition), rows.pack_partition(start_us))
        self._mark.sync()
        starts_us = {**self._partitions.beginnings.starts_us, partition: start_us}
        self._set_partitions(starts_us, {**tables, partition: table})
        if tables:
            tables[partition - 1].flush(wait=False)  # frees its memory and its log

    def _drop_trimmed(self) -> None:
        """Drop the shares of which everything is trimmed."""
        cut, self._cut = self._cut, set()
        commit = self._new_commit()
        for log in cut:
            entry = self._entries.get(log, _NO_ENTRY)
            for partition, share in entry.shares.items():
                if share.last <= entry.standing.trimmed:
                    commit.drop_share(log, partition)
        if commit.logs:
            self._write(commit, sync=True)

    def _drop(self, partition: PartitionId) -> None:
        """Drop an empty partition. If a power loss interrupts it, the next start finishes it."""
        self._db.delete(rows.partition_key(partition))
        self._mark.sync()
        starts_us, tables = dict(self._partitions.beginnings.starts_us), {**self._partitions.tables}
        del starts_us[partition], tables[partition]
        self._set_partitions(starts_us, tables)
        self._db.drop_column_family(family_name(partition))
        self._files.remove_folder(partition)

    def _compact(self, partition: PartitionId) -> None:
        table = self._partitions.tables.get(partition)
        if table is None:
            return
        try:
            table.set_options(_COLLECT_ALL)
            table.compact_range(None, None)
            table.set_options(_COLLECT_NONE)
        except Exception:
            if partition in self._partitions.tables:  # otherwise it was dropped meanwhile
                raise

    # ---- opening

    def _load(self, names: list[str], now_us: int) -> None:
        """Read the state into memory. Everything is checked before anything is removed."""
        unlisted = self._open_partitions(names)
        self._load_entries()
        for name in unlisted:
            self._check_empty(name)
        for name in unlisted:
            self._db.drop_column_family(name)
        self._files.remove_others(
            {(part, log) for log, entry in self._entries.items() for part in entry.shares}
        )
        if not self._uses:
            self._begin(_FIRST, now_us)

    def _open_partitions(self, names: list[str]) -> list[str]:
        """Open the listed partitions. Return the names of the families that are not listed."""
        starts_us = {
            rows.partition_of(key): rows.unpack_partition(value)
            for key, value in self._rows(rows.PARTITIONS)
        }
        listed = {family_name(partition): partition for partition in starts_us}
        if missing := listed.keys() - set(names):
            raise Corrupt(f"{', '.join(sorted(missing))} is missing: restore the volume")
        tables = {partition: self._db.get_column_family(name) for name, partition in listed.items()}
        self._set_partitions(starts_us, tables)
        return [name for name in names if name not in listed]

    def _check_empty(self, name: str) -> None:
        """Raise unless an unlisted family has no rows: then an interrupted creation or removal of a
        partition left it."""
        table = self._db.get_column_family(name)
        try:
            if rocks.Cursor(table).seek(b"") is not None:
                raise Corrupt(f"{name} has records and is not listed: restore the volume")
        finally:
            table.close()

    def _load_entries(self) -> None:
        shares: defaultdict[LogId, dict[PartitionId, Share]] = defaultdict(dict)
        for key, value in self._rows(rows.SHARES):
            share = rows.unpack_share(value)
            partition = rows.place_of(key)
            if partition not in self._uses:
                raise Corrupt(f"{family_name(partition)} is not listed: restore the volume")
            shares[rows.log_of(key)][partition] = share
            self._uses[partition].count(None, share)
        for key, value in self._rows(rows.STANDINGS):
            log = rows.log_of(key)
            last = max((share.last for share in shares[log].values()), default=0)
            self._entries[log] = LogEntry(rows.unpack_standing(value), shares[log], last)
        self._cut.update(self._entries)

    def _rows(self, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
        return rocks.Cursor(self._db).rows(kind)

    def _set_partitions(
        self, starts_us: dict[PartitionId, int], tables: dict[PartitionId, Rdict]
    ) -> None:
        self._handles = {
            partition: self._db.get_column_family_handle(family_name(partition))
            for partition in tables
        }
        self._uses = {partition: self._uses.get(partition, _Use()) for partition in tables}
        self._partitions = Partitions(Beginnings(starts_us), tables)
