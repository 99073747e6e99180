"""Settle the last part of an epoch from the copies that were found, and plan the writes. Pure.

Of copies that differ the one of higher precedence counts. A hole covers a range, and a bridge all
up to the end of its epoch: the recovery that wrote it had found nothing complete there. So whatever
a mark covers is void if it is of lower precedence, even long after a bridge.

Every span gets one copyset: the nodes that have a copy there, right or wrong, and more of them
until it is fully stored. All copies get one wave, above all that is there. So nothing else is left
on these nodes afterwards, and a later recovery finds the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from loomlog.core.copyset.nodeset import EpochMetadata, node_of, shuffled
from loomlog.core.copyset.record import OFFSET_MAX, Kind, Lsn, Offset, Record, make, offset_of
from loomlog.types import ShardId

# Ranges that the epoch store remembers. A sequencer has at most 1,000 records under way, and every
# other of them may be missing; more can be if disks forgot how far all was stored.
UNMARKED_MAX: Final = 512

Digests: TypeAlias = Mapping[ShardId, Sequence[Record]]  # heads, in order


class Span(NamedTuple):
    """The content of the offsets [first, last]."""

    first: Offset
    last: Offset
    kind: Kind


class Settled(NamedTuple):
    """The content of an epoch, as recovery decided it."""

    spans: tuple[Span, ...]  # in order; they do not overlap
    last: Offset  # of the last record; 0: there is none
    exact: bool  # nothing was acknowledged behind it


def span_of(record: Record) -> Span:
    return Span(record.offset, offset_of(record.last), record.kind)


def overlapping(spans: Sequence[Span], span: Span) -> range:
    """Return those of `spans`, which are in order, that share an offset with another one."""
    begin = bisect_left(spans, span.first, key=attrgetter("last"))
    return range(begin, bisect_right(spans, span.last, lo=begin, key=attrgetter("first")))


def settle(
    digests: Digests, after: Offset, *, authoritative: bool, acknowledged: Offset = 0
) -> Settled:
    """Settle everything above the offset `after`, up to which everything was fully stored. Where
    nothing was found there are holes, unless the digest is not authoritative or lacks what is known
    to be `acknowledged`: then more may be missing, and the loss must stay visible. An epoch without
    any record stays as it is."""
    spans = _prevailing(record for records in digests.values() for record in records)
    data = [span for span in spans if span.kind is Kind.DATA]
    last = max([after, *(span.last for span in data)])
    if not authoritative or last < acknowledged:
        if spans and spans[-1].last == OFFSET_MAX:
            # A bridge of a recovery that knew all, and died: the last record was just before it.
            last = max(last, spans[-1].first - 1)
            return Settled(tuple(spans), last, exact=last >= acknowledged)
        return Settled(tuple(spans), last, exact=False)
    if not spans and not last:
        return Settled((), 0, exact=True)
    marks = _without(after + 1, OFFSET_MAX, data)
    return Settled(tuple(sorted([*data, *marks])), last, exact=True)


def _prevailing(records: Iterable[Record]) -> list[Span]:
    """Return the spans that count: by falling precedence, data where it fits, marks in gaps."""
    spans: list[Span] = []
    for record in sorted(records, key=lambda record: record.precedence, reverse=True):
        span = span_of(record)
        in_the_way = [spans[index] for index in overlapping(spans, span)]
        if span.kind is not Kind.DATA:
            for mark in _without(span.first, span.last, in_the_way):
                insort(spans, mark)
        elif not in_the_way:
            insort(spans, span)
    return spans


def _without(first: Offset, last: Offset, taken: Iterable[Span]) -> list[Span]:
    """Return marks for the parts of [first, last] that `taken`, which is in order, leaves."""
    marks = []
    for span in taken:
        if first < span.first:
            marks.append(_mark(first, span.first - 1))
        first = max(first, span.last + 1)
    if first <= last:
        marks.append(_mark(first, last))
    return marks


def unmarked(spans: Iterable[Span], after: Offset) -> tuple[tuple[Offset, Offset], ...]:
    """Return the ranges above `after` that no mark covers. What is there is a record. If recovery
    did not find it, it was lost, and may come back. There are few enough for the epoch store: of
    very many the last ones are one, so that holes between them count as losses, not the reverse."""
    marks = [span for span in spans if span.kind is not Kind.DATA]
    ranges = [(span.first, span.last) for span in _without(after + 1, OFFSET_MAX, marks)]
    if len(ranges) > UNMARKED_MAX:
        ranges[UNMARKED_MAX - 1 :] = [(ranges[UNMARKED_MAX - 1][0], ranges[-1][1])]
    return tuple(ranges)


def above(after: Offset, digests: Digests) -> dict[ShardId, list[Record]]:
    return {
        shard: [record for record in digest if offset_of(record.last) > after]
        for shard, digest in digests.items()
    }


def without_marks(digests: Digests) -> dict[ShardId, list[Record]]:
    """Return only the batches that were found."""
    return {
        shard: [record for record in digest if record.kind is Kind.DATA]
        for shard, digest in digests.items()
    }


def doubted(digests: Digests, spans: Iterable[Span]) -> list[tuple[Offset, Offset]]:
    """Return the ranges with marks that were found in the place of none of the spans, which are in
    order."""
    settled = list(spans)
    marks = [span_of(r) for digest in digests.values() for r in digest if r.kind is not Kind.DATA]
    ranges: list[tuple[Offset, Offset]] = []
    for mark in sorted(marks):
        in_the_way = [settled[index] for index in overlapping(settled, mark)]
        for first, last, _ in _without(mark.first, mark.last, in_the_way):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = ranges[-1][0], max(last, ranges[-1][1])
            else:
                ranges.append((first, last))
    return ranges


def _mark(first: Offset, last: Offset) -> Span:
    return Span(first, last, Kind.BRIDGE if last == OFFSET_MAX else Kind.HOLE)


class Mutation(NamedTuple):
    """One change, to be sent to the shards of one copyset."""

    record: Record  # without its batch
    amend: tuple[ShardId, ...]  # have the batch
    store: tuple[ShardId, ...]
    sources: tuple[ShardId, ...]  # have the batch; empty: the record has none

    @property
    def needs_batch(self) -> bool:
        return bool(self.store and self.sources)


def plan(
    spans: Sequence[Span],
    digests: Digests,
    writable: Collection[ShardId],
    metadata: EpochMetadata,
    like: Record,
) -> list[Mutation]:
    """Return the mutations for all spans. `like` is a record with all that they have in common,
    and the timestamp of marks."""
    mutations = []
    for span, copies in zip(spans, _look_up(spans, digests), strict=True):
        first = make(like.epoch, span.first)
        copyset = completed(copies.keys() & set(writable), writable, metadata, first)
        sources = {shard: copy for shard, copy in copies.items() if _has_batch(copy, span)}
        times = [copy.timestamp_us for copy in sources.values()]
        record = like._replace(
            first=first,
            count=span.last - span.first + 1,
            kind=span.kind,
            timestamp_us=max(times, default=like.timestamp_us),
            copyset=copyset,
        )
        mutations.append(_mutation(record, tuple(sources)))
    return mutations


def _look_up(spans: Sequence[Span], digests: Digests) -> list[dict[ShardId, Record]]:
    """Return for each span the shards with a copy there, and the copy if it is of that span."""
    copies: list[dict[ShardId, Record]] = [{} for _ in spans]
    for shard, digest in digests.items():
        for record in digest:
            for index in overlapping(spans, span_of(record)):
                if shard not in copies[index] or _has_batch(record, spans[index]):
                    copies[index][shard] = record
    return copies


def _has_batch(copy: Record, span: Span) -> bool:
    return span.kind is Kind.DATA and span_of(copy) == span


def _mutation(record: Record, sources: tuple[ShardId, ...]) -> Mutation:
    amend = tuple(shard for shard in record.copyset if shard in sources)
    store = tuple(shard for shard in record.copyset if shard not in sources)
    return Mutation(record, amend, store, sources)


def completed(
    touched: Collection[ShardId],
    writable: Collection[ShardId],
    metadata: EpochMetadata,
    lsn: Lsn,
) -> tuple[ShardId, ...]:
    """Return a copyset with all of `touched`, or as many copies as there can be if the writable
    shards are too few for one."""
    chosen = set(touched)
    if metadata.can_replicate(chosen):
        return tuple(sorted(chosen))
    whole = (short for short in metadata.short if set(writable).issuperset(short))
    if not metadata.can_replicate(writable) and (short := next(whole, None)):
        return tuple(sorted(chosen.union(short)))
    domain_of = {member.shard: member.domain for member in metadata.nodeset}
    domains, nodes = {domain_of[shard] for shard in chosen}, set(map(node_of, chosen))
    others = shuffled(set(writable) - chosen, lsn)
    for shard in others:
        if len(domains) < metadata.domains_wanted and domain_of[shard] not in domains:
            chosen.add(shard)
            domains.add(domain_of[shard])
            nodes.add(node_of(shard))
    for shard in others:
        if len(nodes) < metadata.replication and node_of(shard) not in nodes:
            chosen.add(shard)
            nodes.add(node_of(shard))
    rest = [shard for shard in others if shard not in chosen]
    chosen.update(rest[: max(0, metadata.replication - len(chosen))])
    return tuple(sorted(chosen))
