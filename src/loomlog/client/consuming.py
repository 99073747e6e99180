"""A sequence of pieces as entries, or as Arrow batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from loomlog.client.archived import Pieces
from loomlog.types import Gap

_ENTRIES_PER_TURN: Final = 2048  # a reader that is always behind lets others run after so many


async def entries(subscription: Pieces) -> AsyncGenerator[Any, None]:
    delivered = 0
    try:
        while (piece := await subscription.next()) is not None:
            if isinstance(piece, Gap):
                yield piece
                continue
            for entry in piece.entries():
                yield entry
            delivered += piece.rows
            if delivered >= _ENTRIES_PER_TURN:
                delivered = 0
                await asyncio.sleep(0)
    finally:
        subscription.close()


async def arrow(subscription: Pieces) -> AsyncGenerator[Any, None]:
    delivered = 0
    try:
        while (piece := await subscription.next()) is not None:
            if isinstance(piece, Gap):
                yield piece
                continue
            yield piece.to_arrow()
            delivered += piece.rows
            if delivered >= _ENTRIES_PER_TURN:
                delivered = 0
                await asyncio.sleep(0)
    finally:
        subscription.close()
