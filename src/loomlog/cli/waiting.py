"""Waiting for what the cluster does by itself after a command, with a bar on a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Final

from loomlog.errors import Timeout

LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far something is."""

    finished: bool
    share: float  # 0 to 1
    text: str


Look = Callable[[], Awaitable[Progress]]


async def until_finished(look: Look, timeout_s: float | None) -> float:
    """How long it took; Timeout says how far it was."""
    started = monotonic()
    with bar() as show:
        while True:
            progress = await look()
            show(progress)
            waited_s = monotonic() - started
            if progress.finished:
                return waited_s
            if timeout_s is not None and waited_s >= timeout_s:
                raise Timeout(
                    f"still under way after {timeout_s:g} s: {progress.text or 'it goes on'}; "
                    "`loom status --watch` shows how it goes on"
                )
            await asyncio.sleep(LOOK_EVERY_S)


@contextmanager
def bar() -> Iterator[Callable[[Progress], None]]:
    """On a terminal, on stderr; else nothing."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as rich:
        task = rich.add_task("", total=1.0)
        yield lambda progress: rich.update(
            task, completed=progress.share, description=escape(progress.text)
        )
