"""Output of operator commands: what was done, what happens next, and when it is finished."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from loomlog.cli.console.command import Invocation
from loomlog.cli.console.output import duration, print_json, visible
from loomlog.cli.console.wait import Look, until_finished

if TYPE_CHECKING:
    from loomlog.client.operator import Change


def say(change: Change, *, as_json: bool, waited_s: float | None = None) -> None:
    if as_json:
        print_json(asdict(change) | {"waited_s": waited_s})
        return
    if waited_s is None:
        say_begun(change)
    else:
        print(f"finished after {duration(waited_s)}")


def say_begun(change: Change) -> None:
    """Flushed: who waits wants to read it now."""
    print(visible(change.done.encode()))
    if change.next:
        print(f"next: {visible(change.next.encode())}", flush=True)


def say_and_wait(change: Change, how: Invocation, look: Look | None) -> None:
    """Say it; if wanted and with something to look at, stay until that is finished. In JSON it is
    one line."""
    if look is None or not how.wait:
        say(change, as_json=how.as_json)
        return
    if not how.as_json:
        say_begun(change)
    say(change, as_json=how.as_json, waited_s=until_finished(look, how.timeout))
