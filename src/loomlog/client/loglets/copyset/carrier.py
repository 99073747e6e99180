"""Appends to `copyset` streams: sends each batch to the sequencer, in a task of its own.

A doubtful batch keeps its bytes and number and goes to the current sequencer, which finds out
whether it was stored; the stream gets no new batches meanwhile. A batch is sent for one epoch: a
copy that arrives late, after the batch was repeated, is refused.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog import limits
from loomlog.client.append.appender import Attempt, Batch
from loomlog.client.append.carriers import Carrier, Outcomes, retryable_if_sound
from loomlog.client.append.stream import Stream
from loomlog.client.context import Client, Retries
from loomlog.client.loglets.copyset.acknowledged import Acknowledgements
from loomlog.client.loglets.copyset.segments import (
    HOPS_MAX,
    Segments,
    Sequencers,
    View,
)
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.errors import (
    AppendUnknown,
    Conflict,
    Corrupt,
    LoomError,
    NotFound,
    NotLeader,
    Retryable,
    Sealed,
    Timeout,
    Unavailable,
)
from loomlog.types import Buffer, Glsn
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

ANSWER_S: Final = 2.0  # until a silent sequencer is looked for elsewhere
BYTES_PER_S_MIN: Final = 4 * limits.MIB  # large batches are given more time


class CopysetCarrier(Carrier):
    """Appends batches to the `copyset` streams of one log."""

    def __init__(
        self,
        segments: Segments,
        sequencers: Sequencers,
        acknowledgements: Acknowledgements,
        client: Client,
        outcomes: Outcomes,
    ) -> None:
        self.segments = segments
        self.sequencers = sequencers
        self.acknowledgements = acknowledgements
        self.producer = client.producer
        self.outcomes = outcomes
        self.rng = client.rng
        self._loop = client.loop
        self._tasks: dict[asyncio.Task[None], None] = {}

    def attempt(self, batch: Batch, target: Stream) -> CopysetAttempt:
        return CopysetAttempt(self, batch, target)

    def silent(self, target: Stream) -> None:
        """Look elsewhere for a sequencer that others miss, too."""
        try:
            view = self.segments.view(target.id)
        except LoomError:
            return
        for attempt in list(target.in_flight):
            if isinstance(attempt, CopysetAttempt):
                attempt.leave_the_missed(view)

    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._tasks)

    def run(self, attempt: CopysetAttempt) -> asyncio.Task[None]:
        task = self._loop.create_task(attempt.run())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task


class CopysetAttempt(Attempt):
    """Sends a batch to one stream as often as necessary, always with the same bytes."""

    __slots__ = ("_address", "_answer", "_carrier", "_epoch", "_payload", "_task")

    def __init__(self, carrier: CopysetCarrier, batch: Batch, target: Stream) -> None:
        super().__init__(batch, target)
        self._carrier = carrier
        self._epoch = 0  # the epoch that the batch is sent for
        self._payload: Buffer = b""
        self._task: asyncio.Task[None] | None = None
        self._address = ""  # of the sequencer that was asked last
        self._answer: asyncio.Future[tuple[pb.Frame, memoryview]] | None = None  # it waits for this

    def leave_the_missed(self, view: View) -> None:
        """Wait no longer for a node that the metadata repository misses."""
        is_there = any(n.alive and n.address == self._address for n in view.nodes.values())
        if self._answer is not None and not self._answer.done() and not is_there:
            missed = f"{self._address} is missed, also by the metadata repository"
            self._answer.set_exception(Timeout(missed))

    def start(self) -> None:
        self._task = self._carrier.run(self)

    def cancel(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def run(self) -> None:
        outcomes = self._carrier.outcomes
        try:
            if first := await self._append():
                outcomes.appended(self, first, first)
                acknowledgements = self._carrier.acknowledgements
                acknowledgements.news.append((self.target.id, first, self.batch.count))
                if not acknowledgements.is_watched:
                    acknowledgements.look_soon()
        except LoomError as error:
            if not self.doubtful:
                certain = NotFound(str(error)) if isinstance(error, SegmentGoneError) else error
                outcomes.refused(self, certain)
            elif isinstance(error, Sealed):
                outcomes.absent(self)
            elif isinstance(error, Conflict):  # it was looked for before
                outcomes.refused(self, error)
            else:
                outcomes.unknown(self, error)

    async def _append(self) -> Glsn:
        """Return the first position; 0 if the attempt is over and has reported its outcome."""
        carrier, stream = self._carrier, self.target.id
        producer, sequencers = carrier.producer, carrier.sequencers
        sequence = producer.next_sequence()
        self._payload = self.batch.encode(producer.id, sequence, self.target.compression)
        retries: Retries | None = None
        hops = 0
        while True:
            view = carrier.segments.view(stream)
            connection: Connection | None = None
            try:
                address = sequencers.address(view)
                connection = await carrier.segments.connect_to(address)
                if not self.doubtful:
                    self._epoch = sequencers.epoch(view, address)
                if first := await self._send(view, connection, address):
                    return first
                if not self.doubtful and hops < HOPS_MAX:
                    hops += 1
                    continue
                raise Unavailable(f"the sequencer of stream {stream} is being chosen")
            except Retryable as error:
                sequencers.failed(view, error)
                if not self._goes_on(connection, error):
                    return 0
                if isinstance(error, NotLeader) and hops < HOPS_MAX:
                    hops += 1
                    continue
                if not self.doubtful:
                    raise
            retries = retries or Retries(carrier.rng)
            await retries.pause()
            await carrier.segments.try_to_refresh()  # to find the current sequencer
            hops = 0

    async def _send(self, view: View, connection: Connection, address: str) -> Glsn:
        """Return the first position; 0 if it was refused because another epoch has begun."""
        self._carrier.outcomes.sent(self)
        frame = pb.Frame()
        request = frame.copyset_append  # in its place: a frame copies what it is given
        request.loglet_id, request.epoch, request.repeated = view.loglet, self._epoch, self.doubtful
        if (expected_tail := self.batch.expected_tail) is not None:
            request.expected_tail = expected_tail
        timeout_s = ANSWER_S + self.batch.size / BYTES_PER_S_MIN
        self._address = address
        self._answer = connection.request(frame, (self._payload,), timeout_s=timeout_s)
        try:
            reply, _ = await self._answer
        except Corrupt as error:
            raise retryable_if_sound(error, self._payload) from error
        finally:
            self._answer = None
        if reply.HasField("copyset_tail"):
            self._carrier.sequencers.epoch_reported(view, address, reply.copyset_tail.epoch)
            return 0
        first = int(reply.appended.first_glsn)
        if not first:
            raise AppendUnknown(f"{connection.peer} gave no position")
        return first

    def _goes_on(self, connection: Connection | None, error: Retryable) -> bool:
        """Report whether the batch may have been taken. Return whether this attempt continues."""
        if self.doubtful:
            return True
        if connection is not None and (connection.closed or isinstance(error, Timeout)):
            return self._carrier.outcomes.lost(self, str(error))
        self._carrier.outcomes.declined(self, error)
        return True
