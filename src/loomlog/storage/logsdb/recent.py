"""The batches that a log got last, by their producers."""

from __future__ import annotations

from typing import Final, NamedTuple

from loomlog.batch import read_header
from loomlog.core.copyset.lsn import LSN_MAX, Lsn
from loomlog.core.copyset.record import Kind
from loomlog.errors import LoomError
from loomlog.limits import MIB
from loomlog.storage.logsdb.table import StoredLog

RECENT_BYTES_MAX: Final = 64 * MIB  # of batches that are read for it
RECENT_RECORDS_MAX: Final = 20_000


class Batch(NamedTuple):
    producer_id: int
    sequence: int
    lsn: Lsn


class RecentBatches(NamedTuple):
    batches: list[Batch]  # the last one first
    complete: bool


def recent_batches(stored: StoredLog, since_us: int) -> RecentBatches:
    """Those that are not older than this; not complete if they are too many, one is damaged, or
    some may be trimmed by now."""
    batches: list[Batch] = []
    first, complete = _first(stored, since_us)
    size = 0
    for head in stored.scan(first, LSN_MAX):
        if head.kind is not Kind.DATA:
            continue
        if size > RECENT_BYTES_MAX:
            complete = False
            break
        try:
            batch = stored.load(head).batch
            header = read_header(batch)
        except LoomError:
            complete = False
            continue
        batches.append(Batch(header.producer_id, header.sequence, head.first))
        size += len(batch)
    return RecentBatches(batches[::-1], complete)


def _first(stored: StoredLog, since_us: int) -> tuple[Lsn, bool]:
    """Where they begin, and whether all of them are behind it."""
    first = LSN_MAX
    for count, head in enumerate(stored.scan_back(LSN_MAX)):
        if head.kind is Kind.DATA and head.timestamp_us < since_us:
            break
        if count >= RECENT_RECORDS_MAX:
            return first, False
        first = head.first
    else:  # all that is left; what was trimmed may have been as young
        return first, not stored.standing.trimmed
    return first, True
