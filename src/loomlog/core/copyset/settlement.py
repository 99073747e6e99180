"""Settle the last part of an epoch from the copies that were found, and plan the writes. Pure.

Of copies that differ the one of higher precedence counts. A hole covers a range, and a bridge all
up to the end of its epoch: the recovery that wrote it had found nothing complete there. So whatever
a mark covers is void if it is of lower precedence, even long after a bridge.

Every piece gets one copyset: the nodes that have a copy there, right or wrong, and more of them
until it is fully stored. All copies get one wave, above all that is there. So nothing else is left
on these nodes afterwards, and a later recovery finds the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from loomlog.core.copyset.nodeset import EpochMetadata, shuffled
from loomlog.core.copyset.record import OFFSET_MAX, Kind, Lsn, Offset, Record, make, offset_of
from loomlog.types import NodeId

Digests: TypeAlias = Mapping[NodeId, Sequence[Record]]  # heads, in order


class Piece(NamedTuple):
    """The content of the offsets [first, last]."""

    first: Offset
    last: Offset
    kind: Kind


class Settled(NamedTuple):
    pieces: tuple[Piece, ...]  # in order; they do not overlap
    last: Offset  # of the last record; 0: there is none
    exact: bool  # nothing was acknowledged behind it


def piece_of(record: Record) -> Piece:
    return Piece(record.offset, offset_of(record.last), record.kind)


def overlapping(pieces: Sequence[Piece], piece: Piece) -> range:
    """Return those of `pieces`, which are in order, that share an offset with another one."""
    begin = bisect_left(pieces, piece.first, key=attrgetter("last"))
    return range(begin, bisect_right(pieces, piece.last, lo=begin, key=attrgetter("first")))


def settle(
    digests: Digests, after: Offset, *, authoritative: bool, acknowledged: Offset = 0
) -> Settled:
    """Settle everything above the offset `after`, up to which everything was fully stored. Where
    nothing was found there are holes, unless the digest is not authoritative or lacks what is known
    to be `acknowledged`: then more may be missing, and the loss must stay visible. An epoch without
    any record stays as it is."""
    found = _prevailing(record for records in digests.values() for record in records)
    data = [piece for piece in found if piece.kind is Kind.DATA]
    last = max([after, *(piece.last for piece in data)])
    if not authoritative or last < acknowledged:
        if found and found[-1].last == OFFSET_MAX:
            # A bridge of a recovery that knew all, and died: the last record was just before it.
            last = max(last, found[-1].first - 1)
            return Settled(tuple(found), last, exact=last >= acknowledged)
        return Settled(tuple(found), last, exact=False)
    if not found and not last:
        return Settled((), 0, exact=True)
    marks = _without(after + 1, OFFSET_MAX, data)
    return Settled(tuple(sorted([*data, *marks])), last, exact=True)


def _prevailing(records: Iterable[Record]) -> list[Piece]:
    """Return the pieces that count: by falling precedence, data where it fits, marks in gaps."""
    found: list[Piece] = []
    for record in sorted(records, key=lambda record: record.precedence, reverse=True):
        piece = piece_of(record)
        in_the_way = [found[index] for index in overlapping(found, piece)]
        if piece.kind is not Kind.DATA:
            for mark in _without(piece.first, piece.last, in_the_way):
                insort(found, mark)
        elif not in_the_way:
            insort(found, piece)
    return found


def _without(first: Offset, last: Offset, taken: Iterable[Piece]) -> list[Piece]:
    """Return marks for the parts of [first, last] that `taken`, which is in order, leaves."""
    marks = []
    for piece in taken:
        if first < piece.first:
            marks.append(_mark(first, piece.first - 1))
        first = max(first, piece.last + 1)
    if first <= last:
        marks.append(_mark(first, last))
    return marks


def _mark(first: Offset, last: Offset) -> Piece:
    return Piece(first, last, Kind.BRIDGE if last == OFFSET_MAX else Kind.HOLE)


class Mutation(NamedTuple):
    """One change, to be sent to the nodes of one copyset."""

    record: Record  # without its batch
    amend: tuple[NodeId, ...]  # have the batch
    store: tuple[NodeId, ...]
    sources: tuple[NodeId, ...]  # have the batch; empty: the record has none

    @property
    def needs_batch(self) -> bool:
        return bool(self.store and self.sources)


def plan(
    pieces: Sequence[Piece],
    digests: Digests,
    writable: Collection[NodeId],
    metadata: EpochMetadata,
    like: Record,
) -> list[Mutation]:
    """Return the mutations for all pieces. `like` is a record with all that they have in common,
    and the timestamp of marks."""
    mutations = []
    for piece, found in zip(pieces, _look_up(pieces, digests), strict=True):
        first = make(like.epoch, piece.first)
        copyset = completed(found.keys() & set(writable), writable, metadata, first)
        sources = {node: copy for node, copy in found.items() if _has_batch(copy, piece)}
        times = [copy.timestamp_us for copy in sources.values()]
        record = like._replace(
            first=first,
            count=piece.last - piece.first + 1,
            kind=piece.kind,
            timestamp_us=max(times, default=like.timestamp_us),
            copyset=copyset,
        )
        mutations.append(_mutation(record, tuple(sources)))
    return mutations


def _look_up(pieces: Sequence[Piece], digests: Digests) -> list[dict[NodeId, Record]]:
    """Return for each piece the nodes with a copy there, and the copy if it is of that piece."""
    found: list[dict[NodeId, Record]] = [{} for _ in pieces]
    for node, digest in digests.items():
        for record in digest:
            for index in overlapping(pieces, piece_of(record)):
                if node not in found[index] or _has_batch(record, pieces[index]):
                    found[index][node] = record
    return found


def _has_batch(copy: Record, piece: Piece) -> bool:
    return piece.kind is Kind.DATA and piece_of(copy) == piece


def _mutation(record: Record, sources: tuple[NodeId, ...]) -> Mutation:
    amend = tuple(node for node in record.copyset if node in sources)
    store = tuple(node for node in record.copyset if node not in sources)
    return Mutation(record, amend, store, sources)


def completed(
    touched: Collection[NodeId],
    writable: Collection[NodeId],
    metadata: EpochMetadata,
    lsn: Lsn,
) -> tuple[NodeId, ...]:
    """Return a copyset with all of `touched`, or all writable nodes if they are too few for one."""
    chosen = set(touched)
    if metadata.can_hold_a_copyset(chosen):
        return tuple(sorted(chosen))
    domain_of = {member.node_id: member.domain for member in metadata.nodeset}
    domains = {domain_of[node] for node in chosen}
    others = shuffled(set(writable) - chosen, lsn)
    for node in others:
        if len(domains) < metadata.domains_wanted and domain_of[node] not in domains:
            chosen.add(node)
            domains.add(domain_of[node])
    rest = [node for node in others if node not in chosen]
    chosen.update(rest[: max(0, metadata.replication - len(chosen))])
    return tuple(sorted(chosen))
