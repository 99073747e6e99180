"""Which task reads what: a range of positions as ranges of its streams.

Positions are dense, so the ranges of all streams together have exactly as many entries as the range
of positions: checked on every plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from loomlog.client.blocking import BlockingLog
from loomlog.errors import DataLoss, Trimmed
from loomlog.spark.options import ReadOptions
from loomlog.types import Glsn, Llsn, StreamId

_PLANS_MAX: Final = 5  # a trim may come between two questions; not again and again


@dataclass(frozen=True)
class StreamRange(InputPartition):
    """What one task reads: entries of one stream, all within a range of positions."""

    stream: StreamId
    first_llsn: Llsn
    last_llsn: Llsn
    first: Glsn
    last: Glsn

    @property
    def count(self) -> int:
        return self.last_llsn - self.first_llsn + 1


def plan(
    log: BlockingLog,
    options: ReadOptions,
    first: Glsn,
    last: Glsn,
    streams: frozenset[StreamId] | None = None,
) -> list[StreamRange]:
    """The tasks that read the positions from `first` to `last`, of these streams or of all."""
    for _ in range(_PLANS_MAX):
        first = _kept(log, options, first, last)
        if first > last:
            return []
        try:
            ranges = _locate(log, first, last)
        except Trimmed:
            continue  # just now: the next look at the head finds out
        wanted = [r for r in ranges if streams is None or r.stream in streams]
        return list(_split(wanted, options))
    raise Trimmed(f"log {log.name!r} is trimmed faster than a read of it can be planned")


def _kept(log: BlockingLog, options: ReadOptions, first: Glsn, last: Glsn) -> Glsn:
    """The first position of the range that is still there; data loss as the options want it."""
    head = log.head()
    if first <= last and first < head and options.fail_on_data_loss:
        raise lost(log.name, first, min(last, head - 1))
    return max(first, head)


def lost(log: str, first: Glsn, last: Glsn) -> Trimmed:
    return Trimmed(
        f"log {log!r}: positions {first} to {last} were trimmed before they were read; with "
        "failOnDataLoss=false the read goes on without them"
    )


def _locate(log: BlockingLog, first: Glsn, last: Glsn) -> list[StreamRange]:
    begins, ends = log.locate(first), log.locate(last + 1)
    ranges = [
        StreamRange(stream, begin, ends[stream] - 1, first, last)
        for stream, begin in begins.items()  # a stream that came since begins above `last`
        if begin < ends[stream]
    ]
    found, expected = sum(r.count for r in ranges), last - first + 1
    if found != expected:
        raise DataLoss(
            f"log {log.name!r}: its streams have {found} entries at positions {first} to {last}, "
            f"not {expected}; see `loom status`"
        )
    return ranges


def _split(ranges: list[StreamRange], options: ReadOptions) -> Iterator[StreamRange]:
    """Parts of nearly the same size, as small and as many as the options ask for."""
    total = sum(r.count for r in ranges)
    most = options.records_per_partition_max or total
    if len(ranges) < options.partitions_min:
        most = min(most, total // options.partitions_min)
    most = max(most, 1)
    for whole in ranges:
        parts = -(-whole.count // most)
        for part in range(parts):
            begin = whole.first_llsn + whole.count * part // parts
            end = whole.first_llsn + whole.count * (part + 1) // parts
            yield StreamRange(whole.stream, begin, end - 1, whole.first, whole.last)
