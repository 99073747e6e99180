"""Appends of one log: many calls travel as few batches, and each hears its own position.

A record goes into the open batch of its lane (one lane for "any stream", one per named stream).
The batch is closed at the end of the loop's turn while few batches are under way, and otherwise
when one of those is answered or it is full: the more is in flight, the larger batches become.

Invariants:
- a batch is retried only if it was certainly not appended, and then under a new sequence number
  (a stream that has seen a later one would take the old number for a repeat);
- what is under way is bounded: batches per stream, and bytes in all (then `append` waits);
- every outstanding batch ends by its deadline.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final

from loomlog import limits
from loomlog.client import backoff
from loomlog.client.metadata import CachedLog
from loomlog.client.nodes import Connections
from loomlog.config import ClientSettings
from loomlog.errors import (
    AppendUnknown,
    Busy,
    InvalidArgument,
    LoomError,
    NotFound,
    Retryable,
    Sealed,
    Timeout,
    Unavailable,
)
from loomlog.net.connection import Connection
from loomlog.types import Buffer, Glsn, Llsn, Position, StreamId
from loomlog.wire import loomlog_pb2 as pb

RECORD_OVERHEAD_BYTES: Final = 32  # so that empty values count, too
FEW_IN_FLIGHT: Final = 2  # per stream: one on the disk, one on its way
AVOID_S: Final = 1.0  # a stream that failed is left alone so long, or until its metadata changes
SWEEPS_PER_TIMEOUT: Final = 20  # how exactly append_timeout_s is kept


class Producer:
    """Who appends: its number, and the numbers of its batches. One per client."""

    def __init__(self, rng: random.Random, clock: Callable[[], float]) -> None:
        self.id = rng.getrandbits(63) or 1
        self._clock = clock
        self._sequence = 0

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def now_us(self) -> int:
        return int(self._clock() * 1_000_000)


class _Stream:
    """A log stream as a target for appends."""

    __slots__ = ("address", "avoid_until_s", "epoch", "id", "in_flight", "running")

    def __init__(self, stream_id: StreamId) -> None:
        self.id = stream_id
        self.address = ""
        self.epoch = -1
        self.running = False
        self.in_flight = 0
        self.avoid_until_s = float("-inf")

    def update(self, metadata: pb.LogStream) -> None:
        address = metadata.replicas[0].address if metadata.replicas else ""
        if (address, metadata.seal_epoch) != (self.address, self.epoch):
            self.avoid_until_s = float("-inf")
        self.address, self.epoch = address, metadata.seal_epoch
        self.running = metadata.state == pb.RUNNING and bool(address)


class _Lane:
    """Records for one choice of stream (None: any), in the order they came."""

    __slots__ = ("flush_scheduled", "open", "queue", "stream", "under_way")

    def __init__(self, stream: StreamId | None) -> None:
        self.stream = stream
        self.open: _Records | None = None
        self.queue: deque[_Batch] = deque()  # closed, waiting for a stream with room
        self.under_way = 0  # closed and not yet settled
        self.flush_scheduled = False


class _Batch:
    """What is sent as one; settled once, by `succeed` or `fail`."""

    __slots__ = (
        "attempts",
        "connection",
        "deadline_s",
        "lane",
        "refusal",
        "request_id",
        "retry",
        "settled",
        "size",
        "target",
        "timestamp_us",
    )

    def __init__(self, lane: _Lane, size: int, deadline_s: float, timestamp_us: int) -> None:
        self.lane = lane
        self.size = size
        self.deadline_s = deadline_s
        self.timestamp_us = timestamp_us
        self.attempts = 0
        self.settled = False
        self.target: _Stream | None = None  # it holds one of this stream's places
        self.connection: Connection | None = None  # where it was sent; None: it is not under way
        self.request_id = 0
        self.refusal: LoomError | None = None  # the last one: certainly not appended
        self.retry: asyncio.TimerHandle | None = None

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        raise NotImplementedError

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        raise NotImplementedError

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        raise NotImplementedError


class _Records(_Batch):
    """Single appends that happen to travel together."""

    __slots__ = ("futures", "keyed", "keys", "values")

    def __init__(self, lane: _Lane, deadline_s: float, timestamp_us: int) -> None:
        super().__init__(lane, 0, deadline_s, timestamp_us)
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.keyed = False
        self.futures: list[asyncio.Future[Position]] = []

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        from loomlog import columns

        return columns.encode(
            self.values,
            keys=self.keys if self.keyed else None,
            timestamps_us=self.timestamp_us,
            producer_id=producer_id,
            sequence=sequence,
            compression=compression,
        )

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        positions = _positions(first, stream, first_llsn, len(self.futures))
        for future, position in zip(self.futures, positions, strict=True):
            if not future.done():  # a caller may have cancelled its own
                future.set_result(position)

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        for future in self.futures:
            _fail(future, error, quietly=quietly)


class _Whole(_Batch):
    """One call, one batch."""

    __slots__ = ("count", "encoder", "future")

    def __init__(
        self,
        lane: _Lane,
        size: int,
        deadline_s: float,
        timestamp_us: int,
        count: int,
        encoder: Callable[..., Buffer],
        future: asyncio.Future[list[Position]],
    ) -> None:
        super().__init__(lane, size, deadline_s, timestamp_us)
        self.count = count
        self.encoder = encoder
        self.future = future

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        return self.encoder(
            timestamps_us=self.timestamp_us,
            producer_id=producer_id,
            sequence=sequence,
            compression=compression,
        )

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        if not self.future.done():
            self.future.set_result(list(_positions(first, stream, first_llsn, self.count)))

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        _fail(self.future, error, quietly=quietly)


class Appender:
    """All appends of one client to one log."""

    def __init__(
        self,
        log: CachedLog,
        connections: Connections,
        producer: Producer,
        settings: ClientSettings,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._log = log
        self._connections = connections
        self._producer = producer
        self._settings = settings
        self._rng = rng
        self._loop = loop
        self._batch_bytes = min(settings.append_batch_bytes, limits.BATCH_BYTES_MAX // 2)
        self._buffer_bytes_max = settings.append_buffer_bytes_max
        self._any = _Lane(None)
        self._lanes: dict[StreamId | None, _Lane] = {None: self._any}
        self._streams: dict[StreamId, _Stream] = {}
        self._running: list[_Stream] = []
        self._outstanding: dict[_Batch, None] = {}  # closed and not settled, oldest first
        self._buffered_bytes = 0
        # for room: size, who is told, and how it goes into a batch
        self._waiting: deque[tuple[int, asyncio.Future[Any], Callable[[], None]]] = deque()
        self._sending: dict[asyncio.Task[None], None] = {}  # batches that wait for a connection
        self._refresher: asyncio.Task[None] | None = None
        self._refresh_wanted = asyncio.Event()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    # ---- callers

    def append(
        self, value: Buffer, key: Buffer | None, stream: StreamId | None
    ) -> asyncio.Future[Position]:
        size = RECORD_OVERHEAD_BYTES
        if type(value) is not bytes or key is not None:
            try:
                value = _as_bytes("value", value)
                if key is not None:
                    key = _as_bytes("key", key)
                    size += len(key)
            except InvalidArgument as error:
                return self._failed(error)
        size += len(value)
        future: asyncio.Future[Position] = self._loop.create_future()
        held = self._buffered_bytes + size
        if size > self._batch_bytes or held > self._buffer_bytes_max or self._waiting:
            self._append_slowly(value, key, stream, size, future)
        else:
            self._buffered_bytes = held
            self._put(value, key, stream, size, future)
        return future

    async def append_whole(
        self, encoder: Callable[..., Buffer], count: int, size: int, stream: StreamId | None
    ) -> list[Position]:
        """One batch of `count` records that `encoder` makes."""
        if size > limits.BATCH_BYTES_MAX:
            raise InvalidArgument(
                f"append to log {self._log.name!r}: {count} records of {size} bytes in all do not "
                f"fit into one batch of {limits.BATCH_BYTES_MAX}; split them"
            )
        size += count * RECORD_OVERHEAD_BYTES
        future: asyncio.Future[list[Position]] = self._loop.create_future()
        self._admit(size, future, partial(self._put_whole, encoder, count, size, stream, future))
        return await future

    async def close(self) -> None:
        """What was not sent fails, what was sent and not answered is unknown."""
        self._closed = True
        self._buffer_bytes_max = -1  # so that later appends leave the fast path
        for lane in self._lanes.values():
            self._close_open(lane)
        waiting, self._waiting = self._waiting, deque()
        for _, future, _ in waiting:
            _fail(future, self._closed_error(), quietly=True)
        for batch in list(self._outstanding):
            error: LoomError = self._closed_error()
            if batch.connection is not None:
                error = self._unknown(batch, "this client was closed")
            self._settle(batch, error)
        if self._sweep is not None:
            self._sweep.cancel()
        tasks = [*self._sending, *([self._refresher] if self._refresher else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- into a batch

    def _put(
        self,
        value: bytes,
        key: bytes | None,
        stream: StreamId | None,
        size: int,
        future: asyncio.Future[Position],
    ) -> None:
        lane = self._any if stream is None else self._lane(stream)
        batch = lane.open or self._begin(lane)
        batch.values.append(value)
        batch.keys.append(key)
        batch.futures.append(future)
        if key is not None:
            batch.keyed = True
        batch.size += size
        if batch.size >= self._batch_bytes:
            self._close_open(lane)

    def _append_slowly(
        self,
        value: bytes,
        key: bytes | None,
        stream: StreamId | None,
        size: int,
        future: asyncio.Future[Position],
    ) -> None:
        """A record that is large, or has to wait for room."""
        for name, part in (("value", value), ("key", key or b"")):
            if len(part) > limits.RECORD_BYTES_MAX:
                future.set_exception(self._too_large(name, len(part)))
                return
        self._admit(size, future, partial(self._put_apart, value, key, stream, size, future))

    def _put_apart(
        self,
        value: bytes,
        key: bytes | None,
        stream: StreamId | None,
        size: int,
        future: asyncio.Future[Position],
    ) -> None:
        """A large record begins a batch: it must not push one over the limit."""
        if size > self._batch_bytes:
            self._close_open(self._lane(stream))
        self._put(value, key, stream, size, future)

    def _put_whole(
        self,
        encoder: Callable[..., Buffer],
        count: int,
        size: int,
        stream: StreamId | None,
        future: asyncio.Future[list[Position]],
    ) -> None:
        lane = self._lane(stream)
        self._enqueue(_Whole(lane, size, *self._stamps(), count, encoder, future))

    def _admit(self, size: int, future: asyncio.Future[Any], put: Callable[[], None]) -> None:
        """Put it at once, or when there is room for it: the back-pressure of appends."""
        if self._closed:
            future.set_exception(self._closed_error())
        elif self._fits(size) and not self._waiting:
            self._buffered_bytes += size
            put()
        else:
            self._waiting.append((size, future, put))

    def _fits(self, size: int) -> bool:
        """Something larger than the whole buffer may pass when nothing else is held."""
        held = self._buffered_bytes
        return held == 0 or held + size <= self._buffer_bytes_max

    def _release_bytes(self, size: int) -> None:
        self._buffered_bytes -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            wanted, future, put = self._waiting.popleft()
            if not future.done():
                self._buffered_bytes += wanted
                put()

    def _lane(self, stream: StreamId | None) -> _Lane:
        lane = self._lanes.get(stream)
        if lane is None:
            lane = self._lanes[stream] = _Lane(stream)
        return lane

    def _begin(self, lane: _Lane) -> _Records:
        batch = lane.open = _Records(lane, *self._stamps())
        self._schedule_flush(lane)
        return batch

    def _stamps(self) -> tuple[float, int]:
        return self._loop.time() + self._settings.append_timeout_s, self._producer.now_us()

    # ---- from a batch to a stream

    def _schedule_flush(self, lane: _Lane) -> None:
        """At the end of this turn of the loop: what else this turn appends comes along."""
        if not lane.flush_scheduled:
            lane.flush_scheduled = True
            self._loop.call_soon(self._flush, lane)

    def _flush(self, lane: _Lane) -> None:
        lane.flush_scheduled = False
        streams = len(self._running) if lane.stream is None else 1
        if lane.under_way < FEW_IN_FLIGHT * max(streams, 1):
            self._close_open(lane)

    def _close_open(self, lane: _Lane) -> None:
        batch, lane.open = lane.open, None
        if batch is not None:
            self._enqueue(batch)

    def _enqueue(self, batch: _Batch) -> None:
        self._outstanding[batch] = None
        batch.lane.under_way += 1
        batch.lane.queue.append(batch)
        if self._sweep is None:
            self._schedule_sweep()
        self._pump(batch.lane)

    def _pump(self, lane: _Lane) -> None:
        while lane.queue and not self._closed:
            target = self._pick(lane)
            if target is None:
                if not self._has_stream(lane):
                    self._refresh_soon(at_once=self._is_unknown(lane))
                return
            self._dispatch(lane.queue.popleft(), target)

    def _pick(self, lane: _Lane) -> _Stream | None:
        """A RUNNING stream with room: at random, those that failed lately only if need be."""
        if lane.stream is not None:
            named = self._streams.get(lane.stream)
            return named if named is not None and named.running and self._room(named) else None
        running = self._running
        if not running:
            return None
        now_s = self._loop.time()
        chosen = running[0] if len(running) == 1 else self._rng.choice(running)
        if chosen.avoid_until_s <= now_s and self._room(chosen):
            return chosen
        good = [stream for stream in running if stream.avoid_until_s <= now_s]
        with_room = [stream for stream in good or running if self._room(stream)]
        return self._rng.choice(with_room) if with_room else None

    def _room(self, stream: _Stream) -> bool:
        return stream.in_flight < self._settings.appends_in_flight_max

    def _has_stream(self, lane: _Lane) -> bool:
        if lane.stream is None:
            return bool(self._running)
        named = self._streams.get(lane.stream)
        return named is not None and named.running

    def _is_unknown(self, lane: _Lane) -> bool:
        return lane.stream is not None and lane.stream not in self._streams

    def _dispatch(self, batch: _Batch, target: _Stream) -> None:
        target.in_flight += 1
        batch.target = target
        connection = self._connections.get(target.address)
        if connection is None or connection.congested:
            task = self._loop.create_task(self._connect_and_send(batch, target))
            self._sending[task] = None
            task.add_done_callback(self._sending.pop)
        else:
            self._send(batch, target, connection)

    async def _connect_and_send(self, batch: _Batch, target: _Stream) -> None:
        try:
            connection = await self._connections.connect(target.address)
            await connection.drain()
        except LoomError as error:
            self._refused(batch, error)
            return
        if batch.settled:
            return
        if connection.closed:
            self._refused(batch, Unavailable(f"the connection to {target.address} was lost"))
        else:
            self._send(batch, target, connection)

    def _send(self, batch: _Batch, target: _Stream, connection: Connection) -> None:
        producer = self._producer
        try:
            payload = batch.encode(
                producer.id, producer.next_sequence(), self._settings.compression
            )
        except LoomError as error:
            # Not at once: settling sends the next batch, which may be as bad, and so on.
            self._loop.call_soon(self._refused, batch, error)
            return
        batch.connection = connection
        batch.request_id = connection.call(
            pb.Frame(append=pb.Append(log_stream_id=target.id)),
            (payload,),
            partial(self._answered, batch),
        )

    # ---- outcomes

    def _answered(self, batch: _Batch, reply: Any, payload: memoryview) -> None:
        target = batch.target
        if batch.settled or target is None:
            return
        if isinstance(reply, LoomError):
            if batch.connection is not None and batch.connection.closed:
                self._lost(batch, str(reply))
            else:
                self._refused(batch, reply)
            return
        answer = reply.appended
        if not answer.first_glsn:
            self._lost(batch, f"stream {target.id} gave no position")
            return
        batch.succeed(answer.first_glsn, target.id, answer.first_llsn)
        self._settled(batch)

    def _refused(self, batch: _Batch, error: LoomError) -> None:
        """Certainly not appended: try elsewhere if that can help, else tell the caller."""
        if batch.settled:
            return
        if not isinstance(error, Retryable | Sealed | NotFound):
            self._settle(batch, error)
            return
        batch.refusal = error
        if batch.target is not None and not isinstance(error, Busy):
            self._avoid(batch.target)
        self._vacate(batch)
        wait_s = backoff.delay_s(batch.attempts, self._rng)
        batch.attempts += 1
        batch.retry = self._loop.call_later(wait_s, self._requeue, batch)

    def _lost(self, batch: _Batch, why: str) -> None:
        """Sent, and nobody will answer: it may or may not have been appended.

        The one place where that is decided; asking a replica of the sealed stream comes here."""
        if batch.target is not None:
            self._avoid(batch.target)
        self._settle(batch, self._unknown(batch, why))

    def _requeue(self, batch: _Batch) -> None:
        batch.retry = None
        batch.lane.queue.appendleft(batch)
        self._pump(batch.lane)

    def _avoid(self, target: _Stream) -> None:
        target.avoid_until_s = self._loop.time() + AVOID_S
        self._refresh_soon()

    def _vacate(self, batch: _Batch) -> None:
        """Give the place on its stream back."""
        if batch.target is not None:
            batch.target.in_flight -= 1
        if batch.connection is not None:
            batch.connection.forget(batch.request_id)
        batch.target = batch.connection = None

    def _settle(self, batch: _Batch, error: LoomError) -> None:
        batch.fail(error, quietly=self._closed)
        self._settled(batch)

    def _settled(self, batch: _Batch) -> None:
        batch.settled = True
        self._vacate(batch)
        if batch.retry is not None:
            batch.retry.cancel()
            batch.retry = None
        del self._outstanding[batch]
        lane = batch.lane
        lane.under_way -= 1
        self._release_bytes(batch.size)
        if self._closed:
            return
        for other in list(self._lanes.values()):
            if other.queue:
                self._pump(other)
        if lane.open is not None:
            self._schedule_flush(lane)
        elif lane.stream is not None and not lane.under_way and not lane.flush_scheduled:
            self._lanes.pop(lane.stream, None)

    # ---- time

    def _schedule_sweep(self) -> None:
        delay_s = self._settings.append_timeout_s / SWEEPS_PER_TIMEOUT
        self._sweep = self._loop.call_later(delay_s, self._sweep_overdue)

    def _sweep_overdue(self) -> None:
        self._sweep = None
        now_s = self._loop.time()
        for batch in [b for b in self._outstanding if b.deadline_s <= now_s]:
            if batch.settled:
                continue
            if batch.connection is not None:
                self._lost(batch, f"no answer within {self._settings.append_timeout_s:g} s")
                continue
            if batch in batch.lane.queue:
                batch.lane.queue.remove(batch)
            self._settle(batch, self._overdue(batch))
        if self._outstanding and not self._closed:
            self._schedule_sweep()

    # ---- which streams there are

    def _refresh_soon(self, *, at_once: bool = True) -> None:
        """`at_once`: something new was learned, so a refresher that dozes has to wake up."""
        if self._refresher is None and not self._closed:
            self._refresher = self._loop.create_task(self._refresh())
        elif at_once:
            self._refresh_wanted.set()

    async def _refresh(self) -> None:
        """Learn the streams anew; as long as somebody waits for one that runs, again and again."""
        attempts = 0
        try:
            while True:
                self._refresh_wanted.clear()
                try:
                    self._adopt(await self._log.refresh())
                except Retryable:
                    pass  # batches have their deadlines
                except LoomError as error:
                    self._give_up(error)
                    return
                self._reject_unknown_lanes()
                for lane in list(self._lanes.values()):
                    self._pump(lane)
                if not self._starved():
                    return
                await self._doze(backoff.delay_s(attempts, self._rng))
                attempts += 1
        finally:
            self._refresher = None

    async def _doze(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._refresh_wanted.wait()
        except TimeoutError:
            pass

    def _starved(self) -> bool:
        return any(lane.queue and not self._has_stream(lane) for lane in self._lanes.values())

    def _adopt(self, log: pb.Log) -> None:
        known, self._streams = self._streams, {}
        for metadata in log.streams:
            stream = known.get(metadata.log_stream_id) or _Stream(metadata.log_stream_id)
            stream.update(metadata)
            self._streams[stream.id] = stream
        self._running = [stream for stream in self._streams.values() if stream.running]

    def _reject_unknown_lanes(self) -> None:
        if not self._streams:
            return
        for lane in list(self._lanes.values()):
            if self._is_unknown(lane):
                self._fail_queue(lane, self._no_stream(lane))

    def _give_up(self, error: LoomError) -> None:
        """The log cannot be found or used: nothing that waits can ever be sent."""
        self._streams, self._running = {}, []
        for lane in list(self._lanes.values()):
            self._fail_queue(lane, error)

    def _fail_queue(self, lane: _Lane, error: LoomError) -> None:
        queue, lane.queue = lane.queue, deque()
        for batch in queue:
            self._settle(batch, error)

    # ---- words for what happened

    def _what(self, batch: _Batch) -> str:
        stream = batch.target.id if batch.target is not None else batch.lane.stream
        where = "" if stream is None else f" stream {stream}"
        return f"append to log {self._log.name!r}{where}"

    def _unknown(self, batch: _Batch, why: str) -> AppendUnknown:
        return AppendUnknown(
            f"{self._what(batch)}: {why}; it may or may not have been appended: "
            "read the log to find out before you repeat it"
        )

    def _overdue(self, batch: _Batch) -> LoomError:
        after = f"{self._what(batch)}: not appended within {self._settings.append_timeout_s:g} s"
        refusal = batch.refusal
        if refusal is None and self._streams and self._is_unknown(batch.lane):
            return self._no_stream(batch.lane)
        if refusal is None and self._streams and not self._has_stream(batch.lane):
            return Sealed(f"{after}: no stream for it is running; see `loom status`")
        if refusal is None:
            return Timeout(f"{after}: no place in any stream; append less at once, or try again")
        kind = type(refusal) if isinstance(refusal, Sealed | NotFound) else Unavailable
        return kind(f"{after}, last: {refusal}; try again, and see `loom status`")

    def _too_large(self, name: str, size: int) -> InvalidArgument:
        return InvalidArgument(
            f"append to log {self._log.name!r}: a {name} of {size} bytes is over the limit of "
            f"{limits.RECORD_BYTES_MAX}; store it elsewhere and append a reference"
        )

    def _no_stream(self, lane: _Lane) -> NotFound:
        return NotFound(f"log {self._log.name!r} has no stream {lane.stream}")

    def _closed_error(self) -> Unavailable:
        return Unavailable(f"append to log {self._log.name!r}: this client was closed")

    def _failed(self, error: LoomError) -> asyncio.Future[Position]:
        future: asyncio.Future[Position] = self._loop.create_future()
        future.set_exception(error)
        return future


def records_encoder(
    values: Sequence[Buffer], keys: Sequence[Buffer | None] | None
) -> Callable[..., Buffer]:
    def encode(**stamps: Any) -> Buffer:
        from loomlog import columns

        return columns.encode(values, keys=keys, **stamps)

    return encode


def arrow_encoder(records: Any) -> Callable[..., Buffer]:
    def encode(**stamps: Any) -> Buffer:
        from loomlog import columns

        return columns.encode_arrow(records, **stamps)

    return encode


def _positions(first: Glsn, stream: StreamId, first_llsn: Llsn, count: int) -> Iterator[Position]:
    rows = zip(
        range(first, first + count),
        repeat(stream),
        range(first_llsn, first_llsn + count),
        strict=False,
    )
    # What Position._make does, without a Python frame per record.
    return map(tuple.__new__, repeat(Position), rows)


def _as_bytes(name: str, given: Buffer) -> bytes:
    """A copy of what the caller might change before it is sent."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise InvalidArgument(f"{name} must be bytes, not {type(given).__name__}; encode it first")


def _fail(future: asyncio.Future[Any], error: LoomError, *, quietly: bool) -> None:
    if future.done():
        return
    future.set_exception(type(error)(*error.args))  # its own: tracebacks must not mix
    if quietly:
        future.exception()  # marks it as seen: nobody may be left to look at it
