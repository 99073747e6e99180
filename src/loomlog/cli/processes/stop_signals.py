"""SIGTERM and SIGINT as a wish to stop, and work that such a wish ends early."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any


def on_stop_signals(asked: Callable[[], None]) -> None:
    """Call `asked` on the loop for each of them."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)


async def first(work: asyncio.Future[Any], stop_asked: asyncio.Event) -> bool:
    """True when the work is done (raises what it raised); False when a stop was asked before:
    then the work was cancelled and has ended."""
    stop = asyncio.ensure_future(stop_asked.wait())
    await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if work.done():
        work.result()
        return True
    work.cancel()
    await asyncio.wait([work])
    return False
