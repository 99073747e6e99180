"""Log messages about appends that take long: when a stall begins, and when it is over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from loomlog.errors import seconds

logger = logging.getLogger(__name__)

STALL_S: Final = 1.0


class Stalls:
    """The stall of one log, if there is one."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._since_s: float | None = None

    def update(self, oldest_s: float | None, now_s: float, why: Callable[[], str]) -> None:
        """Called now and then with the time at which the oldest append began, if any waits."""
        stalls = oldest_s is not None and now_s - oldest_s >= STALL_S
        if stalls and self._since_s is None:
            self._since_s = oldest_s
            logger.warning("appends to %s take longer than 1 s: %s", self._log, why())
        elif not stalls and self._since_s is not None:
            waited = seconds(now_s - self._since_s)
            logger.info("appends to %s work again, after %s", self._log, waited)
            self._since_s = None
