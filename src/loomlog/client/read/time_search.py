"""Finds the first position whose entry has a given timestamp or a later one.

Segments are searched in order, each in the way of its protocol.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from loomlog.client.loglets.contract import RowsFrom
from loomlog.client.loglets.registry import Loglets
from loomlog.client.servers import BACKOFF
from loomlog.errors import Corrupt, DataLoss, NotFound, Retryable, Trimmed, Unavailable
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb

_PASSING: Final = (Trimmed, Retryable, Corrupt, DataLoss, NotFound)  # a retry may succeed


class TimeSearch:
    """Searches one log by timestamp."""

    def __init__(
        self, log: str, loglets: Loglets, request_timeout_s: float, rng: random.Random
    ) -> None:
        self._log = log
        self._loglets = loglets
        self._timeout_s = request_timeout_s
        self._rng = rng

    async def find(self, timestamp_us: int, rows_from: RowsFrom) -> Glsn:
        """Return the first position at or after a time; one past the tail if there is none."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        attempts = 0
        while True:
            log = await self._loglets.fetch_with_tail()
            try:
                return await self._find(log, timestamp_us, rows_from)
            except _PASSING as error:
                wait_s = BACKOFF.delay_s(attempts, self._rng)
                if asyncio.get_running_loop().time() + wait_s > deadline_s:
                    raise Unavailable(
                        f"log {self._log!r} could not be searched within "
                        f"{self._timeout_s:g} s, last: {error}; try again, and see `loom status`"
                    ) from error
            await asyncio.sleep(wait_s)
            attempts += 1

    async def _find(self, log: pb.Log, timestamp_us: int, rows_from: RowsFrom) -> Glsn:
        for segment in log.segments:
            first = max(segment.start, log.head)
            last = segment.end if segment.HasField("end") else log.tail
            if first > last:
                continue
            loglet = self._loglets.of(segment.protocol)
            streams = [s for s in log.streams if s.loglet_id == segment.loglet_id]
            found = await loglet.find_time(streams, timestamp_us, first, last, rows_from)
            if found is not None:
                return found
        return log.tail + 1
