"""Waiting for what the cluster does by itself after a command, with a bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from loomlog.errors import Timeout

LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an operation."""

    finished: bool
    share: float  # 0 to 1
    text: str


Look = Callable[[], Progress]


def until_finished(look: Look, timeout_s: float | None) -> float:
    """Wait until it is finished and return the seconds; a Timeout names the progress."""
    started = time.monotonic()
    with bar() as show:
        while True:
            progress = look()
            show(progress)
            waited_s = time.monotonic() - started
            if progress.finished:
                return waited_s
            if timeout_s is not None and waited_s >= timeout_s:
                raise Timeout(
                    f"still under way after {timeout_s:g} s: {progress.text or 'it goes on'}; "
                    "`loom status --watch` shows how it goes on"
                )
            time.sleep(LOOK_EVERY_S)


@contextmanager
def bar() -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar on stderr if that is a terminal."""
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
