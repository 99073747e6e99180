"""Which log is the staging log of which: its name says so."""

from __future__ import annotations

from typing import Final

SUFFIX: Final = ".staged"


def staging_name(log: str) -> str:
    return log + SUFFIX


def staged_log(name: str) -> str | None:
    """The log whose staging log this is; None: it is a log of its own."""
    return name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else None
