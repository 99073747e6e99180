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
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from loomlog import limits
from loomlog.client import backoff
from loomlog.client.metadata import CachedLog
from loomlog.client.nodes import Connections
from loomlog.client.outgoing import Batch, Lane, Producer, Records, Whole, as_bytes, fail
from loomlog.client.targets import AVOID_S, Stream, Targets
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
from loomlog.types import Buffer, Position, StreamId
from loomlog.wire import loomlog_pb2 as pb

RECORD_OVERHEAD_BYTES: Final = 32  # so that empty values count, too
FEW_IN_FLIGHT: Final = 2  # per stream: one on the disk, one on its way
SWEEPS_PER_TIMEOUT: Final = 20  # how exactly append_timeout_s is kept


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
        self._any = Lane(None)
        self._lanes: dict[StreamId | None, Lane] = {None: self._any}
        self._targets = Targets(rng, settings.appends_in_flight_max)
        self._outstanding: dict[Batch, None] = {}  # closed and not settled, oldest first
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
                value = as_bytes("value", value)
                if key is not None:
                    key = as_bytes("key", key)
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
            fail(future, self._closed_error(), quietly=True)
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
        self._enqueue(Whole(lane, size, *self._stamps(), count, encoder, future))

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

    def _lane(self, stream: StreamId | None) -> Lane:
        lane = self._lanes.get(stream)
        if lane is None:
            lane = self._lanes[stream] = Lane(stream)
        return lane

    def _begin(self, lane: Lane) -> Records:
        batch = lane.open = Records(lane, *self._stamps())
        self._schedule_flush(lane)
        return batch

    def _stamps(self) -> tuple[float, int]:
        return self._loop.time() + self._settings.append_timeout_s, self._producer.now_us()

    # ---- from a batch to a stream

    def _schedule_flush(self, lane: Lane) -> None:
        """At the end of this turn of the loop: what else this turn appends comes along."""
        if not lane.flush_scheduled:
            lane.flush_scheduled = True
            self._loop.call_soon(self._flush, lane)

    def _flush(self, lane: Lane) -> None:
        lane.flush_scheduled = False
        streams = self._targets.running(lane.stream) or 1
        if lane.under_way < FEW_IN_FLIGHT * streams:
            self._close_open(lane)

    def _close_open(self, lane: Lane) -> None:
        batch, lane.open = lane.open, None
        if batch is not None:
            self._enqueue(batch)

    def _enqueue(self, batch: Batch) -> None:
        self._outstanding[batch] = None
        batch.lane.under_way += 1
        batch.lane.queue.append(batch)
        if self._sweep is None:
            self._schedule_sweep()
        self._pump(batch.lane)

    def _pump(self, lane: Lane) -> None:
        while lane.queue and not self._closed:
            target = self._targets.pick(lane.stream, self._loop.time())
            if target is None:
                if not self._targets.running(lane.stream):
                    self._refresh_soon(at_once=self._targets.missing(lane.stream))
                return
            self._dispatch(lane.queue.popleft(), target)

    def _dispatch(self, batch: Batch, target: Stream) -> None:
        target.in_flight += 1
        batch.target = target
        connection = self._connections.get(target.address)
        if connection is None or connection.congested:
            task = self._loop.create_task(self._connect_and_send(batch, target))
            self._sending[task] = None
            task.add_done_callback(self._sending.pop)
        else:
            self._send(batch, target, connection)

    async def _connect_and_send(self, batch: Batch, target: Stream) -> None:
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

    def _send(self, batch: Batch, target: Stream, connection: Connection) -> None:
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
            pb.Frame(append=pb.Append(log_stream_id=target.id, seal_epoch=target.epoch)),
            (payload,),
            partial(self._answered, batch),
        )

    # ---- outcomes

    def _answered(self, batch: Batch, reply: Any, payload: memoryview) -> None:
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

    def _refused(self, batch: Batch, error: LoomError) -> None:
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

    def _lost(self, batch: Batch, why: str) -> None:
        """Sent, and nobody will answer: it may or may not have been appended.

        The one place where that is decided; asking a replica of the sealed stream comes here."""
        if batch.target is not None:
            self._avoid(batch.target)
        self._settle(batch, self._unknown(batch, why))

    def _requeue(self, batch: Batch) -> None:
        batch.retry = None
        batch.lane.queue.appendleft(batch)
        self._pump(batch.lane)

    def _avoid(self, target: Stream) -> None:
        target.avoid_until_s = self._loop.time() + AVOID_S
        self._refresh_soon()

    def _vacate(self, batch: Batch) -> None:
        """Give the place on its stream back."""
        if batch.target is not None:
            batch.target.in_flight -= 1
        if batch.connection is not None:
            batch.connection.forget(batch.request_id)
        batch.target = batch.connection = None

    def _settle(self, batch: Batch, error: LoomError) -> None:
        batch.fail(error, quietly=self._closed)
        self._settled(batch)

    def _settled(self, batch: Batch) -> None:
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
                    self._targets.adopt(await self._log.refresh())
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
        return any(
            lane.queue and not self._targets.running(lane.stream) for lane in self._lanes.values()
        )

    def _reject_unknown_lanes(self) -> None:
        if not self._targets.known:
            return
        for lane in list(self._lanes.values()):
            if self._targets.missing(lane.stream):
                self._fail_queue(lane, self._no_stream(lane))

    def _give_up(self, error: LoomError) -> None:
        """The log cannot be found or used: nothing that waits can ever be sent."""
        self._targets.clear()
        for lane in list(self._lanes.values()):
            self._fail_queue(lane, error)

    def _fail_queue(self, lane: Lane, error: LoomError) -> None:
        queue, lane.queue = lane.queue, deque()
        for batch in queue:
            self._settle(batch, error)

    # ---- words for what happened

    def _what(self, batch: Batch) -> str:
        stream = batch.target.id if batch.target is not None else batch.lane.stream
        where = "" if stream is None else f" stream {stream}"
        return f"append to log {self._log.name!r}{where}"

    def _unknown(self, batch: Batch, why: str) -> AppendUnknown:
        return AppendUnknown(
            f"{self._what(batch)}: {why}; it may or may not have been appended: "
            "read the log to find out before you repeat it"
        )

    def _overdue(self, batch: Batch) -> LoomError:
        after = f"{self._what(batch)}: not appended within {self._settings.append_timeout_s:g} s"
        refusal = batch.refusal
        if refusal is None and self._targets.known and self._targets.missing(batch.lane.stream):
            return self._no_stream(batch.lane)
        if refusal is None and self._targets.known and not self._targets.running(batch.lane.stream):
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

    def _no_stream(self, lane: Lane) -> NotFound:
        return NotFound(f"log {self._log.name!r} has no stream {lane.stream}")

    def _closed_error(self) -> Unavailable:
        return Unavailable(f"append to log {self._log.name!r}: this client was closed")

    def _failed(self, error: LoomError) -> asyncio.Future[Position]:
        future: asyncio.Future[Position] = self._loop.create_future()
        future.set_exception(error)
        return future
