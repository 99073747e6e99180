"""Asking before something that cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable

from loomlog.cli.console.failures import UsageError
from loomlog.errors import LoomError


def ask_at_terminal(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal only, so that scripts need no flag."""
    if sys.stdin.isatty():
        ask(lambda: question, yes=yes)


def ask(question: Callable[[], str | None], *, yes: bool) -> None:
    """Return only if it shall be done. A question of None needs no answer; where nobody can
    answer, `--yes` must have."""
    if yes:
        return
    text = question()
    if text is None:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{text} Nobody is there to ask: give --yes to do it")
    import typer

    if not typer.confirm(text, err=True):
        raise LoomError("nothing was done")
