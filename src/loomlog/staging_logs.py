"""Names of staging logs."""

from __future__ import annotations

from typing import Final

SUFFIX: Final = ".staged"


def staging_name(log: str) -> str:
    return log + SUFFIX


def staged_log(name: str) -> str | None:
    """Return the log that `name` stages rows for, or None if it is not a staging log."""
    return name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else None
