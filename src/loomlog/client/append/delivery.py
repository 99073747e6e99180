"""Delivers the closed batches of one log to its streams.

The carrier of a stream's protocol makes attempts to append a batch, and reports events. The table
in core/delivery.py decides what follows, and Delivery carries that out. It also works around slow
streams, and settles every batch by its deadline.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Final

from loomlog import limits, tracing
from loomlog.client.append import errors
from loomlog.client.append.appender import Attempt, Batch, Lane, Lanes
from loomlog.client.append.carriers import CarriersByProtocol
from loomlog.client.append.options import Wanted, named
from loomlog.client.append.refresher import Conditions, Refresher
from loomlog.client.append.stalls import Stalls
from loomlog.client.append.stream import SILENT_S, SLOW_S, Stream
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import BACKOFF, Client
from loomlog.config import ClientSettings
from loomlog.core import delivery
from loomlog.core.delivery import AT_ONCE, EXACTLY_ONCE, FAIL_FAST, Action, Event, Progress, State
from loomlog.errors import (
    AppendUnknown,
    Busy,
    Conflict,
    LoomError,
    NotFound,
    Retryable,
    RolledBack,
    Sealed,
    Unavailable,
    seconds,
)
from loomlog.types import Glsn, Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

TICK_S: Final = 0.05  # the precision of deadlines
AVOID_S: Final = 1.0  # how long to avoid a stream that failed, unless its metadata changes
LOOK_S: Final = 0.25  # between two inquiries about a silent stream, until others replace it ...
LOOK_LATER_S: Final = 1.0  # ... and after that


class Delivery:
    """Delivers the batches of its lanes to streams. Implements Outcomes for the carriers."""

    def __init__(self, log: CachedLog, client: Client, carriers: CarriersByProtocol) -> None:
        settings, rng, loop = client.settings, client.rng, client.loop
        self._log = log.name
        self._timeout_s = settings.append_timeout_s
        self._at_once = settings.retry == "at-once"
        self._rules = AT_ONCE if self._at_once else EXACTLY_ONCE
        self._rng = rng
        self._loop = loop
        self.release: Callable[[int], None] = lambda size: None  # called when a batch is settled
        self._targets = Targets(rng, settings, self._width)
        self.lanes = Lanes(self._targets, self.enqueue, loop)
        self._carriers = {protocol: make(self) for protocol, make in carriers.items()}
        self._refresher = Refresher(
            log, self._targets, self._streams_learned, self._log_gone, rng, loop
        )
        self._outstanding: dict[Batch, None] = {}  # closed and not settled, oldest first
        self._ticker: asyncio.TimerHandle | None = None
        self._asked_s = 0.0  # when the metadata repository was last asked about a silent stream
        self._stalls = Stalls(self._log)
        self._tracer = tracing.active()
        self._closed = False

    async def close(self) -> None:
        """Fail all pending batches, with AppendUnknown if they were sent."""
        self._closed = True
        for lane in self.lanes:
            self.lanes.close_open(lane)
        for batch in list(self._outstanding):
            certain = batch.progress.advance(Event.CLOSED) is Action.FAIL
            why = batch.progress.loss or "this client was closed"
            self._fail(batch, errors.closed(self._log) if certain else self._unknown(batch, why))
        if self._ticker is not None:
            self._ticker.cancel()
        tasks = self._refresher.tasks()
        for carrier in self._carriers.values():
            tasks += carrier.tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- batches to streams

    def enqueue(self, batch: Batch) -> None:
        """Send a closed batch as soon as a stream has room."""
        if batch.fail_fast:
            batch.progress = Progress(FAIL_FAST)
        elif self._at_once and batch.expected_tail is not None:  # a duplicate would be its conflict
            batch.progress = Progress(EXACTLY_ONCE)
        else:
            batch.progress = Progress(self._rules)
        if self._tracer is not None:
            batch.span = self._tracer.begin(
                "append", {"log": self._log, "records": batch.count, "bytes": batch.size}
            )
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
            batch.progress.advance(Event.PICKED)
            carrier = self._carriers.get(target.protocol)
            attempt = carrier.attempt(batch, target) if carrier else Attempt(batch, target)
            batch.attempt = attempt
            target.in_flight[attempt] = now_s
            if carrier is None:
                error = errors.unknown_protocol(self._log, target)
                self._loop.call_soon(self.refused, attempt, error)
            elif self._tracer is None:
                attempt.start()
            else:
                with self._tracer.use(batch.span):
                    attempt.start()

    def _width(self, stream: pb.LogStream) -> int:
        carrier = self._carriers.get(stream.protocol)
        return 1 if carrier is None else carrier.width(stream)

    def _pump_all(self) -> None:
        for lane in self.lanes:
            if lane.queue:
                self._pump(lane)

    # ---- Outcomes, called by attempts

    def sent(self, attempt: Attempt) -> None:
        batch = attempt.batch
        if batch.attempt is attempt and batch.progress.advance(Event.SENT) is Action.AWAIT:
            attempt.target.in_flight[attempt] = self._loop.time()

    def declined(self, attempt: Attempt, error: LoomError) -> None:
        batch = attempt.batch
        if batch.attempt is attempt:
            batch.progress.advance(Event.DECLINED)
            batch.refusal = error
            if batch.fail_fast:  # the attempt cannot be ended while it reports
                self._loop.call_soon(self._end_declined, attempt, error)

    def _end_declined(self, attempt: Attempt, error: LoomError) -> None:
        if attempt.current and attempt.batch.progress.state is State.WAITING:
            self._happened(attempt, Event.REFUSED, error)

    def appended(self, attempt: Attempt, first: Glsn, first_llsn: Llsn) -> None:
        batch = attempt.batch
        if batch.attempt is attempt:
            batch.progress.advance(Event.APPENDED)
            batch.succeed(first, attempt.target.id, first_llsn)
            self._settled(batch)

    def refused(self, attempt: Attempt, error: LoomError) -> bool:
        if isinstance(error, Conflict) and attempt.batch.expected_tail is not None:
            return self._happened(attempt, Event.CONFLICT, error)
        for_now = isinstance(error, Retryable | Sealed | NotFound)
        return self._happened(attempt, Event.REFUSED if for_now else Event.REJECTED, error)

    def lost(self, attempt: Attempt, why: str) -> bool:
        return self._happened(attempt, Event.LOST, Unavailable(why))

    def absent(self, attempt: Attempt) -> None:
        gone = Unavailable("its stream was sealed, or failed, before it was appended")
        self._happened(attempt, Event.ABSENT, gone)

    def unknown(self, attempt: Attempt, error: LoomError) -> None:
        if not isinstance(error, AppendUnknown):
            error = self._unknown(attempt.batch, str(error))
        self._happened(attempt, Event.UNKNOWN, error)

    # ---- decisions of the table

    def _happened(self, attempt: Attempt, event: Event, error: LoomError | None = None) -> bool:
        """Carry out what the table decides on an event. Return whether the attempt continues, to
        determine the outcome of the batch."""
        batch = attempt.batch
        if batch.attempt is not attempt:
            return False
        action = batch.progress.advance(event, str(error))
        if action is Action.RESOLVE:
            self._resolve(attempt, event)
        elif action is Action.RETRY:
            self._retry(attempt, error)
        elif action is Action.REQUEUE:
            batch.end_attempt()
            batch.lane.queue.appendleft(batch)
            self._pump_all()
        elif error is not None and action is not Action.SUCCEED:  # `appended` settles successes
            self._settle(batch, action, error)
        return action is Action.RESOLVE

    def _resolve(self, attempt: Attempt, event: Event) -> None:
        attempt.target.doubt(attempt)
        if event is Event.LOST:
            self._avoid(attempt.target)
            self._work_around(attempt.target)

    def _retry(self, attempt: Attempt, error: LoomError | None) -> None:
        batch, target = attempt.batch, attempt.target
        logger.debug("an append to %s is tried again: %s", self._log, error)
        batch.refusal = error
        self._avoid(target, at_once=not isinstance(error, Busy))
        now_s, timeout_s = self._loop.time(), self._timeout_of(batch)
        took_s = now_s - target.in_flight[attempt]
        batch.end_attempt()
        left_s = batch.deadline_s - now_s
        pause_s = BACKOFF.late_s(timeout_s - left_s, self._rng)
        wait_s = delivery.rest_s(pause_s, left_s, timeout_s, took_s)
        if wait_s is not None:
            batch.retry = self._loop.call_later(wait_s, self._rested, batch)

    def _rested(self, batch: Batch) -> None:
        batch.progress.advance(Event.RESTED)
        batch.retry = None
        batch.lane.queue.appendleft(batch)
        self._pump(batch.lane)

    def _settle(self, batch: Batch, action: Action, error: LoomError) -> None:
        if action is Action.FAIL_AS_UNKNOWN and not isinstance(error, AppendUnknown):
            error = self._unknown(batch, batch.progress.loss)
        self._fail(batch, error)

    def _fail(self, batch: Batch, error: LoomError) -> None:
        batch.fail(error, quietly=self._closed)
        self._settled(batch, error)

    def _settled(self, batch: Batch, error: LoomError | None = None) -> None:
        if self._tracer is not None:
            self._tracer.end(batch.span, error)
        batch.end_attempt()
        if batch.retry is not None:
            batch.retry.cancel()
            batch.retry = None
        del self._outstanding[batch]
        batch.lane.under_way -= 1
        self.release(batch.size)
        if not self._closed:
            self._pump_all()
            self.lanes.settled(batch.lane)

    def _unknown(self, batch: Batch, why: str) -> AppendUnknown:
        return errors.unknown(self._log, batch, why)

    # ---- streams that fail, or are slow

    def _avoid(self, target: Stream, *, at_once: bool = True) -> None:
        target.avoid_until_s = self._loop.time() + AVOID_S
        self.refresh_soon(at_once=at_once)

    def _work_around(self, target: Stream) -> None:
        """Called for a stream that is slow or failed. If there is a good stream, move batches that
        were not sent yet to it, and let no new batch wait for the others."""
        if not self._targets.any_good(self._loop.time()):
            return
        for attempt in list(target.in_flight):
            batch = attempt.batch
            if batch.lane.stream is not None:
                continue
            if batch.progress.state is State.WAITING:
                self.refused(attempt, Unavailable(f"no connection to {target.address} in time"))
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
            if stream.waited_s(now_s) > SLOW_S:
                self._work_around(stream)
            if stream.silent(now_s):
                self._ask_why(now_s, stream.waited_s(now_s))
                if carrier := self._carriers.get(stream.protocol):
                    carrier.silent(stream)
        for batch in [batch for batch in self._outstanding if batch.deadline_s <= now_s]:
            if batch in self._outstanding:
                self._end_overdue(batch)
        self._note_stall(now_s)
        if self._outstanding and not self._closed:
            self._schedule_tick()

    def _note_stall(self, now_s: float) -> None:
        oldest = next(iter(self._outstanding), None)
        began_s = None if oldest is None else oldest.deadline_s - self._timeout_of(oldest)
        self._stalls.update(began_s, now_s, lambda: self._hindrance(oldest))

    def _hindrance(self, batch: Batch | None) -> str:
        """Return why a batch waits, as far as that is known."""
        if batch is None:
            return ""
        condition = self._targets.conditions.hindrance(batch.lane.stream)
        reasons = condition, batch.progress.loss, str(batch.refusal or "")
        return "; ".join(filter(None, reasons)) or "no answer"

    def _ask_why(self, now_s: float, waited_s: float) -> None:
        """Refresh the log now and then while a stream is silent: the metadata repository knows
        which nodes do not respond, and why appends wait."""
        is_new = waited_s < limits.FAILURE_DETECTION_S + SILENT_S
        if now_s - self._asked_s > (LOOK_S if is_new else LOOK_LATER_S):
            self._asked_s = now_s
            self.refresh_soon(at_once=False)

    def _end_overdue(self, batch: Batch) -> None:
        if batch.progress.state is State.QUEUED:
            batch.lane.queue.remove(batch)
        if batch.progress.advance(Event.OVERDUE) is Action.FAIL:
            timeout_s = self._timeout_of(batch)
            self._fail(batch, errors.overdue(self._log, batch, self._targets, timeout_s))
            return
        if batch.attempt is not None:
            self._avoid(batch.attempt.target)
        hindrance = self._targets.conditions.hindrance(batch.lane.stream)
        reasons = "; ".join(filter(None, (batch.progress.loss, hindrance)))
        waited = f"no answer within {seconds(self._timeout_of(batch))}"
        self._fail(batch, self._unknown(batch, f"{waited} ({reasons})" if reasons else waited))

    def _timeout_of(self, batch: Batch) -> float:
        return self._timeout_s if batch.timeout_s is None else batch.timeout_s

    # ---- metadata of the streams

    def refresh_soon(self, *, at_once: bool = True) -> None:
        if not self._closed:
            self._refresher.soon(at_once=at_once)

    def _streams_learned(self) -> bool:
        self._reject_hopeless_lanes()
        self._pump_all()
        self._fail_waiting()
        return any(lane.queue and not self._targets.running(lane.stream) for lane in self.lanes)

    def _fail_waiting(self) -> None:
        """Fail fail-fast batches for which no stream is running."""
        for lane in self.lanes:
            if not self._targets.running(lane.stream):
                for batch in [batch for batch in lane.queue if batch.fail_fast]:
                    lane.queue.remove(batch)
                    error = errors.not_running(self._log, batch, self._targets)
                    self._settle(batch, batch.progress.advance(Event.REJECTED), error)

    def _reject_hopeless_lanes(self) -> None:
        """Fail queued batches that no stream will ever take, before their deadlines."""
        if not self._targets.known:
            return
        for lane in self.lanes:
            if self._targets.missing(lane.stream):
                self._reject_queue(lane, errors.no_stream(self._log, lane.stream))
            elif refusal := self._targets.conditions.refusal(lane.stream):
                self._reject_queue(lane, errors.refused(self._log, refusal))
                if isinstance(refusal, RolledBack):
                    self._give_up(lane, refusal)

    def _give_up(self, lane: Lane, refusal: RolledBack) -> None:
        """Fail batches that were sent: whether they were appended cannot be determined before their
        deadlines."""
        for batch in [b for b in self._outstanding if b.lane is lane]:
            if batch.progress.state in (State.SENT, State.DOUBTFUL):
                action = batch.progress.advance(Event.UNKNOWN)
                self._settle(batch, action, self._unknown(batch, str(refusal)))

    def _log_gone(self, error: LoomError) -> None:
        self._targets.clear()
        for lane in self.lanes:
            lane.queue.clear()
        for batch in list(self._outstanding):
            if isinstance(error, RolledBack) and batch.progress.state is State.SENT:
                batch.progress.advance(Event.UNKNOWN)  # no answer will come
                self._fail(batch, self._unknown(batch, str(error)))
                continue
            action = batch.progress.advance(Event.LOG_GONE)
            if action is Action.FAIL_AS_UNKNOWN:
                why = f"{batch.progress.loss}, and then: {error}"
                self._fail(batch, self._unknown(batch, why))
            elif action is Action.FAIL:
                self._fail(batch, error)

    def _reject_queue(self, lane: Lane, error: LoomError) -> None:
        queue, lane.queue = lane.queue, deque()
        for batch in queue:
            self._settle(batch, batch.progress.advance(Event.REJECTED), error)


class Targets:
    """The known streams of a log, from which the next target is picked."""

    def __init__(
        self,
        rng: random.Random,
        settings: ClientSettings,
        width: Callable[[pb.LogStream], int],
    ) -> None:
        """`width` returns how many batches can be in progress on a stream at once."""
        self._rng = rng
        self._width = width
        self._in_flight_max = settings.appends_in_flight_max
        self._compression = settings.compression
        self._streams: dict[StreamId, Stream] = {}
        self._running: list[Stream] = []
        self.conditions = Conditions()

    @property
    def known(self) -> bool:
        """True if the metadata repository has named any stream."""
        return bool(self._streams)

    def running(self, wanted: Wanted) -> int:
        """Return how many of the wanted streams can take batches."""
        return len(self._running) if wanted is None else sum(s.running for s in self._of(wanted))

    def width(self, wanted: Wanted) -> int:
        """Return how many batches can be in progress at once on the wanted streams."""
        streams = self._running if wanted is None else self._of(wanted)
        return sum(stream.width for stream in streams) or 1

    def missing(self, wanted: Wanted) -> bool:
        """Return whether streams are named and none of them is known."""
        return wanted is not None and not self._of(wanted)

    def _of(self, wanted: StreamId | tuple[StreamId, ...]) -> list[Stream]:
        return [self._streams[stream] for stream in named(wanted) if stream in self._streams]

    def streams(self) -> list[Stream]:
        return list(self._streams.values())

    def any_good(self, now_s: float) -> bool:
        return any(stream.good(now_s) for stream in self._running)

    def pick(self, wanted: Wanted, now_s: float) -> Stream | None:
        """Return a random wanted stream that runs and has room; a slow or failed one only if there
        is no other."""
        if isinstance(wanted, StreamId):
            one = self._streams.get(wanted)
            return one if one is not None and one.running and self._room(one) else None
        running = self._running
        if wanted is not None:
            running = [stream for stream in running if stream.id in wanted]
        if not running:
            return None
        chosen = running[0] if len(running) == 1 else self._rng.choice(running)
        if not chosen.in_flight and chosen.avoid_until_s <= now_s:
            return chosen
        if chosen.good(now_s) and self._room(chosen):
            return chosen
        good = [stream for stream in running if stream.good(now_s)]
        with_room = [stream for stream in good or running if self._room(stream)]
        return self._rng.choice(with_room) if with_room else None

    def adopt(self, log: pb.Log) -> None:
        """Adopt newer metadata, keeping the attempts in flight."""
        known, self._streams = self._streams, {}
        of_log = {segment.loglet_id: segment.compression for segment in log.segments}
        for metadata in log.streams:
            stream = known.get(metadata.log_stream_id) or Stream(metadata.log_stream_id)
            stream.update(metadata, self._width(metadata))
            stream.compression = self._compression
            if stream.compression == "log":
                stream.compression = of_log.get(metadata.loglet_id) or "none"
            self._streams[stream.id] = stream
        self._running = [stream for stream in self._streams.values() if stream.running]
        self.conditions = Conditions(log)

    def clear(self) -> None:
        self._streams, self._running = {}, []
        self.conditions = Conditions()

    def _room(self, stream: Stream) -> bool:
        """Return whether a stream has room. Since it remembers only as many batches of a producer
        as may be in flight, it takes none while the outcome of one is unknown."""
        return not stream.doubtful and len(stream.in_flight) < self._in_flight_max
