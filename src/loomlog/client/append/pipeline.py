"""Appends in the order of calls, without waiting for each.

One batch is under way at a time, and everything appended meanwhile becomes the next: so batches
grow with the load, and nothing can be overtaken, whatever a stream, a protocol or a retry does.
After a failure nothing more is sent, since later entries would leave a hole in the order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from loomlog import limits
from loomlog.client.append import errors
from loomlog.client.append.appender import RECORD_OVERHEAD_BYTES, as_bytes, fail, positions
from loomlog.errors import InvalidArgument, LoomError, Unavailable
from loomlog.types import Buffer, Position, StreamId

if TYPE_CHECKING:
    from loomlog.client.append.appender import Appender

_BATCH_BYTES: Final = 4 * limits.MIB  # enough for the rate of unordered appends
_BATCH_RECORDS: Final = 1 << 16


class Pipeline:
    """Ordered appends to one log; an async context manager that waits for all of them on exit."""

    def __init__(
        self, log: str, appender: Appender, stream: StreamId | None, timeout_s: float | None
    ) -> None:
        self._log = log
        self._appender = appender
        self._stream = stream
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes, bytes | None, asyncio.Future[Position]]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._failure: LoomError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.flush()
        elif self._sender is not None:
            await asyncio.wait([self._sender])

    def append(self, value: Buffer, key: Buffer | None = None) -> asyncio.Future[Position]:
        """Append one entry behind all earlier ones, and return a future of its position.

        If an append fails, all later ones raise Unavailable and are not appended."""
        future: asyncio.Future[Position] = self._loop.create_future()
        try:
            record = (as_bytes("value", value), None if key is None else as_bytes("key", key))
            for name, part in zip(("value", "key"), record, strict=True):
                if part is not None and len(part) > limits.RECORD_BYTES_MAX:
                    raise errors.too_large(self._log, name, len(part))
            if self._failure is not None:
                raise self._broken()
        except LoomError as error:
            future.set_exception(error)
            if not isinstance(error, InvalidArgument):
                future.exception()  # `flush` raises it
            return future
        self._waiting.append((*record, future))
        if self._sender is None:
            self._sender = self._loop.create_task(self._send())
        return future

    async def flush(self) -> None:
        """Wait until all entries are appended; raise the error of the first that was not."""
        while self._sender is not None:
            await asyncio.wait([self._sender])
        if self._failure is not None:
            raise self._failure

    async def _send(self) -> None:
        await asyncio.sleep(0)  # what is appended in this turn of the loop goes together
        try:
            while self._waiting:
                await self._send_batch()
        finally:
            self._sender = None

    async def _send_batch(self) -> None:
        values: list[bytes] = []
        keys: list[bytes | None] = []
        futures: list[asyncio.Future[Position]] = []
        size = 0
        while self._waiting and size < _BATCH_BYTES and len(values) < _BATCH_RECORDS:
            value, key, future = self._waiting[0]
            more = len(value) + (0 if key is None else len(key)) + RECORD_OVERHEAD_BYTES
            if values and size + more > limits.BATCH_BYTES_MAX // 2:
                break
            self._waiting.popleft()
            size += more
            values.append(value)
            keys.append(key)
            futures.append(future)
        try:
            encoder = partial(_encode, values, keys if any(k is not None for k in keys) else None)
            first = await self._appender.append_whole(
                encoder, len(values), size, self._stream, self._timeout_s
            )
        except LoomError as error:
            self._fail(error, futures)
            return
        except Exception as error:
            self._fail(LoomError(f"the pipeline failed: {error!r}"), futures)
            raise
        for future, position in zip(futures, positions(first, len(futures)), strict=True):
            if not future.done():
                future.set_result(position)

    def _fail(self, error: LoomError, futures: list[asyncio.Future[Position]]) -> None:
        self._failure = error
        for future in futures:
            fail(future, error, quietly=True)
        for _, _, future in self._waiting:
            fail(future, self._broken(), quietly=True)
        self._waiting.clear()

    def _broken(self) -> Unavailable:
        return Unavailable(
            f"not appended to log {self._log!r}: an earlier entry of this pipeline was not "
            f"appended: {self._failure}"
        )


def _encode(values: list[bytes], keys: list[bytes | None] | None, **stamps: Any) -> Buffer:
    from loomlog.columns.writer import encode

    return encode(values, keys=keys, **stamps)
