"""Retention of a log that rows are staged for: who publishes there trims it, now and then.

The metadata repository leaves such a log alone (metadata/retention.py): what of its staging log is
needed stands in references, which only clients read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from loomlog import limits
from loomlog.errors import LoomError
from loomlog.types import Glsn

if TYPE_CHECKING:
    from loomlog.client.log import Log

logger = logging.getLogger(__name__)

_LOOK_AGAIN: Final = 0.01  # of the retention: entries stay so much longer, and no more
_MICROSECONDS: Final = 1_000_000


class Retaining:
    """By one client."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._due_us: dict[str, int] = {}  # by log; not before

    async def look_after(self, log: Log) -> None:
        """Trim what is too old, if it is time to look. What fails is done another time: whoever
        published has done so."""
        now_us = self._now_us()
        if now_us < self._due_us.get(log.name, 0):
            return
        self._due_us[log.name] = now_us + int(limits.RETENTION_INTERVAL_S * _MICROSECONDS)
        try:
            retention_s = await self._trim(log, now_us)
        except LoomError as error:
            logger.info("log %r keeps old entries for now: %s", log.name, error)
        else:
            pause_s = max(limits.RETENTION_INTERVAL_S, _LOOK_AGAIN * retention_s)
            self._due_us[log.name] = now_us + int(pause_s * _MICROSECONDS)

    async def _trim(self, log: Log, now_us: int) -> int:
        """The log's retention; 0 if it has none."""
        info = await log.describe()
        if info.retention_s is None:
            return 0
        last = await log.find_time(now_us / _MICROSECONDS - info.retention_s) - 1
        last = min(last, await _last_archived(log, last))
        if last >= info.head:
            await log.trim(last)
        return info.retention_s


async def _last_archived(log: Log, otherwise: Glsn) -> Glsn:
    """What an archive will want is not trimmed before it is there."""
    archive = await log.archive()
    return otherwise if archive is None else archive.through
