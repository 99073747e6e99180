"""Waiting for what a store finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from loomlog.core.copyset.messages import Refused
from loomlog.errors import Unavailable

Found = TypeVar("Found")


async def looked_up(look: Callable[[Callable[[Found | Refused], None]], None]) -> Found:
    """Start a look-up and wait for its result. Unavailable: it is refused."""
    found: asyncio.Future[Found | Refused] = asyncio.get_running_loop().create_future()

    def looked(answer: Found | Refused) -> None:
        if not found.done():
            found.set_result(answer)

    look(looked)
    answer = await found
    if isinstance(answer, Refused):
        raise Unavailable(answer.reason)
    return answer
