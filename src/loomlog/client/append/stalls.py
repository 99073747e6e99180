"""Logs when the appends to a log begin to stall, and when they work again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from loomlog.errors import seconds

logger = logging.getLogger(__name__)

STALL_S: Final = 1.0


class Stalls:
    """Detects and reports stalls of the appends to one log."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._since_s: float | None = None

    def update(self, oldest_s: float | None, now_s: float, why: Callable[[], str]) -> None:
        """Called now and then with the start of the oldest pending append, if there is one."""
        is_stalled = oldest_s is not None and now_s - oldest_s >= STALL_S
        if is_stalled and self._since_s is None:
            self._since_s = oldest_s
            logger.warning("appends to %s take longer than 1 s: %s", self._log, why())
        elif not is_stalled and self._since_s is not None:
            waited = seconds(now_s - self._since_s)
            logger.info("appends to %s work again, after %s", self._log, waited)
            self._since_s = None
