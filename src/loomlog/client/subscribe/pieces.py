"""Pieces of a log: consecutive records as they are stored or as users see them, and gaps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from loomlog import references
from loomlog.batch import FLAG_REFERENCE, Header
from loomlog.references import Reference
from loomlog.types import NO_HEADERS, Buffer, Entry, Gap, Glsn, Llsn

if TYPE_CHECKING:
    from loomlog.columns import Batch


class Piece(NamedTuple):
    """Consecutive records of a batch: `rows` of them after the first `skip`."""

    batch: Batch
    skip: int
    rows: int

    @property
    def header(self) -> Header:
        return self.batch.header

    @property
    def first_llsn(self) -> Llsn:
        return self.batch.header.first_llsn + self.skip

    @property
    def last_position(self) -> Glsn:
        return self.batch.header.first_position + self.skip + self.rows - 1

    def entries(self) -> Iterable[Entry]:
        return self.batch.entries(self.skip, self.rows)

    def positions_and_keys(self) -> tuple[Any, Any]:
        keys = self.batch.keys
        return (
            self.batch.positions(self.skip, self.rows),
            None if keys is None else keys.slice(self.skip, self.rows),
        )

    def chosen(self, indices: Any) -> Iterable[Entry]:
        return self.batch.chosen(indices + self.skip if self.skip else indices)

    def to_arrow(self) -> Any:
        rows = self.batch.to_arrow(self.skip)
        return rows if rows.num_rows == self.rows else rows.slice(0, self.rows)


class Referred(NamedTuple):
    """Consecutive rows of a reference: `rows` of them after the first `skip`."""

    header: Header
    reference: Reference
    skip: int
    rows: int


Single: TypeAlias = Entry | Referred | Piece
"""The content of one position: an entry, a reference to it, or one row of a transaction, which may
not be committed."""

Stored: TypeAlias = Piece | Referred | Gap
"""A piece of a log as it is stored. Gaps are delivered only on request."""


class Rows(Protocol):
    """Consecutive records, from the log or its archive."""

    @property
    def rows(self) -> int: ...

    @property
    def last_position(self) -> Glsn: ...

    def entries(self) -> Iterable[Entry]: ...

    def to_arrow(self) -> Any: ...

    def positions_and_keys(self) -> tuple[Any, Any]:
        """Return the positions (a range or a numpy array) and the keys (an Arrow array or None)."""

    def chosen(self, indices: Any) -> Iterable[Entry]:
        """Return the entries at these indices (a numpy array), perhaps creating them lazily."""


Shown: TypeAlias = Rows | Gap
"""A piece as users see it: without references."""

T_co = TypeVar("T_co", covariant=True)


class Pieces(Protocol[T_co]):
    """A sequence of pieces, for one consumer at a time."""

    async def next(self) -> T_co | None:
        """Wait until the next piece is written and return it; return None at the end."""

    def next_ready(self) -> T_co | None:
        """Return the next piece if it has arrived, else None."""

    def close(self) -> None: ...


def decode(content: Buffer, header: Header, skip: int, rows: int) -> Piece | Referred:
    """Return the given records of a stored batch that has this header."""
    from loomlog.columns.reader import decode as decode_columns

    if header.flags == FLAG_REFERENCE:
        return Referred(*references.decode(content), skip, rows)
    return Piece(decode_columns(content, header), skip, rows)


def decode_one(content: Buffer, header: Header, index: int) -> Single:
    """Return the record at an index of a stored batch."""
    piece = decode(content, header, index, 1)
    if isinstance(piece, Referred) or header.transaction:
        return piece
    return piece.batch.entry(index)


_ENTRIES_PER_TURN: Final = 2048  # after this, yield to the event loop even if more are ready


def entries(subscription: Pieces[Shown]) -> AsyncGenerator[Any, None]:
    return _unpacked(subscription, lambda rows: rows.entries())


def arrow(subscription: Pieces[Shown]) -> AsyncGenerator[Any, None]:
    return _unpacked(subscription, lambda rows: (rows.to_arrow(),))


async def _unpacked(
    subscription: Pieces[Shown], unpack: Callable[[Rows], Iterable[Any]]
) -> AsyncGenerator[Any, None]:
    delivered = 0
    try:
        while (piece := await subscription.next()) is not None:
            if isinstance(piece, Gap):
                yield piece
                continue
            for item in unpack(piece):
                yield item
            delivered += piece.rows
            if delivered >= _ENTRIES_PER_TURN:
                delivered = 0
                await asyncio.sleep(0)
    finally:
        subscription.close()


class _BareRows(NamedTuple):
    """Rows without keys, values and headers."""

    of: Rows

    @property
    def rows(self) -> int:
        return self.of.rows

    @property
    def last_position(self) -> Glsn:
        return self.of.last_position

    def entries(self) -> list[Entry]:
        return _bare_entries(self.of.entries())

    def positions_and_keys(self) -> tuple[Any, Any]:
        return self.of.positions_and_keys()

    def chosen(self, indices: Any) -> Iterable[Entry]:
        return _bare_entries(self.of.chosen(indices))

    def to_arrow(self) -> Any:
        from loomlog import columns

        return columns.without_payloads(self.of.to_arrow())


def _bare_entries(entries: Iterable[Entry]) -> list[Entry]:
    return [entry._replace(key=None, value=b"", headers=NO_HEADERS) for entry in entries]


class WithoutPayloads:
    """Pieces without keys and values, for counting and searching."""

    def __init__(self, pieces: Pieces[Shown]) -> None:
        self._pieces = pieces

    async def next(self) -> Shown | None:
        return _bare(await self._pieces.next())

    def next_ready(self) -> Shown | None:
        return _bare(self._pieces.next_ready())

    def close(self) -> None:
        self._pieces.close()


def _bare(piece: Shown | None) -> Shown | None:
    return piece if piece is None or isinstance(piece, Gap) else _BareRows(piece)
