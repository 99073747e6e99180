"""Divides a range of positions among tasks: ranges of streams, and of the archive where the log
is trimmed.

Where LLSNs are not positions they are dense, so the ranges of all streams together are exactly as
long as the range of positions. This is checked on every plan.

Where they are positions, there may be gaps, and gaps between epochs may be wide. So a range is cut
where epochs begin; the number of entries is known only for the last one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pyspark.sql.datasource import InputPartition

from loomlog.client.blocking import BlockingLog
from loomlog.client.loglets.registry import cut
from loomlog.errors import DataLoss, Trimmed
from loomlog.spark.options import ReadOptions
from loomlog.types import Glsn, Llsn, StreamId

ARCHIVED_PER_TASK: Final = 1_000_000  # by default: some seconds of work
EPOCHS_MAX: Final = 64  # a range is cut at most this many times
_PLANS_MAX: Final = 5  # attempts; each may be overtaken by a trim


@dataclass(frozen=True)
class StreamRange(InputPartition):
    """The range of one task: entries of one stream within a range of positions."""

    stream: StreamId
    first_llsn: Llsn
    last_llsn: Llsn
    first: Glsn
    last: Glsn
    by_position: bool = False  # its LLSNs are positions
    log: str = ""

    @property
    def count(self) -> int:
        return self.last_llsn - self.first_llsn + 1

    def part(self, begin: int, end: int) -> StreamRange:
        """Return the entries from `begin` to before `end`, counted from 0."""
        first = self.first_llsn
        return replace(self, first_llsn=first + begin, last_llsn=first + end - 1)


@dataclass(frozen=True)
class PositionRange(InputPartition):
    """The range of one task that reads by position, from an archive or from a log with one stream
    whose LLSNs are positions. It may have gaps. `streams` None: all."""

    first: Glsn
    last: Glsn
    streams: frozenset[StreamId] | None
    sparse: bool = False  # most of it may be one gap
    log: str = ""

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def part(self, begin: int, end: int) -> PositionRange:
        return replace(self, first=self.first + begin, last=self.first + end - 1)


TaskRange: TypeAlias = StreamRange | PositionRange


def plan(
    log: BlockingLog,
    options: ReadOptions,
    first: Glsn,
    last: Glsn,
    streams: frozenset[StreamId] | None = None,
) -> list[TaskRange]:
    """Return tasks that read the positions from `first` to `last`, of these streams or of all."""
    for _ in range(_PLANS_MAX):
        head = log.head()
        ranges: list[TaskRange] = list(_archived(log, options, first, min(last, head - 1), streams))
        live = max(first, head)
        try:
            found = _locate(log, live, last) if live <= last else []
        except Trimmed:
            continue  # trimmed just now; the next attempt uses the new head
        wanted = [r for r in found if streams is None or r.stream in streams]
        ranges += itertools.chain.from_iterable(map(_to_read, wanted))
        return [replace(part, log=log.name) for part in _split(ranges, options)]
    raise Trimmed(f"log {log.name!r} is trimmed faster than a read of it can be planned")


def _archived(
    log: BlockingLog,
    options: ReadOptions,
    first: Glsn,
    last: Glsn,
    streams: frozenset[StreamId] | None,
) -> Iterator[TaskRange]:
    """Yield trimmed positions that are archived; handle data loss according to the options."""
    if first > last:
        return
    info = log.archive()
    begin = last + 1 if info is None else min(max(info.first, first), last + 1)
    end = begin - 1 if info is None else min(info.through, last)
    if options.fail_on_data_loss and begin > first:
        raise lost(log.name, first, begin - 1)
    if options.fail_on_data_loss and end < last:
        raise lost(log.name, max(end + 1, first), last)
    if begin <= end:
        for epoch in _epochs(PositionRange(begin, end, streams)):
            parts = 1 if epoch.sparse else -(-epoch.count // ARCHIVED_PER_TASK)
            yield from _parts(epoch, parts)


def lost(log: str, first: Glsn, last: Glsn) -> Trimmed:
    return Trimmed(
        f"log {log!r}: positions {first} to {last} were trimmed before they were read; with "
        "failOnDataLoss=false the read continues without them"
    )


def _locate(log: BlockingLog, first: Glsn, last: Glsn) -> list[StreamRange]:
    begins, ends = log.locate(first), log.locate(last + 1)
    counted = {s.id for s in log.describe().streams if s.last is None}
    if not begins.keys() <= ends.keys():
        raise Trimmed(f"log {log.name!r} was trimmed at {first} or later")
    ranges = [
        StreamRange(stream, begin, ends[stream] - 1, first, last, stream not in counted)
        for stream, begin in begins.items()  # a stream that was added since begins above `last`
        if begin < ends[stream]
    ]
    found, expected = sum(r.count for r in ranges), last - first + 1
    if found != expected:
        raise DataLoss(
            f"log {log.name!r}: its streams have {found} entries at positions {first} to {last}, "
            f"not {expected}; see `loom status`"
        )
    return ranges


def _to_read(found: StreamRange) -> Sequence[TaskRange]:
    if found.by_position:
        return _epochs(PositionRange(found.first_llsn, found.last_llsn, None))
    return [found]


def _epochs(whole: PositionRange) -> list[PositionRange]:
    """Cut where an epoch of protocol `copyset` may begin. Only the end of the last one is
    known."""
    return [
        PositionRange(first, last, whole.streams, sparse=last != whole.last)
        for first, last in cut(whole.first, whole.last, EPOCHS_MAX)
    ]


def _split(ranges: list[TaskRange], options: ReadOptions) -> Iterator[TaskRange]:
    """Yield parts of nearly the same size, as small and as many as the options ask for."""
    total = sum(r.count for r in ranges if not _is_sparse(r))
    most = options.records_per_partition_max or total
    if len(ranges) < options.partitions_min:
        most = min(most, total // options.partitions_min)
    most = max(most, 1)
    for whole in ranges:
        yield from _parts(whole, 1 if _is_sparse(whole) else -(-whole.count // most))


def _is_sparse(whole: TaskRange) -> bool:
    return isinstance(whole, PositionRange) and whole.sparse


def _parts(whole: TaskRange, parts: int) -> Iterator[TaskRange]:
    for part in range(parts):
        yield whole.part(whole.count * part // parts, whole.count * (part + 1) // parts)
