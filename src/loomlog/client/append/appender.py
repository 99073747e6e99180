"""Gathers the appends to one log into batches, and gives each caller its position.

A record goes into the open batch of its lane. While few batches are in flight, that batch is closed
at the end of the current turn of the event loop; otherwise when a batch in flight is answered, or
when it is full. So batches grow with the load. delivery.py sends closed batches. The number of
buffered bytes is limited; beyond that, appends wait.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from loomlog import limits
from loomlog.client.append import errors
from loomlog.client.append.encoders import gathered_encoder
from loomlog.client.append.options import AppendOptions, Wanted, as_record
from loomlog.client.arguments import as_bytes
from loomlog.core.delivery import Progress
from loomlog.errors import InvalidArgument, LoomError
from loomlog.types import Buffer, Glsn, Llsn, Position, StreamId

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from loomlog.client.append.delivery import Delivery, Targets
    from loomlog.client.append.stream import Stream
    from loomlog.client.context import Client
    from loomlog.columns.writer import Special

FEW_IN_FLIGHT: Final = 2  # per stream or replica of a chain: one being stored, one being sent
RECORD_OVERHEAD_BYTES: Final = 32  # so that empty values count as well

_Record: TypeAlias = tuple[bytes, bytes | None, StreamId | None, int, asyncio.Future[Position]]
"""Value, key, stream, size and the caller's future."""


class Appender:
    """All appends of one client to one log."""

    def __init__(self, log: str, delivery: Delivery, client: Client) -> None:
        settings = client.settings
        self._log = log
        self._producer = client.producer
        self._timeout_s = settings.append_timeout_s
        self._loop = client.loop
        self._batch_bytes = min(settings.append_batch_bytes, limits.BATCH_BYTES_MAX // 2)
        self._buffer_bytes_max = settings.append_buffer_bytes_max
        self._buffered_bytes = 0
        # Appends that wait for room: size, the caller's future, and the function that adds it.
        self._waiting: deque[tuple[int, asyncio.Future[Any], Callable[[], None]]] = deque()
        self._delivery = delivery
        delivery.release = self._release_bytes
        self._lanes = delivery.lanes
        self._any = self._lanes.any
        self._closed = False

    # ---- callers

    def append(
        self, value: Buffer, key: Buffer | None, stream: StreamId | None
    ) -> asyncio.Future[Position]:
        future: asyncio.Future[Position] = self._loop.create_future()
        if type(value) is bytes and key is None and stream is None:  # the fast path
            size = len(value) + RECORD_OVERHEAD_BYTES
            held, enough = self._buffered_bytes + size, self._batch_bytes
            if size <= enough and held <= self._buffer_bytes_max and not self._waiting:
                self._buffered_bytes = held
                lane = self._any
                batch = lane.open or self._begin(lane)
                batch.values.append(value)
                batch.futures.append(future)
                if batch.keys is not None:
                    batch.keys.append(None)
                batch.size = size = batch.size + size
                if size >= enough:
                    self._lanes.close_open(lane)
                return future
        size = RECORD_OVERHEAD_BYTES
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
            self._append_slowly((value, key, stream, size, future))
        else:
            self._buffered_bytes = held
            self._put(value, key, stream, size, future)
        return future

    def append_special(
        self,
        value: Buffer,
        key: Buffer | None,
        stream: StreamId | None,
        headers: bytes | None,
        timestamp_us: int | None,
    ) -> asyncio.Future[Position]:
        """Append one record that has headers or its own timestamp."""
        future: asyncio.Future[Position] = self._loop.create_future()
        try:
            record = as_record(self._log, value, key)
        except InvalidArgument as error:
            future.set_exception(error)
            return future
        size = RECORD_OVERHEAD_BYTES + sum(len(part) for part in (*record, headers) if part)

        def put() -> None:
            lane = self._lanes.get(stream)
            if size > self._batch_bytes:
                self._lanes.close_open(lane)
            batch = lane.open or self._begin(lane)
            batch.special[len(batch.values)] = (headers, timestamp_us)
            self._put(*record, stream, size, future)

        self._admit(size, future, put)
        return future

    async def append_whole(
        self,
        encoder: Callable[..., Buffer],
        count: int,
        size: int,
        options: AppendOptions = AppendOptions(),  # noqa: B008 - it is immutable
    ) -> Position:
        """Append one batch of `count` records, made by `encoder`; return its first position. Raise
        Conflict if another entry has, or may get, a position after the expected tail; nothing was
        appended then."""
        if size > limits.BATCH_BYTES_MAX:
            raise errors.too_many(self._log, count, size)
        size += count * RECORD_OVERHEAD_BYTES
        future: asyncio.Future[Position] = self._loop.create_future()
        self._admit(size, future, partial(self._put_whole, encoder, count, size, options, future))
        return await future

    async def close(self) -> None:
        """Fail all pending appends, with AppendUnknown if they were sent."""
        self._closed = True
        self._buffer_bytes_max = -1  # keep later appends off the fast path
        waiting, self._waiting = self._waiting, deque()
        for _, future, _ in waiting:
            errors.fail(future, errors.closed(self._log), quietly=True)
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
        if key is not None and batch.keys is None:
            batch.keys = [None] * len(batch.values)
        batch.values.append(value)
        batch.futures.append(future)
        if batch.keys is not None:
            batch.keys.append(key)
        batch.size += size
        if batch.size >= self._batch_bytes:
            self._lanes.close_open(lane)

    def _append_slowly(self, record: _Record) -> None:
        """Append a record that is large or may have to wait for room."""
        value, key, _, size, future = record
        for name, part in (("value", value), ("key", key or b"")):
            if len(part) > limits.RECORD_BYTES_MAX:
                future.set_exception(errors.too_large(self._log, name, len(part)))
                return
        self._admit(size, future, partial(self._put_apart, record))

    def _put_apart(self, record: _Record) -> None:
        """Put a large record into a new batch, so that no batch exceeds the limit."""
        _, _, stream, size, _ = record
        if size > self._batch_bytes:
            self._lanes.close_open(self._lanes.get(stream))
        self._put(*record)

    def _put_whole(
        self,
        encoder: Callable[..., Buffer],
        count: int,
        size: int,
        options: AppendOptions,
        future: asyncio.Future[Position],
    ) -> None:
        lane = self._lanes.get(options.wanted)
        deadline_s, now_us = self._stamps()
        if options.timeout_s is not None:
            deadline_s += options.timeout_s - self._timeout_s
        batch = CallerBatch(lane, size, deadline_s, now_us, encoder, count, future)
        batch.expected_tail = options.expected_tail
        batch.fail_fast = options.fail_fast
        batch.timeout_s = options.timeout_s
        self._delivery.enqueue(batch)

    def _begin(self, lane: Lane) -> GatheredBatch:
        batch = lane.open = GatheredBatch(lane, *self._stamps())
        self._lanes.flush_soon(lane)
        return batch

    def _stamps(self) -> tuple[float, int]:
        return self._loop.time() + self._timeout_s, self._producer.now_us()

    # ---- room

    def _admit(self, size: int, future: asyncio.Future[Any], put: Callable[[], None]) -> None:
        """Call `put` now or as soon as there is room: the back-pressure of appends."""
        if self._closed:
            future.set_exception(errors.closed(self._log))
        elif self._fits(size) and not self._waiting:
            self._buffered_bytes += size
            put()
        else:
            self._waiting.append((size, future, put))

    def _fits(self, size: int) -> bool:
        """Return whether there is room; an empty buffer has room for any size."""
        held = self._buffered_bytes
        return held == 0 or held + size <= self._buffer_bytes_max

    def _release_bytes(self, size: int) -> None:
        self._buffered_bytes -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            next_size, future, put = self._waiting.popleft()
            if not future.done():
                self._buffered_bytes += next_size
                put()


class Producer:
    """A client's producer id, and the sequence numbers of its batches."""

    def __init__(self, rng: random.Random, clock: Callable[[], float]) -> None:
        self.id = rng.getrandbits(63) or 1
        self._clock = clock
        self._sequence = 0

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def now_us(self) -> int:
        return int(self._clock() * 1_000_000)


class Lane:
    """Records for the same streams, in the order of their appends."""

    __slots__ = ("flush_scheduled", "open", "queue", "stalled", "stream", "under_way")

    def __init__(self, stream: Wanted) -> None:
        self.stream = stream
        self.open: GatheredBatch | None = None
        self.queue: deque[Batch] = deque()  # closed batches that wait for a stream with room
        self.under_way = 0  # the number of batches that are closed and not settled
        self.stalled = 0  # how many of them new batches need not wait for
        self.flush_scheduled = False


class Lanes:
    """The lanes of one log: one for appends to any stream, and one for each stream, or set of
    streams, that callers name."""

    def __init__(
        self, targets: Targets, closed: Callable[[Batch], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`closed` is called with each batch that is ready to send."""
        self._targets = targets
        self._closed = closed
        self._loop = loop
        self.any = Lane(None)
        self._lanes: dict[Wanted, Lane] = {None: self.any}

    def __iter__(self) -> Iterator[Lane]:
        """Iterate over a copy, since lanes may be added and removed meanwhile."""
        return iter(list(self._lanes.values()))

    def get(self, stream: Wanted) -> Lane:
        lane = self._lanes.get(stream)
        if lane is None:
            lane = self._lanes[stream] = Lane(stream)
        return lane

    def flush_soon(self, lane: Lane) -> None:
        """Flush the lane at the end of this turn of the event loop, so that all appends of the turn
        are sent together."""
        if not lane.flush_scheduled:
            lane.flush_scheduled = True
            self._loop.call_soon(self._flush, lane)

    def _flush(self, lane: Lane) -> None:
        lane.flush_scheduled = False
        under_way = lane.under_way - lane.stalled
        few = FEW_IN_FLIGHT  # per unit of width, which is computed only if needed
        if under_way < few or under_way < few * self._targets.width(lane.stream):
            self.close_open(lane)

    def close_open(self, lane: Lane) -> None:
        batch, lane.open = lane.open, None
        if batch is not None:
            self._closed(batch)

    def settled(self, lane: Lane) -> None:
        """Called when a batch of the lane is settled: flush the open batch, or drop the lane if it
        is idle."""
        if lane.open is not None:
            self.flush_soon(lane)
        elif lane.stream is not None and not lane.under_way and not lane.flush_scheduled:
            self._lanes.pop(lane.stream, None)


@dataclass(slots=True, eq=False)
class Batch:
    """Records that are sent together. A batch is settled once, by `succeed` or `fail`."""

    is_checked: ClassVar[bool] = False  # True: `encode` cannot refuse the records
    lane: Lane
    size: int
    deadline_s: float
    timestamp_us: int
    progress: Progress = field(init=False)  # set when the batch is closed
    span: Span = field(init=False)  # set when the batch is closed, if there is a tracer
    expected_tail: Glsn | None = None  # append it only if no entry has a higher position
    fail_fast: bool = False  # make only one attempt
    timeout_s: float | None = None  # None: that of the settings
    attempt: Attempt | None = None  # the current one
    stalled: bool = False  # whether new batches need not wait for it
    refusal: LoomError | None = None  # the last one, for the callers' error
    retry: asyncio.TimerHandle | None = None  # during back-off

    @property
    def count(self) -> int:
        """The number of records."""
        raise NotImplementedError

    def stall(self) -> None:
        """Do not let new batches wait for this one."""
        if not self.stalled:
            self.stalled = True
            self.lane.stalled += 1

    def end_attempt(self) -> None:
        """Cancel the current attempt and free its place on the stream."""
        attempt, self.attempt = self.attempt, None
        if self.stalled:
            self.stalled = False
            self.lane.stalled -= 1
        if attempt is not None:
            target = attempt.target
            del target.in_flight[attempt]
            target.doubtful -= attempt.doubtful
            attempt.cancel()

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        raise NotImplementedError

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        """Return the positions to the callers."""
        raise NotImplementedError

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        """Raise `error` in the callers; if `quietly`, without a warning if none retrieves it."""
        raise NotImplementedError


class Attempt:
    """One attempt to append a batch to one stream."""

    __slots__ = ("batch", "doubtful", "target")

    def __init__(self, batch: Batch, target: Stream) -> None:
        self.batch = batch
        self.target = target
        self.doubtful = False  # whether its answer was lost; set by the stream

    @property
    def current(self) -> bool:
        """True if its batch still depends on this attempt."""
        return self.batch.attempt is self

    def start(self) -> None:
        """Start; called once. The outcome must be reported in a later turn of the event loop, since
        settling a batch starts the next one."""

    def cancel(self) -> None:
        """Stop; called once when the attempt is over, even if it has reported its outcome."""


class GatheredBatch(Batch):
    """Records of several callers, each of which gets its own position."""

    is_checked = True
    __slots__ = ("futures", "keys", "special", "values")

    def __init__(self, lane: Lane, deadline_s: float, timestamp_us: int) -> None:
        super().__init__(lane, 0, deadline_s, timestamp_us)
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None  # None: no record has one
        self.special: dict[int, Special] = {}  # by index
        self.futures: list[asyncio.Future[Position]] = []

    @property
    def count(self) -> int:
        return len(self.values)

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        return gathered_encoder()(
            self.values,
            self.keys,
            self.special,
            self.timestamp_us,
            producer_id=producer_id,
            sequence=sequence,
            compression=compression,
        )

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        at, count = Position(first, stream, first_llsn), len(self.futures)
        given = positions(at, count) if count > 1 else (at,)
        for future, position in zip(self.futures, given, strict=True):
            if not future.done():  # its caller may have cancelled it
                future.set_result(position)

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        for future in self.futures:
            errors.fail(future, error, quietly=quietly)


class CallerBatch(Batch):
    """The records of one call, which gets the position of the first record."""

    __slots__ = ("_count", "_encoder", "_future")

    def __init__(
        self,
        lane: Lane,
        size: int,
        deadline_s: float,
        timestamp_us: int,
        encoder: Callable[..., Buffer],
        count: int,
        future: asyncio.Future[Position],
    ) -> None:
        super().__init__(lane, size, deadline_s, timestamp_us)
        self._encoder = encoder
        self._count = count
        self._future = future

    @property
    def count(self) -> int:
        return self._count

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        return self._encoder(
            timestamps_us=self.timestamp_us,
            producer_id=producer_id,
            sequence=sequence,
            compression=compression,
        )

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        if not self._future.done():
            self._future.set_result(Position(first, stream, first_llsn))

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        errors.fail(self._future, error, quietly=quietly)


def positions(first: Position, count: int) -> Iterator[Position]:
    """Return `count` consecutive positions."""
    rows = zip(
        range(first.position, first.position + count),
        repeat(first.stream),
        range(first.llsn, first.llsn + count),
        strict=False,
    )
    # Like Position._make, but without a Python frame per record.
    return map(tuple.__new__, repeat(Position), rows)
