"""Appends that keep the order of calls, without waiting for each.

One batch is in flight at a time, and everything appended meanwhile becomes the next one. So batches
grow with the load, and no entry can overtake another, whatever a stream, a protocol or a retry
does. After a failure nothing more is sent, since later entries would leave a hole in the order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from loomlog import limits
from loomlog.client.append import errors
from loomlog.client.append.appender import RECORD_OVERHEAD_BYTES, positions
from loomlog.client.append.encoders import encoded_headers, gathered_encoder
from loomlog.client.append.options import AppendOptions, as_record
from loomlog.client.arguments import timestamp_us
from loomlog.errors import InvalidArgument, LoomError, Unavailable
from loomlog.types import Buffer, Position

if TYPE_CHECKING:
    from loomlog.columns.writer import Special

_BATCH_BYTES: Final = 4 * limits.MIB  # enough for the rate of unordered appends
_BATCH_RECORDS: Final = 1 << 16

_Record: TypeAlias = tuple[bytes, bytes | None, bytes | None, int | None]
"""Value, key, encoded headers and timestamp of an entry."""


class _Gathered:
    """Records that are appended as one batch."""

    __slots__ = ("futures", "keys", "size", "special", "values")

    def __init__(self) -> None:
        self.size = 0
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None  # None: no record has one
        self.special: dict[int, Special] = {}  # by index
        self.futures: list[asyncio.Future[Position]] = []

    def encode(self, *, timestamps_us: int, **stamps: Any) -> Buffer:
        return gathered_encoder()(self.values, self.keys, self.special, timestamps_us, **stamps)


class Pipeline:
    """Ordered appends to one log, as returned by `Log.pipeline`. An async context manager that
    waits for all of them on exit."""

    def __init__(
        self, log: str, append: Callable[..., Awaitable[Position]], options: AppendOptions
    ) -> None:
        """`append` appends one batch, given its encoder, number of records, size and options."""
        self._log = log
        self._append_batch = append
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Gathered] = deque()  # appends go to the last one until it is full
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
        """Append one entry after all earlier ones and return a future of its position.

        The arguments are those of `Log.append`. The future raises the error of the append; after
        one has failed, all later ones raise Unavailable and append nothing. Raise InvalidArgument
        after the `async with` block has ended."""
        if (
            (type(value) is bytes and len(value) <= limits.RECORD_BYTES_MAX)
            and (key is None and headers is None and timestamp is None)
            and not self._ended
        ):  # the fast path, for most appends
            return self._put(value)
        return self._put(*self._record(value, key, headers, timestamp))

    def _record(
        self,
        value: Buffer,
        key: Buffer | None,
        headers: Mapping[str, bytes] | None,
        timestamp: datetime | float | None,
    ) -> _Record:
        """Check and encode the arguments of an append."""
        if self._ended:
            raise InvalidArgument("this pipeline has ended: begin another one")
        encoded = None if headers is None else encoded_headers(headers)
        time_us = None if timestamp is None else timestamp_us(timestamp)
        return *as_record(self._log, value, key), encoded, time_us

    def _put(
        self,
        value: bytes,
        key: bytes | None = None,
        headers: bytes | None = None,
        time_us: int | None = None,
    ) -> asyncio.Future[Position]:
        future: asyncio.Future[Position] = self._loop.create_future()
        if self._failure is not None:
            future.set_exception(self._broken())
            future.exception()  # `flush` raises it
            return future
        size = RECORD_OVERHEAD_BYTES + len(value)
        if key is not None:
            size += len(key)
        if headers is not None:
            size += len(headers)
        batch = self._waiting[-1] if self._waiting else self._begin()
        if batch.size + size > _BATCH_BYTES or len(batch.values) == _BATCH_RECORDS:
            batch = self._begin() if batch.values else batch
        if headers is not None or time_us is not None:
            batch.special[len(batch.values)] = (headers, time_us)
        if batch.keys is not None:
            batch.keys.append(key)
        elif key is not None:
            batch.keys = [*repeat(None, len(batch.values)), key]
        batch.values.append(value)
        batch.futures.append(future)
        batch.size += size
        return future

    def _begin(self) -> _Gathered:
        batch = _Gathered()
        self._waiting.append(batch)
        if self._sender is None:
            self._sender = self._loop.create_task(self._send())
        return batch

    async def flush(self) -> None:
        """Wait until all entries are appended; raise the error of the first one that failed."""
        while self._sender is not None:
            await asyncio.wait([self._sender])
        if self._failure is not None:
            raise self._failure

    async def _send(self) -> None:
        await asyncio.sleep(0)  # gather all appends of this turn of the event loop
        try:
            while self._waiting:
                await self._send_batch(self._waiting.popleft())
        finally:
            self._sender = None

    async def _send_batch(self, batch: _Gathered) -> None:
        options, count = self._options, len(batch.values)
        try:
            first = await self._append_batch(batch.encode, count, batch.size, options)
            if options.expected_tail is not None:
                self._options = options._replace(expected_tail=first.position + count - 1)
        except LoomError as error:
            self._fail(error, batch)
            return
        except Exception as error:
            self._fail(LoomError(f"the pipeline failed: {error!r}"), batch)
            raise
        for future, position in zip(batch.futures, positions(first, count), strict=True):
            if not future.done():
                future.set_result(position)

    def _fail(self, error: LoomError, batch: _Gathered) -> None:
        self._failure = error
        for future in batch.futures:
            errors.fail(future, error, quietly=True)
        for later in self._waiting:
            for future in later.futures:
                errors.fail(future, self._broken(), quietly=True)
        self._waiting.clear()

    def _broken(self) -> Unavailable:
        return Unavailable(
            f"not appended to log {self._log!r}: an earlier entry of this pipeline was not "
            f"appended: {self._failure}"
        )
