"""Wait for a state that can only be asked for: nobody tells when it is reached."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

PATIENCE_S = 60.0  # never waited for in full, unless something is broken
POLL_S = 0.02

Seen = TypeVar("Seen")


@overload
async def until(
    look: Callable[[], Awaitable[Seen]], holds: Callable[[Seen], object] = bool
) -> Seen: ...
@overload
async def until(look: Callable[[], bool]) -> bool: ...
async def until(look: Callable[[], Any], holds: Callable[[Any], object] = bool) -> Any:
    """Look until `holds` is true of what is seen, and return that."""
    seen = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                seen = look()
                if inspect.isawaitable(seen):
                    seen = await seen
                if holds(seen):
                    return seen
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise AssertionError(f"it never came true; seen last: {seen}") from error


def wait_until(true: Callable[[], bool]) -> None:
    """Look until it is true, without an event loop."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(POLL_S)
