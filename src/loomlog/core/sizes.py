"""Decide how far a log may be trimmed because of its size. Pure.

What counts are bytes of batches as one replica stores them. They are measured while the log grows,
and each measured piece leaves a mark: a position, and what is stored between the mark before and
it. Only the piece that has to be cut is measured in smaller ones, so a log costs a few questions,
however fast it grows. Every size is at least as large as told: what nobody can tell counts nothing,
and what is appended to a piece later only adds to it. So what is behind a mark is never less than
the sum of the marks behind it, and a mark may be merged with the next one at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from loomlog.core.requests import Steps
from loomlog.types import Glsn

MARKS_MAX: Final = 256  # of a log; small ones are merged
STEPS: Final = 64  # of what a log keeps: one part more may stay than it has to
PIECES_MAX: Final = 16  # that a piece is cut into: they are asked for at the same time


class SizeMark(NamedTuple):
    """A position where a log may be cut."""

    last: Glsn
    size: int  # at least, of the entries behind the mark before, up to `last`
    staged: Glsn = 0  # the staging log's tail then: its rows up to here are counted


SizeMarks = tuple[SizeMark, ...]  # in order


def last_surplus(marks: SizeMarks, kept_bytes: int) -> Glsn:
    """Return the last position behind which at least that many bytes are stored; 0: unknown."""
    newer = 0
    for mark in reversed(marks):
        if newer >= kept_bytes:
            return mark.last
        newer += mark.size
    return 0


def noted(marks: SizeMarks, mark: SizeMark, trimmed: Glsn) -> SizeMarks:
    """Return the marks with another one, without those of what is trimmed."""
    kept = [each for each in marks if each.last > trimmed]
    kept.append(mark)
    while len(kept) > MARKS_MAX:
        at = min(range(len(kept) - 1), key=lambda i: kept[i].size + kept[i + 1].size)
        merged = kept[at + 1]._replace(size=kept[at].size + kept[at + 1].size)
        kept[at : at + 2] = [merged]
    return tuple(kept)


class AskSizes(NamedTuple):
    """Answered with the size of each part of a segment, of batches that begin in a range."""

    first: Glsn
    last: Glsn


class Measured(NamedTuple):
    """The size of a piece that ends at a position, at least."""

    through: Glsn
    size: int


def measure(first: Glsn, last: Glsn) -> Steps[AskSizes, Sequence[Measured], Measured]:
    """Measure a piece of [first, last] that begins at `first`. A part may tell less than it was
    asked; then all are asked for that. A piece that ends before `first`: nothing is known."""
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
    """Cut the piece up to which a log has too much, until what stays too much is small. Each of the
    questions that are asked together is answered with the size of its whole range; if the answer
    ends before, that is not known, and the piece is left as it is."""
    step = max(kept_bytes // STEPS, 1)
    while (index := _to_be_cut(marks, trimmed, kept_bytes, step)) is not None:
        first, mark = _first_of(marks, index, trimmed), marks[index]
        ranges = _split(first, mark.last, mark.size, step)
        found = yield ranges
        if any(piece.through < asked.last for piece, asked in zip(found, ranges, strict=True)):
            break
        marks = _cut(marks, index, found, step)
    return marks


def corrected(marks: SizeMarks, measured: Sequence[Measured]) -> SizeMarks:
    """Return the marks with sizes that were measured again, and are larger now."""
    sizes = dict(measured)
    return tuple(mark._replace(size=max(mark.size, sizes.get(mark.last, 0))) for mark in marks)


def piece_of(marks: SizeMarks, last: Glsn, trimmed: Glsn) -> AskSizes | None:
    """Return the whole piece that ends there, if it was not cut or merged meanwhile."""
    for index, mark in enumerate(marks):
        if mark.last == last and last > trimmed:
            return AskSizes(_first_of(marks, index, trimmed), last)
    return None


def _first_of(marks: SizeMarks, index: int, trimmed: Glsn) -> Glsn:
    return max(marks[index - 1].last if index else 0, trimmed) + 1


def _to_be_cut(marks: SizeMarks, trimmed: Glsn, kept_bytes: int, step: int) -> int | None:
    """Return the index of the piece that is needed only in part; None if that is small."""
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
    """Replace a piece by smaller ones. What they do not count of it may be anywhere in it, so it
    counts as part of the first one."""
    whole, first = marks[index], pieces[0]
    if index:  # else there is nothing before it, and what is not counted may be trimmed
        uncounted = max(whole.size - sum(piece.size for piece in pieces), 0)
        first = first._replace(size=first.size + uncounted)
    cut = [SizeMark(*first, whole.staged)]
    for through, size in pieces[1:]:
        if cut[-1].size + size <= step // 2:
            size += cut.pop().size
        cut.append(SizeMark(through, size, whole.staged))
    return (*marks[:index], *cut, *marks[index + 1 :])
