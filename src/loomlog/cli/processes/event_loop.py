"""The event loop of a command: uvloop where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. Ctrl-C cancels it and raises KeyboardInterrupt."""
    with asyncio.Runner(loop_factory=_new_loop()) as runner:
        return runner.run(main)


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return new_loop
