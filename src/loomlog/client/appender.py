"""Appends of one log: many calls travel as few batches, and each hears its own position.

A record goes into the open batch of its lane (one lane for "any stream", one per named stream).
The batch is closed at the end of the loop's turn while few batches are under way, and otherwise
when one of those is answered or it is full: the more is in flight, the larger batches become.

Invariants:
- a batch goes to another stream only if it was certainly not appended (or the caller chose
  retry="at-once"), and then under a new sequence number: a stream that has seen a later one would
  take the old number for a repeat;
- one that may have been appended keeps its bytes, its number and its place on its stream until a
  Resolver has found out what became of it; others go to other streams meanwhile;
- what is under way is bounded: batches per stream, and bytes in all (then `append` waits);
- every outstanding batch ends by its deadline.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Any, Final

from loomlog import limits
from loomlog.client import backoff, resolving
from loomlog.client.metadata import CachedLog
from loomlog.client.nodes import Connections
from loomlog.client.outgoing import Batch, Lane, Producer, Records, Whole, as_bytes, fail
from loomlog.client.resolving import Resolver
from loomlog.client.targets import AVOID_S, SLOW_S, Stream, Targets
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
TICK_S: Final = 0.05  # how exactly times are kept


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
        self._resolvers: dict[Stream, asyncio.Task[None]] = {}
        self._refresher: asyncio.Task[None] | None = None
        self._refresh_wanted = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
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
        if self._ticker is not None:
            self._ticker.cancel()
        tasks = [
            *self._sending,
            *self._resolvers.values(),
            *([self._refresher] if self._refresher else []),
        ]
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
        if lane.under_way - lane.stalled < FEW_IN_FLIGHT * streams:
            self._close_open(lane)

    def _close_open(self, lane: Lane) -> None:
        batch, lane.open = lane.open, None
        if batch is not None:
            self._enqueue(batch)

    def _enqueue(self, batch: Batch) -> None:
        self._outstanding[batch] = None
        batch.lane.under_way += 1
        batch.lane.queue.append(batch)
        if self._ticker is None:
            self._schedule_tick()
        self._pump(batch.lane)

    def _pump(self, lane: Lane) -> None:
        while lane.queue and not self._closed:
            target = self._targets.pick(lane.stream, self._loop.time())
            if target is None:
                if not self._targets.running(lane.stream):
                    self.refresh_soon(at_once=self._targets.missing(lane.stream))
                return
            self._dispatch(lane.queue.popleft(), target)

    def _pump_all(self) -> None:
        for lane in list(self._lanes.values()):
            if lane.queue:
                self._pump(lane)

    def _dispatch(self, batch: Batch, target: Stream) -> None:
        target.in_flight[batch] = self._loop.time()
        batch.target = target
        connection = self._connections.get(target.address)
        if connection is None or connection.congested:
            task = self._loop.create_task(self._connect_and_send(batch, target))
            self._sending[task] = None
            task.add_done_callback(self._sending.pop)
        else:
            self._send(batch, target, connection)

    async def _connect_and_send(self, batch: Batch, target: Stream) -> None:
        attempt = batch.attempts
        connection: Connection | LoomError
        try:
            connection = await self._connections.connect(target.address)
            await connection.drain()
        except LoomError as error:
            connection = error
        if batch.settled or batch.attempts != attempt:
            return  # it did not wait for this connection
        if isinstance(connection, LoomError):
            self._refused(batch, connection)
        elif connection.closed or target.doubtful:
            self._refused(batch, Unavailable(f"the connection to {target.address} was lost"))
        else:
            self._send(batch, target, connection)

    def _send(self, batch: Batch, target: Stream, connection: Connection) -> None:
        producer = self._producer
        batch.sequence, batch.epoch = producer.next_sequence(), target.epoch
        try:
            batch.payload = batch.encode(producer.id, batch.sequence, self._settings.compression)
        except LoomError as error:
            # Not at once: settling sends the next batch, which may be as bad, and so on.
            self._loop.call_soon(self._refused, batch, error)
            return
        self._transmit(batch, target, connection)

    def _transmit(self, batch: Batch, target: Stream, connection: Connection) -> None:
        batch.connection = connection
        batch.request_id = connection.call(
            pb.Frame(append=pb.Append(log_stream_id=target.id, seal_epoch=batch.epoch)),
            (batch.payload,),
            partial(self._answered, batch, connection),
        )

    # ---- outcomes

    def _answered(
        self, batch: Batch, connection: Connection, reply: Any, payload: memoryview
    ) -> None:
        if batch.settled or batch.connection is not connection:
            return
        if isinstance(reply, LoomError):
            self._failed_there(batch, connection, reply)
        elif reply.appended.first_glsn:
            self.appended(batch, reply.appended.first_glsn, reply.appended.first_llsn)
        else:
            self._lost(batch, f"{connection.peer} gave no position")

    def _failed_there(self, batch: Batch, connection: Connection, error: LoomError) -> None:
        if connection.closed:
            self._lost(batch, str(error))
        elif not batch.doubtful:
            self._refused(batch, error)
        elif isinstance(error, AppendUnknown):
            self._settle(batch, error)
        else:
            batch.connection = None  # of the first time that it was sent this says nothing

    def appended(self, batch: Batch, first: Glsn, first_llsn: Llsn) -> None:
        target = batch.target
        assert target is not None
        batch.succeed(first, target.id, first_llsn)
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
        self._retry(batch)

    def _retry(self, batch: Batch) -> None:
        self._vacate(batch)
        wait_s = backoff.delay_s(batch.attempts, self._rng)
        batch.attempts += 1
        batch.retry = self._loop.call_later(wait_s, self._requeue, batch)

    def _lost(self, batch: Batch, why: str) -> None:
        """Sent, and nobody will answer: it may or may not have been appended."""
        target = batch.target
        assert target is not None
        batch.lost = why
        self._avoid(target)
        if self._settings.retry == "at-once":
            self._retry(batch)
            return
        batch.connection = None
        if not batch.doubtful:
            batch.doubtful = True
            target.doubtful += 1
        self._work_around(target)
        self._resolve(target)

    # ---- what a resolver found out

    def _resolve(self, target: Stream) -> None:
        if target in self._resolvers or self._closed:
            return
        resolver = Resolver(
            target, self._connections, self._producer.id, self, self._rng, self._loop.time
        )
        task = self._resolvers[target] = self._loop.create_task(resolver.run())
        task.add_done_callback(lambda _: self._resolvers.pop(target, None))

    def resend(self, batch: Batch, connection: Connection) -> None:
        target = batch.target
        assert target is not None
        target.in_flight[batch] = self._loop.time()
        self._transmit(batch, target, connection)

    def gone(self, batch: Batch) -> None:
        batch.lost = ""
        self._vacate(batch)
        batch.attempts += 1
        batch.lane.queue.appendleft(batch)
        self._pump_all()

    def unknown(self, batch: Batch, error: LoomError) -> None:
        self._settle(batch, error)

    # ---- where a batch is

    def _requeue(self, batch: Batch) -> None:
        batch.retry = None
        batch.lane.queue.appendleft(batch)
        self._pump(batch.lane)

    def _avoid(self, target: Stream) -> None:
        target.avoid_until_s = self._loop.time() + AVOID_S
        self.refresh_soon()

    def _work_around(self, target: Stream) -> None:
        """What is under way there answers late or not at all: if there is another stream, what has
        not been sent goes to it, and nothing new waits for the rest."""
        if not self._targets.any_good(self._loop.time()):
            return
        for batch in list(target.in_flight):
            if batch.lane.stream is not None:
                continue
            if batch.connection is None and not batch.doubtful:
                self._refused(batch, Unavailable(f"no connection to {target.address} in time"))
            elif not batch.stalled:
                batch.stalled = True
                batch.lane.stalled += 1
        if self._any.open is not None:
            self._schedule_flush(self._any)

    def _vacate(self, batch: Batch) -> None:
        """Give the place on its stream back."""
        target = batch.target
        if target is not None:
            del target.in_flight[batch]
            target.doubtful -= batch.doubtful
        if batch.connection is not None:
            batch.connection.forget(batch.request_id)
        if batch.stalled:
            batch.stalled = False
            batch.lane.stalled -= 1
        batch.target = batch.connection = None
        batch.doubtful = False
        batch.sequence = 0  # what anybody still says about that number is old news

    def _settle(self, batch: Batch, error: LoomError) -> None:
        if batch.lost and not isinstance(error, AppendUnknown):
            error = self._unknown(batch, batch.lost)
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
        self._pump_all()
        if lane.open is not None:
            self._schedule_flush(lane)
        elif lane.stream is not None and not lane.under_way and not lane.flush_scheduled:
            self._lanes.pop(lane.stream, None)

    # ---- time

    def _schedule_tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        now_s = self._loop.time()
        for stream in self._targets.streams():
            waited_s = stream.waited_s(now_s)
            if waited_s > SLOW_S:
                self._work_around(stream)
            if waited_s > resolving.SILENT_S:
                self._resolve(stream)
        overdue = takewhile(lambda batch: batch.deadline_s <= now_s, self._outstanding)
        for batch in list(overdue):
            if not batch.settled:
                self._end_overdue(batch)
        if self._outstanding and not self._closed:
            self._schedule_tick()

    def _end_overdue(self, batch: Batch) -> None:
        if batch in batch.lane.queue:
            batch.lane.queue.remove(batch)
        if batch.connection is None and not batch.lost:
            self._settle(batch, self._overdue(batch))
            return
        if batch.target is not None:
            self._avoid(batch.target)
        lost = f" ({batch.lost})" if batch.lost else ""
        why = f"no answer within {self._settings.append_timeout_s:g} s{lost}"
        self._settle(batch, self._unknown(batch, why))

    # ---- which streams there are

    def refresh_soon(self, *, at_once: bool = True) -> None:
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
                self._pump_all()
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
        for batch in list(self._outstanding):
            if batch.doubtful:
                self._settle(batch, self._unknown(batch, f"{batch.lost}, and then: {error}"))

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
