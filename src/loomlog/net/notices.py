"""Rate-limited log lines, for events that a peer can cause at will."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

EVERY_S: Final = 10.0  # between two lines of one kind


class Notices:
    """Logs one line of each kind per interval, and how many were suppressed."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._next_s: dict[str, float] = {}
        self._dropped: dict[str, int] = {}

    def log(
        self, kind: str, message: str, *arguments: object, error: Exception | None = None
    ) -> None:
        """Log a warning, or an unexpected error with its traceback."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_s.get(kind, float("-inf")):
            self._dropped[kind] = self._dropped.get(kind, 0) + 1
            return
        self._next_s[kind] = now_s + EVERY_S
        more = self._dropped.pop(kind, 0)
        suffix = f" (and {more} like this since the last line)" if more else ""
        level = logging.WARNING if error is None else logging.ERROR
        self._logger.log(level, message + suffix, *arguments, exc_info=error)
