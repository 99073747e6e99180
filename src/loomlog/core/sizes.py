"""Decide how far a log may be trimmed because of its size. Pure.

The size is that of the batches as one replica stores them. It is measured while the log grows. Each
measured piece leaves a mark: its last position, and the bytes between the previous mark and it.
Only a piece that has to be cut is measured again in smaller pieces, so a log costs few requests
however fast it grows.

Every size is a lower bound: what cannot be measured counts as nothing, and later appends only add
to a piece. So at least the sum of the marks after a position is stored after it, and a mark may be
merged with the next one at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from loomlog.core.requests import Steps
from loomlog.types import Glsn

MARKS_MAX: Final = 256  # of a log; small ones are merged
STEPS: Final = 64  # the kept size is met to within one part of this many
PIECES_MAX: Final = 16  # a piece is cut into at most this many, all measured at the same time


class SizeMark(NamedTuple):
    """A position where a log may be cut."""

    last: Glsn
    size: int  # lower bound, of the entries after the previous mark up to `last`
    staged: Glsn = 0  # the staging log's tail at that time: its rows up to here are counted


SizeMarks = tuple[SizeMark, ...]  # in order


def last_surplus(marks: SizeMarks, kept_bytes: int) -> Glsn:
    """Return the last position after which at least `kept_bytes` are stored; 0: unknown."""
    newer = 0
    for mark in reversed(marks):
        if newer >= kept_bytes:
            return mark.last
        newer += mark.size
    return 0


def noted(marks: SizeMarks, mark: SizeMark, trimmed: Glsn) -> SizeMarks:
    """Return the marks with another one added, without those of trimmed entries."""
    kept = [each for each in marks if each.last > trimmed]
    kept.append(mark)
    while len(kept) > MARKS_MAX:
        at = min(range(len(kept) - 1), key=lambda i: kept[i].size + kept[i + 1].size)
        merged = kept[at + 1]._replace(size=kept[at].size + kept[at + 1].size)
        kept[at : at + 2] = [merged]
    return tuple(kept)


class AskSizes(NamedTuple):
    """Answered, for each part of a segment, with the size of its batches that begin in a range."""

    first: Glsn
    last: Glsn


class Measured(NamedTuple):
    """A lower bound of the size of a piece that ends at `through`."""

    through: Glsn
    size: int


def measure(first: Glsn, last: Glsn) -> Steps[AskSizes, Sequence[Measured], Measured]:
    """Measure a piece that begins at `first` and ends at `last` or before. If a part measures less
    than it was asked for, the others are asked again for that range. A result that ends before
    `first` means that nothing is known."""
    while True:
        parts = yield AskSizes(first, last)
        through = min((last, *(part.through for part in parts)))
        if through < first:
            return Measured(first - 1, 0)
        if all(part.through == through for part in parts):
            return Measured(through, sum(part.size for part in parts))
        last = through


def refine(
    marks: SizeMarks, trimmed: Glsn, kept_bytes: int
) -> Steps[list[AskSizes], list[Measured], SizeMarks]:
    """Cut the piece in which the surplus ends, until the part that is kept unnecessarily is small.
    All ranges of a question are measured. If one cannot be measured whole, the piece is left as it
    is."""
    step = max(kept_bytes // STEPS, 1)
    while (index := _to_be_cut(marks, trimmed, kept_bytes, step)) is not None:
        first, mark = _first_of(marks, index, trimmed), marks[index]
        ranges = _split(first, mark.last, mark.size, step)
        pieces = yield ranges
        if any(piece.through < asked.last for piece, asked in zip(pieces, ranges, strict=True)):
            break
        marks = _cut(marks, index, pieces, step)
    return marks


def corrected(marks: SizeMarks, measured: Sequence[Measured]) -> SizeMarks:
    """Return the marks with the sizes that were measured again, where they have grown."""
    sizes = dict(measured)
    return tuple(mark._replace(size=max(mark.size, sizes.get(mark.last, 0))) for mark in marks)


def piece_of(marks: SizeMarks, last: Glsn, trimmed: Glsn) -> AskSizes | None:
    """Return the piece that ends at `last`, unless it was cut, merged or trimmed meanwhile."""
    for index, mark in enumerate(marks):
        if mark.last == last and last > trimmed:
            return AskSizes(_first_of(marks, index, trimmed), last)
    return None


def _first_of(marks: SizeMarks, index: int, trimmed: Glsn) -> Glsn:
    return max(marks[index - 1].last if index else 0, trimmed) + 1


def _to_be_cut(marks: SizeMarks, trimmed: Glsn, kept_bytes: int, step: int) -> int | None:
    """Return the index of the piece that is needed only in part; None if the rest is small."""
    newer = 0
    for index in reversed(range(len(marks))):
        newer += marks[index].size
        if newer >= kept_bytes:
            has_many = _first_of(marks, index, trimmed) < marks[index].last
            return index if newer - kept_bytes > step and has_many else None
    return None


def _split(first: Glsn, last: Glsn, size: int, step: int) -> list[AskSizes]:
    positions = last - first + 1
    count = min(PIECES_MAX, max(2 * size // step, 2), positions)
    firsts = [first + positions * each // count for each in range(count)]
    lasts = [each - 1 for each in firsts[1:]]
    return [AskSizes(*range_) for range_ in zip(firsts, [*lasts, last], strict=True)]


def _cut(marks: SizeMarks, index: int, pieces: Sequence[Measured], step: int) -> SizeMarks:
    """Replace a piece by smaller ones. Bytes of it that they do not account for may be anywhere in
    it, and are added to the first one."""
    whole, first = marks[index], pieces[0]
    if index:  # otherwise the missing bytes may have been trimmed
        uncounted = max(whole.size - sum(piece.size for piece in pieces), 0)
        first = first._replace(size=first.size + uncounted)
    cut = [SizeMark(*first, whole.staged)]
    for through, size in pieces[1:]:
        if cut[-1].size + size <= step // 2:
            size += cut.pop().size
        cut.append(SizeMark(through, size, whole.staged))
    return (*marks[:index], *cut, *marks[index + 1 :])
