"""What becomes of the last part of an epoch, by the copies that were found of it. Pure.

Of copies that differ the one of higher precedence counts. A hole covers a range, and a bridge all
up to the end of its epoch: who wrote it had looked, and nothing complete was there. So whatever a
mark covers is void if it is of lower precedence, be it long after a bridge.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from loomlog.core.copyset.lsn import OFFSET_MAX, Offset, offset_of
from loomlog.core.copyset.record import Kind, Record
from loomlog.types import NodeId

Digests: TypeAlias = Mapping[NodeId, Sequence[Record]]  # heads, in order


class Piece(NamedTuple):
    """What stands at the offsets [first, last]."""

    first: Offset
    last: Offset
    kind: Kind


class Settled(NamedTuple):
    pieces: tuple[Piece, ...]  # in order; they do not overlap
    last: Offset  # of the last record; 0: there is none


def piece_of(record: Record) -> Piece:
    return Piece(record.offset, offset_of(record.last), record.kind)


def overlapping(pieces: Sequence[Piece], piece: Piece) -> range:
    """Which of `pieces`, that are in order, share an offset with another one."""
    begin = bisect_left(pieces, piece.first, key=attrgetter("last"))
    return range(begin, bisect_right(pieces, piece.last, lo=begin, key=attrgetter("first")))


def settle(digests: Digests, after: Offset, *, authoritative: bool) -> Settled:
    """All above the offset `after`; up to it everything was fully stored.

    Where nothing was found there are holes; but not if the digest is not authoritative: what is
    missing may have been acknowledged then, and its loss must stay visible. An epoch of which
    there is nothing at all stays as it is."""
    found = _prevailing(record for records in digests.values() for record in records)
    data = [piece for piece in found if piece.kind is Kind.DATA]
    last = max([after, *(piece.last for piece in data)])
    if not authoritative:
        return Settled(tuple(found), last)
    if not found and not last:
        return Settled((), 0)
    marks = _without(after + 1, OFFSET_MAX, data)
    return Settled(tuple(sorted([*data, *marks])), last)


def _prevailing(records: Iterable[Record]) -> list[Piece]:
    """The highest precedence first: data where nothing is yet, marks where there is room."""
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
    """Marks for the parts of [first, last] that none of `taken`, which are in order, covers."""
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
