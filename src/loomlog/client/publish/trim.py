"""Trims staging logs along with their logs, and applies the retention of logs with staged rows.

A reference names the first staged position that it and all later references need. So the first
reference kept decides how far the staging log can be trimmed; if there is none, the writers'
registers do. Publishing clients do this instead of the metadata repository
(metadata/logs/retention.py), because only clients read references. The metadata repository still
decides which entries are too old, since a client's clock may be wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from loomlog import limits
from loomlog.client.log_parts import LogParts
from loomlog.client.publish.writer import Registry, held_back
from loomlog.client.subscribe.pieces import Piece, Referred
from loomlog.errors import LoomError, Trimmed
from loomlog.staging_logs import staging_name
from loomlog.types import Glsn

logger = logging.getLogger(__name__)

SEARCH_BYTES_MAX: Final = 64 * limits.MIB  # of batches before the first reference; then give up
_LOOK_AGAIN: Final = 0.01  # interval as a share of the retention, by which entries may outlive it


async def trim_staged(log: LogParts, registry: Registry, now_us: int) -> None:
    """Trim the staging log of `log` after that was trimmed."""
    staging = registry.parts_of(staging_name(log.name))
    staged = await staging.describe()
    # In this order, a concurrent publication is seen in its writer's register or in the log.
    kept_from = min((staged.reached + 1, *await held_back(registry, log.name, now_us)))
    needed_from = await _first_needed(log, kept_from)
    if needed_from - 1 >= staged.head:
        await staging.trim(needed_from - 1)


async def _first_needed(log: LogParts, otherwise: Glsn) -> Glsn:
    """Return the staged position that the first reference kept needs; 0 if it was not found."""
    info = await log.describe()
    if info.head > info.reached:
        return otherwise
    pieces = log.pieces.stored(info.head, info.tail)
    searched = 0
    try:
        while (piece := await pieces.next()) is not None:
            if isinstance(piece, Referred):
                return piece.reference.needed_from
            searched += piece.header.size if isinstance(piece, Piece) else 0
            if searched > SEARCH_BYTES_MAX:
                return 0
    except Trimmed:  # by another process, which also trims the staging log
        return 0
    finally:
        pieces.close()
    return otherwise


Trim: TypeAlias = Callable[[LogParts, Glsn], Awaitable[None]]


class Retention:
    """Applies the retention of the logs that one client publishes to."""

    def __init__(self, trim: Trim) -> None:
        self._trim = trim
        self._due_s: dict[str, float] = {}  # by log: the next time to check, on the loop's clock

    async def look_after(self, log: LogParts) -> None:
        """Trim expired entries if a check is due. Failures are only logged: the publication that
        called this has succeeded."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._due_s.get(log.name, 0.0):
            return
        self._due_s[log.name] = now_s + limits.RETENTION_INTERVAL_S
        try:
            retention_s = await self._apply(log)
        except LoomError as error:
            logger.info("log %r keeps old entries for now: %s", log.name, error)
        else:
            pause_s = max(limits.RETENTION_INTERVAL_S, _LOOK_AGAIN * retention_s)
            self._due_s[log.name] = now_s + pause_s

    async def _apply(self, log: LogParts) -> int:
        """Return the log's retention; 0 if it has none."""
        info = await log.describe()
        if info.retention_s is None:
            return 0
        last = await log.find_expired()
        if last >= info.head:
            await self._trim(log, last)
        return info.retention_s
