"""Append to several logs, all or nothing. Pure.

A transaction has a cell: a position of the log of decisions that is reserved first and written
once. Its parts are appended to their logs as ordinary batches that name the cell. Then its writer
writes the cell, which commits all parts. If the cell was filled first, no part ever counts. A
reader that encounters a part whose cell stays empty fills the cell, so that nobody waits for a dead
writer.

The order matters: a reader that sees one part must find all others, so all parts must be
acknowledged before the cell is written. A writer that lost its cell appends all parts again, with
a new cell.

A cell is needed as long as there are parts that name it, committed or not. The logs are not
searched for them. Instead, a mark says that no part of any cell up to some position is above
certain tails. It is made in three steps: first all these cells are decided, after which no further
part of theirs can become committed, and the logs of those that are have been enlisted. Parts that
are not committed may still be appended until their writers have given up, so that is waited for.
Then the tails are read. When all these logs are trimmed up to their tails, or deleted, the cells
may be trimmed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from loomlog.core.requests import Steps
from loomlog.types import Glsn, LogId

DECISIONS_LOG: Final = "loomlog.transactions"

Cell = TypeVar("Cell")
Placed = TypeVar("Placed")


@dataclass(frozen=True, slots=True)
class Reserve:
    """Answered with a cell that no other transaction uses."""


@dataclass(frozen=True, slots=True)
class AppendParts(Generic[Cell]):
    """Append all parts. Answered with their positions when all are acknowledged."""

    cell: Cell


@dataclass(frozen=True, slots=True)
class Enlist(Generic[Cell]):
    """Register the logs of the parts as possibly having parts. Answered when that is durable."""

    cell: Cell


@dataclass(frozen=True, slots=True)
class Write(Generic[Cell]):
    """Write the cell. Answered with True if it is written, with False if it never will be."""

    cell: Cell


WriterStep: TypeAlias = Reserve | AppendParts[Cell] | Enlist[Cell] | Write[Cell]


def commit() -> Steps[WriterStep[Cell], Cell | Placed | bool | None, Placed]:
    """Carry out a transaction; return the positions of its parts."""
    while True:
        cell: Cell = yield Reserve()  # type: ignore[assignment]
        yield Enlist(cell)  # before there are parts, in case this writer dies
        placed: Placed = yield AppendParts(cell)  # type: ignore[assignment]
        yield Enlist(cell)  # again: a log may have been deleted and created meanwhile
        if (yield Write(cell)):
            return placed


# ---- which cells may be trimmed


class Settle(NamedTuple):
    """Answered with a position up to which all cells are decided."""


class Outlast(NamedTuple):
    """Answered when every writer that reserved its cell before that has finished or given up."""


class FindTails(NamedTuple):
    """Answered with the tails of all enlisted logs."""


class Mark(NamedTuple):
    """The parts of all cells up to `through` are in these logs, at or below these tails."""

    through: Glsn
    tails: Mapping[LogId, Glsn]

    def is_needed(self, trimmed: Mapping[LogId, Glsn]) -> bool:
        """Return whether parts may be left, given how far each log that exists is trimmed."""
        return any(trimmed[log] < tail for log, tail in self.tails.items() if log in trimmed)


MarkStep: TypeAlias = Settle | Outlast | FindTails


def make_mark() -> Steps[MarkStep, Glsn | Mapping[LogId, Glsn] | None, Mark]:
    """Return a mark that covers all cells that are reserved now."""
    through = yield Settle()
    yield Outlast()
    tails = yield FindTails()
    return Mark(through, tails)  # type: ignore[arg-type]
