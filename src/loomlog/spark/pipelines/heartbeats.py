"""Heartbeats: records that say nothing but the time, so that watermarks move on a quiet source.

They are appended to the source itself, by the runner that is active, when nothing else was for a
while. Pipelines drop them once they have moved the watermark; other readers know them by their key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from loomlog.spark.pipelines.decoding import HEARTBEAT_KEY
from loomlog.types import Glsn

if TYPE_CHECKING:
    from loomlog.client.blocking import BlockingLog


class Heartbeats:
    """Looks after some logs."""

    def __init__(
        self,
        logs: Iterable[BlockingLog],
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_s = every_s
        self._clock = clock
        self._seen: dict[BlockingLog, tuple[Glsn, float]] = {
            log: (log.tail(), clock()) for log in logs
        }

    def look(self) -> None:
        """Append one to each log that has not grown for so long."""
        now = self._clock()
        for log, (tail, since) in self._seen.items():
            if log.tail() != tail:
                self._seen[log] = log.tail(), now
            elif now - since >= self._every_s:
                self._seen[log] = log.append(b"", HEARTBEAT_KEY).position, now
