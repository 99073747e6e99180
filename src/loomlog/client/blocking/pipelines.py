"""Ordered appends for programs without an event loop."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from datetime import datetime

from loomlog.client.append.pipeline import Pipeline
from loomlog.client.blocking.loop_thread import BlockingContext, blocking
from loomlog.types import Buffer, Position


class BlockingPipeline(BlockingContext[Pipeline]):
    """Ordered appends to one log; the blocking form of `Pipeline`. A context manager that waits for
    all of them on exit."""

    def append(
        self,
        value: Buffer,
        key: Buffer | None = None,
        *,
        headers: Mapping[str, bytes] | None = None,
        timestamp: datetime | float | None = None,
    ) -> concurrent.futures.Future[Position]:
        """Append one entry after all earlier ones and return a future of its position; see
        `Pipeline.append`."""
        record = self._target._record(value, key, headers, timestamp)

        async def append() -> Position:
            return await self._target._put(*record)

        return self._thread.start(append())

    flush = blocking(Pipeline.flush)
