"""The newest batches of a log, and their producers."""

from __future__ import annotations

from typing import Final, NamedTuple

from loomlog.batch import read_header
from loomlog.core.copyset.record import LSN_MAX, Kind, Lsn
from loomlog.errors import LoomError
from loomlog.limits import MIB
from loomlog.storage.logsdb.table import StoredLog

RECENT_BYTES_MAX: Final = 64 * MIB  # of batches that are read
RECENT_RECORDS_MAX: Final = 20_000


class RecentBatch(NamedTuple):
    """The producer, sequence number and place of a stored batch."""

    producer_id: int
    sequence: int
    lsn: Lsn


class RecentBatches(NamedTuple):
    """The newest batches of a log."""

    batches: list[RecentBatch]  # newest first
    complete: bool


def recent_batches(stored: StoredLog, now_us: int, span_us: int) -> RecentBatches:
    """Return the batches of the last `span_us`. They are incomplete if there are too many, one is
    damaged, or some may have been trimmed.

    `now_us`, this node's clock, may be ahead of the clocks that stamped the records; so the span
    ends with the last record, if that is earlier."""
    batches: list[RecentBatch] = []
    first, complete = _first(stored, min(now_us, _last_us(stored, now_us)) - span_us)
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
        batches.append(RecentBatch(header.producer_id, header.sequence, head.first))
        size += len(batch)
    return RecentBatches(batches[::-1], complete)


def _last_us(stored: StoredLog, otherwise: int) -> int:
    heads = (head for head in stored.scan_back(LSN_MAX) if head.kind is Kind.DATA)
    return next((head.timestamp_us for head in heads), otherwise)


def _first(stored: StoredLog, since_us: int) -> tuple[Lsn, bool]:
    """Return the first LSN of the batches since `since_us`, and whether there are not too many."""
    first = LSN_MAX
    for count, head in enumerate(stored.scan_back(LSN_MAX)):
        if head.kind is Kind.DATA and head.timestamp_us < since_us:
            break
        if count >= RECENT_RECORDS_MAX:
            return first, False
        first = head.first
    else:  # the whole log; batches that were trimmed may have been as young
        return first, not stored.standing.trimmed
    return first, True
