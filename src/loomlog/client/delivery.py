"""Closed batches of one log on their way: to a stream, maybe to another, until they are settled.

Invariants:
- a batch goes to another stream only if it was certainly not appended (or the caller chose
  retry="at-once"), and then under a new sequence number: a stream that has seen a later one would
  take the old number for a repeat;
- one that may have been appended keeps its bytes, its number and its place on its stream until it
  is found out what became of it; others go to other streams meanwhile. Who finds out is the
  protocol's: a Resolver for `ordered` streams, elsewhere the carrier itself;
- what is under way is bounded: batches per stream (targets.py);
- every outstanding batch ends by its deadline.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import Any, Final

from loomlog.client import append_errors, backoff, resolving
from loomlog.client.lanes import Lanes
from loomlog.client.metadata import CachedLog
from loomlog.client.nodes import Connections
from loomlog.client.orders import ORDERED
from loomlog.client.outgoing import Batch, Lane, Producer
from loomlog.client.refreshing import Refresher
from loomlog.client.resolving import Resolver
from loomlog.client.sending import Carrier, CarriersByProtocol, Sender
from loomlog.client.targets import AVOID_S, SLOW_S, Stream, Targets
from loomlog.config import ClientSettings
from loomlog.errors import AppendUnknown, Busy, LoomError, NotFound, Retryable, Sealed, Unavailable
from loomlog.net.connection import Connection
from loomlog.types import Glsn, Llsn

TICK_S: Final = 0.05  # how exactly times are kept


class Delivery:
    """Takes what is put into its lanes to the streams, and tells each batch what became of it."""

    def __init__(
        self,
        log: CachedLog,
        connections: Connections,
        producer: Producer,
        settings: ClientSettings,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
        release: Callable[[int], None],
        carriers: CarriersByProtocol,
    ) -> None:
        """`release` hears how many bytes are held no longer."""
        self._log = log.name
        self._connections = connections
        self._producer = producer
        self._settings = settings
        self._rng = rng
        self._loop = loop
        self._release = release
        self._targets = Targets(rng, settings.appends_in_flight_max)
        self.lanes = Lanes(self._targets, self.enqueue, loop)
        self._sender = Sender(connections, producer, settings.compression, self, loop)
        self._carriers: dict[str, Carrier] = {ORDERED: self._sender}
        self._carriers |= {protocol: make(self) for protocol, make in carriers.items()}
        self._refresher = Refresher(log, self._targets, self, rng, loop)
        self._outstanding: dict[Batch, None] = {}  # closed and not settled, oldest first
        self._resolvers: dict[Stream, asyncio.Task[None]] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False

    async def close(self) -> None:
        """What was not sent fails, what was sent and not answered is unknown."""
        self._closed = True
        for lane in self.lanes:
            self.lanes.close_open(lane)
        for batch in list(self._outstanding):
            error: LoomError = append_errors.closed(self._log)
            if batch.sent:
                error = self._unknown(batch, "this client was closed")
            self._settle(batch, error)
        if self._ticker is not None:
            self._ticker.cancel()
        tasks = [*self._resolvers.values(), *self._refresher.tasks()]
        for carrier in self._carriers.values():
            tasks += carrier.tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- to a stream

    def enqueue(self, batch: Batch) -> None:
        self._outstanding[batch] = None
        batch.lane.under_way += 1
        batch.lane.queue.append(batch)
        if self._ticker is None:
            self._schedule_tick()
        self._pump(batch.lane)

    def _pump(self, lane: Lane) -> None:
        while lane.queue and not self._closed:
            now_s = self._loop.time()
            target = self._targets.pick(lane.stream, now_s)
            if target is None:
                if not self._targets.running(lane.stream):
                    self.refresh_soon(at_once=self._targets.missing(lane.stream))
                return
            batch = lane.queue.popleft()
            batch.occupy(target, now_s)
            carrier = self._carriers.get(target.protocol)
            if carrier is None:
                error = append_errors.unknown_protocol(self._log, target)
                self._loop.call_soon(self.refused, batch, error)
            else:
                carrier.dispatch(batch, target)

    def _pump_all(self) -> None:
        for lane in self.lanes:
            if lane.queue:
                self._pump(lane)

    # ---- outcomes

    def answered(
        self, batch: Batch, connection: Connection, reply: Any, payload: memoryview
    ) -> None:
        if batch.settled or batch.connection is not connection:
            return
        if isinstance(reply, LoomError):
            self._failed_there(batch, connection, reply)
        elif reply.appended.first_glsn:
            self.appended(batch, reply.appended.first_glsn, reply.appended.first_llsn)
        else:
            self.lost(batch, f"{connection.peer} gave no position")

    def _failed_there(self, batch: Batch, connection: Connection, error: LoomError) -> None:
        if connection.closed:
            self.lost(batch, str(error))
        elif not batch.doubtful:
            self.refused(batch, error)
        elif isinstance(error, AppendUnknown):
            self._settle(batch, error)
        else:
            batch.connection = None  # of the first time that it was sent this says nothing

    def appended(self, batch: Batch, first: Glsn, first_llsn: Llsn) -> None:
        target = batch.target
        assert target is not None
        batch.succeed(first, target.id, first_llsn)
        self._settled(batch)

    def refused(self, batch: Batch, error: LoomError) -> None:
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
        batch.vacate()
        wait_s = backoff.delay_s(batch.attempts, self._rng)
        batch.attempts += 1
        batch.retry = self._loop.call_later(wait_s, self._requeue, batch)

    def _requeue(self, batch: Batch) -> None:
        batch.retry = None
        batch.lane.queue.appendleft(batch)
        self._pump(batch.lane)

    def lost(self, batch: Batch, why: str) -> None:
        """Sent, and nobody will answer: it may or may not have been appended."""
        target = batch.target
        assert target is not None
        batch.lost = why
        self._avoid(target)
        if self._settings.retry == "at-once":
            self._retry(batch)
            return
        batch.doubt()
        self._work_around(target)
        self._resolve(target)

    def _settle(self, batch: Batch, error: LoomError) -> None:
        if batch.lost and not isinstance(error, AppendUnknown):
            error = self._unknown(batch, batch.lost)
        batch.fail(error, quietly=self._closed)
        self._settled(batch)

    def _settled(self, batch: Batch) -> None:
        batch.settled = True
        batch.vacate()
        if batch.retry is not None:
            batch.retry.cancel()
            batch.retry = None
        del self._outstanding[batch]
        batch.lane.under_way -= 1
        self._release(batch.size)
        if not self._closed:
            self._pump_all()
            self.lanes.go_on(batch.lane)

    def _unknown(self, batch: Batch, why: str) -> AppendUnknown:
        return append_errors.unknown(self._log, batch, why)

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
        batch.occupy(target, self._loop.time())
        self._sender.transmit(batch, target, connection)

    def gone(self, batch: Batch) -> None:
        batch.lost = ""
        batch.vacate()
        batch.attempts += 1
        batch.lane.queue.appendleft(batch)
        self._pump_all()

    def unknown(self, batch: Batch, error: LoomError) -> None:
        if not isinstance(error, AppendUnknown):
            error = self._unknown(batch, str(error))
        self._settle(batch, error)

    # ---- streams that fail, or are slow

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
            if not batch.sent and not batch.doubtful:
                self.refused(batch, Unavailable(f"no connection to {target.address} in time"))
            else:
                batch.stall()
        if self.lanes.any.open is not None:
            self.lanes.flush_soon(self.lanes.any)

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
            if waited_s > resolving.SILENT_S and stream.protocol == ORDERED:
                self._resolve(stream)
        overdue = takewhile(lambda batch: batch.deadline_s <= now_s, self._outstanding)
        for batch in list(overdue):
            if not batch.settled:
                self._end_overdue(batch)
        if self._outstanding and not self._closed:
            self._schedule_tick()

    def _end_overdue(self, batch: Batch) -> None:
        timeout_s = self._settings.append_timeout_s
        if batch in batch.lane.queue:
            batch.lane.queue.remove(batch)
        if not batch.sent and not batch.lost:
            error = append_errors.overdue(self._log, batch, self._targets, timeout_s)
            self._settle(batch, error)
            return
        if batch.target is not None:
            self._avoid(batch.target)
        lost = f" ({batch.lost})" if batch.lost else ""
        self._settle(batch, self._unknown(batch, f"no answer within {timeout_s:g} s{lost}"))

    # ---- which streams there are

    def refresh_soon(self, *, at_once: bool = True) -> None:
        if not self._closed:
            self._refresher.soon(at_once=at_once)

    def streams_learned(self) -> bool:
        self._reject_unknown_lanes()
        self._pump_all()
        return any(lane.queue and not self._targets.running(lane.stream) for lane in self.lanes)

    def _reject_unknown_lanes(self) -> None:
        if not self._targets.known:
            return
        for lane in self.lanes:
            if self._targets.missing(lane.stream):
                self._fail_queue(lane, append_errors.no_stream(self._log, lane.stream))

    def give_up(self, error: LoomError) -> None:
        self._targets.clear()
        for lane in self.lanes:
            self._fail_queue(lane, error)
        for batch in list(self._outstanding):
            if batch.doubtful:
                self._settle(batch, self._unknown(batch, f"{batch.lost}, and then: {error}"))

    def _fail_queue(self, lane: Lane, error: LoomError) -> None:
        queue, lane.queue = lane.queue, deque()
        for batch in queue:
            self._settle(batch, error)
