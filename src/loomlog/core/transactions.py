"""Append to several logs, all or nothing. Pure.

A transaction has a cell: a place in the log of decisions that is reserved first and written once.
Its parts are appended to their logs as ordinary batches that name the cell. Then its writer writes
the cell. From that moment all parts count; if something else gets the cell first, none ever does.
Whoever meets a part and finds the cell empty for long fills it, so nobody waits for a writer that
died.

The order matters: a reader that sees one part must find all others, so none may still be under way
when the cell is written. And a writer that lost its cell appends all parts again, with another one.

A cell is needed as long as there are parts that name it, also such as do not count. Nobody looks
for those in the logs: a mark says of all cells up to a position that their parts are not behind
certain tails. Cells are decided first: after that no part of theirs comes to count, and the logs of
those that do are enlisted. Parts that do not count may still come, until their writers have given
up. Then the tails are asked for. When all these logs are trimmed that far, or deleted, the cells
may go.
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
    """Answered with a cell that nobody else writes."""


@dataclass(frozen=True, slots=True)
class AppendParts(Generic[Cell]):
    """Append all parts. Answered with their positions when all are acknowledged."""

    cell: Cell


@dataclass(frozen=True, slots=True)
class Enlist(Generic[Cell]):
    """Note that the logs of the parts may have some. Answered when that is known for good."""

    cell: Cell


@dataclass(frozen=True, slots=True)
class Write(Generic[Cell]):
    """Write the cell. Answered with True if it is written for good, False if it never will be."""

    cell: Cell


WriterStep: TypeAlias = Reserve | AppendParts[Cell] | Enlist[Cell] | Write[Cell]


def commit() -> Steps[WriterStep[Cell], Cell | Placed | bool | None, Placed]:
    """Carry out a transaction; return the positions of its parts."""
    while True:
        cell: Cell = yield Reserve()  # type: ignore[assignment]
        yield Enlist(cell)  # before there are parts, whatever becomes of this writer
        placed: Placed = yield AppendParts(cell)  # type: ignore[assignment]
        yield Enlist(cell)  # those that the parts are in now: a log may have been made again
        if (yield Write(cell)):
            return placed


# ---- which cells may go


class Settle(NamedTuple):
    """Answered with a position up to which all cells are decided."""


class Outlast(NamedTuple):
    """Answered when no writer is left that reserved its cell before the cells were decided."""


class FindTails(NamedTuple):
    """Answered with the tails of all logs that are enlisted."""


class Mark(NamedTuple):
    """Up to a position of the log of decisions: where the parts are that need it."""

    through: Glsn
    tails: Mapping[LogId, Glsn]

    def is_needed(self, trimmed: Mapping[LogId, Glsn]) -> bool:
        """Return whether there may be parts left, given how far each log is trimmed."""
        return any(trimmed[log] < tail for log, tail in self.tails.items() if log in trimmed)


MarkStep: TypeAlias = Settle | Outlast | FindTails


def make_mark() -> Steps[MarkStep, Glsn | Mapping[LogId, Glsn] | None, Mark]:
    """Return a mark of all cells that are reserved now."""
    through = yield Settle()
    yield Outlast()
    tails = yield FindTails()
    return Mark(through, tails)  # type: ignore[arg-type]
