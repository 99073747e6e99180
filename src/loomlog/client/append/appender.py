"""Appends to one log: gathers many calls into few batches and gives each its own position.

A record goes into the open batch of its lane (batches.py); delivery.py sends closed batches. The
bytes buffered are limited: beyond that, `append` waits.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from loomlog import limits
from loomlog.client.append import errors
from loomlog.client.append.batches import (
    CallerBatch,
    GatheredBatch,
    Lane,
    Producer,
    as_bytes,
    fail,
)
from loomlog.client.append.carriers import CarriersByProtocol
from loomlog.client.append.delivery import Delivery
from loomlog.client.servers.metadata import CachedLog
from loomlog.config import ClientSettings
from loomlog.errors import InvalidArgument
from loomlog.types import Buffer, Position, StreamId

RECORD_OVERHEAD_BYTES: Final = 32  # so that empty values count, too


class _Record(NamedTuple):
    value: bytes
    key: bytes | None
    stream: StreamId | None
    size: int
    future: asyncio.Future[Position]


class Appender:
    """All appends of one client to one log."""

    def __init__(
        self,
        log: CachedLog,
        producer: Producer,
        settings: ClientSettings,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
        carriers: CarriersByProtocol,
    ) -> None:
        self._log = log.name
        self._producer = producer
        self._timeout_s = settings.append_timeout_s
        self._loop = loop
        self._batch_bytes = min(settings.append_batch_bytes, limits.BATCH_BYTES_MAX // 2)
        self._buffer_bytes_max = settings.append_buffer_bytes_max
        self._buffered_bytes = 0
        # Appends that wait for room: size, the caller's future, the function that adds it.
        self._waiting: deque[tuple[int, asyncio.Future[Any], Callable[[], None]]] = deque()
        self._delivery = Delivery(log, settings, rng, loop, self._release_bytes, carriers)
        self._lanes = self._delivery.lanes
        self._any = self._lanes.any
        self._closed = False

    # ---- callers

    def append(
        self, value: Buffer, key: Buffer | None, stream: StreamId | None
    ) -> asyncio.Future[Position]:
        future: asyncio.Future[Position] = self._loop.create_future()
        size = RECORD_OVERHEAD_BYTES
        if type(value) is not bytes or key is not None:
            try:
                value = as_bytes("value", value)
                if key is not None:
                    key = as_bytes("key", key)
                    size += len(key)
            except InvalidArgument as error:
                future.set_exception(error)
                return future
        size += len(value)
        held = self._buffered_bytes + size
        if size > self._batch_bytes or held > self._buffer_bytes_max or self._waiting:
            self._append_slowly(_Record(value, key, stream, size, future))
        else:
            self._buffered_bytes = held
            self._put(value, key, stream, size, future)
        return future

    async def append_whole(
        self, encoder: Callable[..., Buffer], count: int, size: int, stream: StreamId | None
    ) -> Position:
        """Append one batch of `count` records, made by `encoder`; return its first position."""
        if size > limits.BATCH_BYTES_MAX:
            raise errors.too_many(self._log, count, size)
        size += count * RECORD_OVERHEAD_BYTES
        future: asyncio.Future[Position] = self._loop.create_future()
        self._admit(size, future, partial(self._put_whole, encoder, count, size, stream, future))
        return await future

    async def close(self) -> None:
        """Fail all appends; those sent but not answered with AppendUnknown."""
        self._closed = True
        self._buffer_bytes_max = -1  # take later appends off the fast path
        waiting, self._waiting = self._waiting, deque()
        for _, future, _ in waiting:
            fail(future, errors.closed(self._log), quietly=True)
        await self._delivery.close()

    # ---- into a batch

    def _put(
        self,
        value: bytes,
        key: bytes | None,
        stream: StreamId | None,
        size: int,
        future: asyncio.Future[Position],
    ) -> None:
        lane = self._any if stream is None else self._lanes.get(stream)
        batch = lane.open or self._begin(lane)
        batch.values.append(value)
        batch.keys.append(key)
        batch.futures.append(future)
        if key is not None:
            batch.keyed = True
        batch.size += size
        if batch.size >= self._batch_bytes:
            self._lanes.close_open(lane)

    def _append_slowly(self, record: _Record) -> None:
        """Append a record that is large or has to wait for room."""
        for name, part in (("value", record.value), ("key", record.key or b"")):
            if len(part) > limits.RECORD_BYTES_MAX:
                record.future.set_exception(errors.too_large(self._log, name, len(part)))
                return
        self._admit(record.size, record.future, partial(self._put_apart, record))

    def _put_apart(self, record: _Record) -> None:
        """Start a new batch for a large record, so that it pushes none over the limit."""
        if record.size > self._batch_bytes:
            self._lanes.close_open(self._lanes.get(record.stream))
        self._put(*record)

    def _put_whole(
        self,
        encoder: Callable[..., Buffer],
        count: int,
        size: int,
        stream: StreamId | None,
        future: asyncio.Future[Position],
    ) -> None:
        lane = self._lanes.get(stream)
        batch = CallerBatch(lane, size, *self._stamps(), encoder, count, future)
        self._delivery.enqueue(batch)

    def _begin(self, lane: Lane) -> GatheredBatch:
        batch = lane.open = GatheredBatch(lane, *self._stamps())
        self._lanes.flush_soon(lane)
        return batch

    def _stamps(self) -> tuple[float, int]:
        return self._loop.time() + self._timeout_s, self._producer.now_us()

    # ---- room

    def _admit(self, size: int, future: asyncio.Future[Any], put: Callable[[], None]) -> None:
        """Call `put` now or once there is room: the back-pressure of appends."""
        if self._closed:
            future.set_exception(errors.closed(self._log))
        elif self._fits(size) and not self._waiting:
            self._buffered_bytes += size
            put()
        else:
            self._waiting.append((size, future, put))

    def _fits(self, size: int) -> bool:
        """Return whether there is room; any size fits an empty buffer."""
        held = self._buffered_bytes
        return held == 0 or held + size <= self._buffer_bytes_max

    def _release_bytes(self, size: int) -> None:
        self._buffered_bytes -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            wanted, future, put = self._waiting.popleft()
            if not future.done():
                self._buffered_bytes += wanted
                put()
