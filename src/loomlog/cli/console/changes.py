"""Commands that change something: confirmation, report, and waiting for the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from loomlog.cli.console.command import Invocation
from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.output import duration, print_json, visible
from loomlog.errors import LoomError, Timeout, seconds

if TYPE_CHECKING:
    from loomlog.client.operator_results import Change

LOOK_EVERY_S: Final = 0.2


# ---- ask


def confirm_at_terminal(question: str, *, yes: bool) -> None:
    """Ask for confirmation only on a terminal, so that scripts need no flag."""
    if sys.stdin.isatty():
        confirm(lambda: question, yes=yes)


def confirm(question: Callable[[], str | None], *, yes: bool) -> None:
    """Return only if the change should be made. If the question is None, do not ask; without a
    terminal, `--yes` is required."""
    if yes:
        return
    text = question()
    if text is None:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{text} There is no terminal to ask on: give --yes to do it")
    import typer

    if not typer.confirm(text, err=True):
        raise LoomError("nothing was done")


# ---- wait


@dataclass(frozen=True, slots=True)
class WaitProgress:
    """The progress of an operation."""

    finished: bool
    share: float  # 0 to 1
    text: str


Look = Callable[[], WaitProgress]


def until_finished(look: Look, timeout_s: float | None) -> float:
    """Wait until it is finished and return the seconds; a Timeout reports the progress."""
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
                    f"still under way after {seconds(timeout_s)}: {progress.text or 'working'}; "
                    "`loom status --watch` shows its progress"
                )
            time.sleep(LOOK_EVERY_S)


@contextmanager
def bar(refresh_per_second: float = 10) -> Iterator[Callable[[WaitProgress], None]]:
    """Show a progress bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    screen, refresh = Console(stderr=True), refresh_per_second
    with Progress(*columns, console=screen, transient=True, refresh_per_second=refresh) as rich:
        task = rich.add_task("", total=1.0)
        yield lambda progress: rich.update(
            task, completed=progress.share, description=escape(progress.text)
        )


# ---- say


def say(change: Change, *, as_json: bool, waited_s: float | None = None) -> None:
    if as_json:
        print_json(asdict(change) | {"waited_s": waited_s})
        return
    if waited_s is None:
        say_begun(change)
    else:
        print(f"finished after {duration(waited_s)}")


def say_begun(change: Change) -> None:
    """Report the change, and flush: a caller that waits needs it now."""
    print(visible(change.done.encode()))
    if change.next:
        print(f"next: {visible(change.next.encode())}", flush=True)


def say_and_wait(change: Change, how: Invocation, look: Look | None) -> None:
    """Report the change. With `--wait`, if there is progress to watch, wait until it is finished.
    In JSON the report is one line."""
    if look is None or not how.wait:
        say(change, as_json=how.as_json)
        return
    if not how.as_json:
        say_begun(change)
    say(change, as_json=how.as_json, waited_s=until_finished(look, how.timeout))
