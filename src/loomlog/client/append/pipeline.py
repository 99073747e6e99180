"""Appends in the order of calls, without waiting for each.

One batch is under way at a time, and everything appended meanwhile becomes the next: so batches
grow with the load, and nothing can be overtaken, whatever a stream, a protocol or a retry does.
After a failure nothing more is sent, since later entries would leave a hole in the order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from loomlog import limits
from loomlog.client.append import errors
from loomlog.client.append.appender import RECORD_OVERHEAD_BYTES, positions
from loomlog.client.append.options import AppendOptions, as_record
from loomlog.client.arguments import timestamp_us
from loomlog.errors import InvalidArgument, LoomError, Unavailable
from loomlog.types import Buffer, Position

_BATCH_BYTES: Final = 4 * limits.MIB  # enough for the rate of unordered appends
_BATCH_RECORDS: Final = 1 << 16


class Record(NamedTuple):
    """An entry to be appended."""

    value: bytes
    key: bytes | None
    headers: bytes | None
    timestamp_us: int | None

    @property
    def size(self) -> int:
        besides = len(self.key or b"") + len(self.headers or b"")
        return RECORD_OVERHEAD_BYTES + len(self.value) + besides


class Pipeline:
    """Ordered appends to one log; an async context manager that waits for all of them on exit."""

    def __init__(
        self, log: str, append: Callable[..., Awaitable[Position]], options: AppendOptions
    ) -> None:
        """`append` appends one batch: encoder, number of records, size and options."""
        self._log = log
        self._append_batch = append
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Record, asyncio.Future[Position]]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._failure: LoomError | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended = True
        if error is None:
            await self.flush()
        elif self._sender is not None:
            await asyncio.wait([self._sender])

    def append(
        self,
        value: Buffer,
        key: Buffer | None = None,
        *,
        headers: Mapping[str, bytes] | None = None,
        timestamp: datetime | float | None = None,
    ) -> asyncio.Future[Position]:
        """Append one entry behind all earlier ones, and return a future of its position.

        If an append fails, all later ones raise Unavailable and are not appended."""
        return self._put(self._record(value, key, headers, timestamp))

    def _record(
        self,
        value: Buffer,
        key: Buffer | None,
        headers: Mapping[str, bytes] | None,
        timestamp: datetime | float | None,
    ) -> Record:
        """Return the record of an append; raise InvalidArgument if it cannot be one."""
        if self._ended:
            raise InvalidArgument("this pipeline has ended: begin another one")
        encoded = None
        if headers is not None:
            from loomlog.columns.headers import encode_headers

            encoded = encode_headers(headers)
        time_us = None if timestamp is None else timestamp_us(timestamp)
        return Record(*as_record(self._log, value, key), encoded, time_us)

    def _put(self, record: Record) -> asyncio.Future[Position]:
        future: asyncio.Future[Position] = self._loop.create_future()
        if self._failure is not None:
            future.set_exception(self._broken())
            future.exception()  # `flush` raises it
            return future
        self._waiting.append((record, future))
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
        records: list[Record] = []
        futures: list[asyncio.Future[Position]] = []
        size = 0
        while self._waiting and size < _BATCH_BYTES and len(records) < _BATCH_RECORDS:
            record, future = self._waiting[0]
            more = record.size
            if records and size + more > limits.BATCH_BYTES_MAX // 2:
                break
            self._waiting.popleft()
            size += more
            records.append(record)
            futures.append(future)
        try:
            options = self._options
            encoder = partial(_encode, records)
            first = await self._append_batch(encoder, len(records), size, options)
            if options.expected_tail is not None:
                self._options = options._replace(expected_tail=first.position + len(records) - 1)
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
            errors.fail(future, error, quietly=True)
        for _, future in self._waiting:
            errors.fail(future, self._broken(), quietly=True)
        self._waiting.clear()

    def _broken(self) -> Unavailable:
        return Unavailable(
            f"not appended to log {self._log!r}: an earlier entry of this pipeline was not "
            f"appended: {self._failure}"
        )


def _encode(records: Sequence[Record], *, timestamps_us: int, **stamps: Any) -> Buffer:
    from loomlog.columns.writer import encode

    values, keys, headers, times = map(list, zip(*records, strict=True))
    return encode(
        values,
        keys=_unless_empty(keys),
        headers=_unless_empty(headers),
        timestamps_us=[timestamps_us if time is None else time for time in times]
        if _unless_empty(times)
        else timestamps_us,
        **stamps,
    )


def _unless_empty(column: list[Any]) -> list[Any] | None:
    return column if any(item is not None for item in column) else None
