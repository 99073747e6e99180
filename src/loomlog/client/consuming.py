"""A sequence of pieces as entries, or as Arrow batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final

from loomlog.client.archived import Pieces, Rows
from loomlog.types import Gap

_ENTRIES_PER_TURN: Final = 2048  # a reader that is always behind lets others run after so many


def entries(subscription: Pieces) -> AsyncGenerator[Any, None]:
    return _unpacked(subscription, lambda rows: rows.entries())


def arrow(subscription: Pieces) -> AsyncGenerator[Any, None]:
    return _unpacked(subscription, lambda rows: (rows.to_arrow(),))


async def _unpacked(
    subscription: Pieces, unpack: Callable[[Rows], Iterable[Any]]
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
