"""Presents a sequence of pieces as entries or Arrow batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final, NamedTuple

from loomlog.client.subscribe.pieces import Pieces, Rows, Shown
from loomlog.types import Entry, Gap, Glsn

_ENTRIES_PER_TURN: Final = 2048  # then a reader yields to the event loop even if more are ready


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
    of: Rows

    @property
    def rows(self) -> int:
        return self.of.rows

    @property
    def last_position(self) -> Glsn:
        return self.of.last_position

    def entries(self) -> list[Entry]:
        return [entry._replace(key=None, value=b"") for entry in self.of.entries()]

    def to_arrow(self) -> Any:
        from loomlog import columns

        return columns.without_payloads(self.of.to_arrow())


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
