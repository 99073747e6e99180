"""Make the rows of a salvaged LogsDB consistent (storage/salvage.py).

Shares and partitions follow from the heads; core/copyset/salvage.py decides which records and marks
of each log are trustworthy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from typing import NamedTuple

from rocksdict import Rdict, WriteBatch

from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.salvage import sift
from loomlog.core.copyset.storage import LogStanding
from loomlog.errors import Corrupt
from loomlog.storage import salvage
from loomlog.storage.files import Files
from loomlog.storage.logsdb import rows
from loomlog.storage.logsdb.rocks_logs import family_name, options, partition_of_family
from loomlog.storage.logsdb.rows import PartitionId, Share, share_of
from loomlog.storage.rocks import Cursor
from loomlog.storage.salvage import Database, Writes
from loomlog.types import LogId


def salvage_logs(files: Files, path: str) -> str:
    """Salvage the LogsDB at `path`. Return the new path of the damaged one. Blocking."""
    return salvage.salvage(files, path, options, put_in_order, name_families)


def name_families(writes: Writes) -> dict[int, str]:
    """Return the names of the partitions' column families, by family number.

    A write that puts heads into partitions also puts shares, whose keys name the partitions. Family
    numbers and partition ids are both in order of creation, so they can be matched."""
    candidates: dict[int, set[str]] = defaultdict(set)
    for changes in writes:
        put = [change for change in changes if change.value is not None]
        numbers = {change.family for change in put} - {0}
        shares = [change.key for change in put if change.family == 0]
        partitions = {rows.place_of(key) for key in shares if key.startswith(rows.SHARES)}
        if len(numbers) == len(partitions):
            for number, partition in zip(sorted(numbers), sorted(partitions), strict=True):
                candidates[number].add(family_name(partition))
    return {number: names.pop() for number, names in candidates.items() if len(names) == 1}


class _Copy(NamedTuple):
    """A head and its place."""

    log: LogId
    head: rows.Head
    partition: PartitionId


def put_in_order(database: Database) -> None:
    order = _Order(database.main, {partition_of_family(n): t for n, t in database.families.items()})
    for log, copies in groupby(order.copies(), key=lambda copy: copy.log):
        order.add(log, copies)
    order.finish()


class _Order:
    """Derives the rows that the LogsDB should have."""

    def __init__(self, main: Rdict, tables: dict[PartitionId, Rdict]) -> None:
        self._main = main
        self._tables = tables
        self._standings = {
            rows.log_of(key): rows.unpack_standing(value)
            for key, value in Cursor(main).rows(rows.STANDINGS)
        }
        self._shares: dict[tuple[LogId, PartitionId], Share] = {}

    def copies(self) -> Iterator[_Copy]:
        """Yield the copies by log and LSN. Heads without their batches are deleted."""
        return merge(
            *(self._copies_in(partition) for partition in self._tables),
            key=lambda copy: (copy.log, copy.head.record.first),
        )

    def _copies_in(self, partition: PartitionId) -> Iterator[_Copy]:
        table = self._tables[partition]
        batches = Cursor(table)
        for key, value in Cursor(table).rows(rows.HEADS):
            head = rows.unpack_head(rows.place_of(key), value)
            if _is_batch_missing(batches, rows.log_of(key), head):
                table.delete(key)  # only the last writes of this copy are left
            else:
                yield _Copy(rows.log_of(key), head, partition)

    def add(self, log: LogId, copies: Iterator[_Copy]) -> None:
        """Determine the standing of a log, and delete copies that cannot be trusted."""
        standing = self._standings.get(log, LogStanding())
        records = ((copy.head.record, copy.partition) for copy in map(self._counted, copies))
        self._standings[log], dropped = sift(standing, records, self._ends(log))
        for record, partition in dropped:
            for kind in (rows.HEADS, rows.BATCHES):
                self._tables[partition].delete(rows.place_key(kind, log, record.first))

    def _counted(self, copy: _Copy) -> _Copy:
        """Count a copy in the share of its log."""
        place, record = (copy.log, copy.partition), copy.head.record
        share = self._shares.get(place)
        share = share.with_record(record) if share else share_of(record)
        self._shares[place] = share._replace(size=share.size + copy.head.size)
        return copy

    def _ends(self, log: LogId) -> dict[Epoch, EpochEnd]:
        found = Cursor(self._main).rows(rows.log_key(rows.ENDS, log))
        epochs = ((rows.place_of(key), value) for key, value in found)
        return {epoch: rows.unpack_end(epoch, value) for epoch, value in epochs}

    def finish(self) -> None:
        batch = WriteBatch(raw_mode=True)
        for log, standing in self._standings.items():
            batch.put(rows.log_key(rows.STANDINGS, log), rows.pack_standing(standing))
        for key, _ in Cursor(self._main).rows(rows.SHARES):
            batch.delete(key)
        for (log, partition), share in self._shares.items():
            batch.put(rows.place_key(rows.SHARES, log, partition), rows.pack_share(share))
        self._list_partitions(batch)
        self._main.write(batch)

    def _list_partitions(self, batch: WriteBatch) -> None:
        """List the partitions that have copies. If the start of one is unknown, 0 is safe: none of
        its copies is older."""
        listed = {
            rows.partition_of(key): key for key, _ in Cursor(self._main).rows(rows.PARTITIONS)
        }
        for partition in listed.keys() - self._tables.keys():
            batch.delete(listed[partition])
        used = {partition for _, partition in self._shares}
        for partition in used - listed.keys():
            batch.put(rows.partition_key(partition), rows.pack_partition(0))


def _is_batch_missing(batches: Cursor, log: LogId, head: rows.Head) -> bool:
    """Return whether the row with the batch of a head is missing or belongs to an earlier copy. An
    unreadable batch is not missing: it may be mended."""
    if not head.size or not head.is_in_a_row:
        return False
    try:
        batch = batches.get_content(rows.place_key(rows.BATCHES, log, head.record.first))
    except Corrupt:
        return False
    return batch is None or not rows.is_batch_of(head, batch)
