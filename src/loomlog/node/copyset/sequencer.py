"""A running sequencer: carries out what core/copyset/sequencer.py decides, in one epoch.

It accepts appends at once, while it fences earlier sequencers and recovers their epochs. If this
fails unexpectedly, its own epoch ends as well, and another one begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from loomlog import batch
from loomlog.core.backoff import Backoff
from loomlog.core.copyset.effects import (
    Acknowledge,
    Contradicted,
    Drained,
    LeaveOpen,
    Reject,
    Rejection,
    Send,
    SequencerEffect,
    StepDown,
)
from loomlog.core.copyset.messages import (
    Amend,
    Finish,
    LogState,
    NodeAnswer,
    Preempted,
    Release,
    Store,
)
from loomlog.core.copyset.nodeset import Exclusions, Shuffler, node_of
from loomlog.core.copyset.procedures import fence
from loomlog.core.copyset.record import Epoch, Lsn, offset_of
from loomlog.core.copyset.recovery import Recovered
from loomlog.core.copyset.sequencer import EpochSequencer, SequencerState, Stamps
from loomlog.errors import AppendUnknown, Busy, Conflict, LoomError, NotYetWritten, Unavailable
from loomlog.node.appends import ProducerTable, appended
from loomlog.node.copyset.asker import Asker
from loomlog.node.copyset.epoch_store import EpochStoreClient, Known
from loomlog.node.copyset.recovery import RETRY, recover
from loomlog.node.workers import insist
from loomlog.types import NodeId, ShardId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame

logger = logging.getLogger(__name__)

GIVE_UP: Final = Backoff(1.0, 300.0)  # between epochs that fail unexpectedly, one after another


@dataclass(eq=False, slots=True)
class OpenAppend:
    """An append of a client, until it is answered. The core sequencer treats it as the opaque token
    of the batch."""

    connection: Connection
    request_id: int
    header: batch.Header
    batch: bytearray | memoryview
    repeated: bool = False  # an earlier attempt may have been taken
    epoch: Epoch = 0  # that it may be placed in; if repeated, the first one; 0: any
    expected: Lsn | None = None  # the last position before it; None: any

    @classmethod
    def of(cls, connection: Connection, frame: Frame, payload: memoryview) -> OpenAppend:
        """Return the append in a frame; raise Corrupt if its batch is damaged."""
        header, order = batch.check(payload), frame.copyset_append
        expected = order.expected_tail if order.HasField("expected_tail") else None
        return cls(connection, frame.id, header, payload, order.repeated, order.epoch, expected)

    def fits(self, epoch: Epoch) -> bool:
        """Return whether the append may be accepted in this epoch. If the client may have repeated
        it, only a sequencer that knows all earlier epochs may accept it."""
        later = self.repeated and self.epoch < epoch
        return later or self.epoch in (0, epoch)

    def place(self, stream: StreamId, epoch: int, lsn: Lsn) -> None:
        """Write the batch's position into its header."""
        batch.assign_llsn(self.batch, stream, epoch, lsn)
        batch.assign_position(self.batch, lsn)

    def for_epoch(self, epoch: Epoch) -> OpenAppend:
        """Return the append for this epoch, given that it is in no earlier one. Its batch is
        copied, because the old buffer may still be in use by requests."""
        return replace(self, batch=bytearray(self.batch), repeated=False, epoch=epoch)

    def succeeded(self, lsn: Lsn) -> None:
        self.connection.send(appended(self.request_id, lsn, lsn))

    def not_taken(self, epoch: Epoch) -> None:
        """Answer that it was not appended, so that the client sends it again for this epoch."""
        answer = pb.CopysetTail(epoch=epoch)
        self.connection.send(pb.Frame(id=self.request_id, reply=True, copyset_tail=answer))

    def failed(self, error: LoomError) -> None:
        self.connection.refuse(self.request_id, error)


OpenEnd = tuple[OpenAppend, Lsn]


@dataclass(frozen=True, slots=True)
class SequencerContext:
    """The parts of a node that its sequencers share."""

    me: NodeId
    asker: Asker
    epochs: EpochStoreClient
    exclusions: Exclusions
    chance: Shuffler
    now_us: Callable[[], int]
    spawn: Callable[[Coroutine[Any, Any, None]], object]


class RunningSequencer:
    """Runs one sequencer until its epoch ends. `again` is called with appends that were not
    appended and need another sequencer; `over` once, with those whose outcome recovery decides."""

    def __init__(
        self,
        known: Known,
        context: SequencerContext,
        again: Callable[[OpenAppend], None],
        over: Callable[[list[OpenEnd]], None],
        given_up: int = 0,
    ) -> None:
        """`given_up`: how many epochs just before it gave up here."""
        state = known.state
        self._given_up = given_up
        self._log = known.log
        self._stream = known.stream
        self._context = context
        self._again = again
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._core = EpochSequencer(
            known.log,
            state.metadata_of(state.epoch),
            state.epoch,
            state.all_shards,
            context.exclusions,
            context.chance,
        )
        self._stamps = Stamps(known.now_us, known.asked_at)
        self._shards = state.metadata_of(state.epoch).shards
        # There is no earlier epoch.
        self._is_first = state.history[0].since == state.epoch and not state.trimmed
        self._producers = ProducerTable()
        self._underway: dict[Lsn, OpenAppend] = {}
        self._open_ends: list[OpenEnd] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ticks_at = 0.0  # uvloop's timers do not report their time once it is due
        self._recovered: asyncio.Future[bool] = self._loop.create_future()
        self._end_reported: asyncio.Future[None] = self._loop.create_future()
        self.gave_up = False  # earlier epochs could not be settled, here or on another node
        self.contradicted: Contradicted | None = None  # another node had this epoch before
        self.replaced_by: Epoch = 0  # the lowest that the epoch after this one can have
        self._settling = self._loop.create_task(self._settle(state))

    # ---- state

    @property
    def epoch(self) -> Epoch:
        return self._core.epoch

    @property
    def is_over(self) -> bool:
        return self._core.state is SequencerState.OVER

    @property
    def is_recovered(self) -> bool:
        """True if all earlier epochs are recovered, or this one ended before that."""
        return self._recovered.done()

    async def recovered(self) -> bool:
        """Wait until all earlier epochs are recovered; return False if this one ended first."""
        return await asyncio.shield(self._recovered)

    def tail(self) -> pb.CopysetTail:
        last = self._core.last_acknowledged
        return pb.CopysetTail(
            tail=last if offset_of(last) else 0,
            released=self._core.released,
            epoch=self._core.epoch,
        )

    def knows(self, append: OpenAppend) -> bool:
        """Return False if an earlier epoch may have the append and is still to be searched."""
        if self._is_first:
            return True
        try:
            header = append.header
            return bool(self._producers.find(header.producer_id, header.sequence))
        except AppendUnknown:
            return True

    # ---- events

    def append(self, append: OpenAppend) -> None:
        """Accept an append; raise AppendUnknown if it may repeat one that is already forgotten."""
        producer_id, sequence = append.header.producer_id, append.header.sequence
        if repeated := self._producers.find(producer_id, sequence):
            self._repeat(append, repeated)
            return
        lsn, header, now_s = self._core.next_lsn, append.header, self._loop.time()
        append.place(self._stream, self._core.epoch, lsn)
        stamp_us = self._stamps.stamp(self._context.now_us(), header.max_timestamp_us, now_s)
        effects = self._core.append(
            append.batch, header.count, append, stamp_us, now_s, append.expected
        )
        if not (effects and isinstance(effects[0], Reject)):
            self._producers.note(producer_id, sequence, lsn)
            self._underway[lsn] = append
        self._do(effects)

    def returned(self, node: NodeId) -> None:
        """Called when a node has restarted or reconnected."""
        self._do(self._core.returned(node))

    def retry(self) -> None:
        """Called when nodes are available again."""
        self._do(self._core.retry(self._loop.time()))

    def learned(self, state: LogState) -> None:
        """Called with the current state of the epoch store."""
        if state.epoch > self.epoch:
            self._do(self._core.preempted(state.epoch - 1))

    async def finish(self) -> None:
        """End, and wait until the epoch store has recorded the end."""
        self._do(self._core.end())
        await asyncio.shield(self._end_reported)

    async def _report_end(self) -> None:
        """Report to the epoch store how far this epoch was acknowledged, so that its end stays
        known even if nodes are lost."""
        last = offset_of(self._core.last_acknowledged)
        await self._context.epochs.ask(Finish(self._log, self.epoch, last))
        self._end_reported.set_result(None)

    def stop(self) -> None:
        self._settling.cancel()
        if not self._recovered.done():
            self._recovered.set_result(False)
        if self._timer is not None:
            self._timer.cancel()

    def _repeat(self, append: OpenAppend, lsn: Lsn) -> None:
        """Answer a repeated append, later if it is still in progress, and only this request."""
        underway = self._underway.get(lsn)
        if underway is None:
            append.succeeded(lsn)
        else:
            underway.connection, underway.request_id = append.connection, append.request_id

    def _answered(self, shard: ShardId, lsn: Lsn, wave: int, answer: NodeAnswer | None) -> None:
        self._do(self._core.answered(shard, lsn, wave, answer, self._loop.time()))

    def _tick(self) -> None:
        self._timer = None
        self._do(self._core.tick(self._loop.time()))

    # ---- effects

    def _do(self, effects: list[SequencerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect.shard, effect.request)
                continue
            match effect:
                case Acknowledge(OpenAppend() as append, lsn):
                    del self._underway[lsn]
                    append.succeeded(lsn)
                case Reject(OpenAppend() as append, why):
                    self._reject(append, why)
                case LeaveOpen(OpenAppend() as append, lsn):
                    self._open_ends.append((append, lsn))
                case StepDown(seal):
                    logger.info(
                        "loglet %d: epoch %d is over, epoch %d or a later one has begun",
                        self._log,
                        self.epoch,
                        seal + 1,
                    )
                    self.gave_up = False
                    self.replaced_by = seal + 1
                    self._end()
                case Contradicted():
                    self.contradicted = effect
                    self._end()
                case Drained():
                    self._end()
        self._schedule()

    def _send(self, shard: ShardId, request: Store | Amend | Release) -> None:
        if isinstance(request, Release):
            self._context.asker.release(shard, request)
        else:
            record = request.record
            answered = partial(self._answered, shard, record.first, record.wave)
            self._context.asker.ask(shard, request, answered)

    def _reject(self, append: OpenAppend, why: Rejection) -> None:
        match why:
            case Rejection.BUSY:
                append.failed(Busy(f"loglet {self._log}: {why}: try again in a moment"))
            case Rejection.FULL:
                full = self._context.exclusions.full
                nodes = {node_of(shard): full[shard] for shard in self._shards if shard in full}
                reasons = "; ".join(f"node {node}: {why}" for node, why in sorted(nodes.items()))
                append.failed(Busy(f"loglet {self._log}: {why}: {reasons}"))
            case Rejection.UNAVAILABLE:
                away = self._context.exclusions.are_down(self._shards)
                names = ", ".join(f"node {node}" for node in sorted(set(map(node_of, away))))
                append.failed(Unavailable(f"loglet {self._log}: {why}: start {names}"))
            case Rejection.CONFLICT:
                append.failed(Conflict(f"loglet {self._log}: {why}, {append.expected}"))
            case Rejection.BEYOND:
                append.failed(NotYetWritten(f"loglet {self._log}: {why}: {append.expected}"))
            case _:
                self._again(append)

    def _end(self) -> None:
        open_ends, self._open_ends = self._open_ends, []
        self._underway.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._recovered.done():
            self._recovered.set_result(False)
        self._context.spawn(self._report_end())
        self._over(open_ends)

    def _schedule(self) -> None:
        due = self._core.next_due
        if due is None or (self._timer is not None and self._ticks_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._ticks_at = self._loop.call_at(due, self._tick), due

    # ---- earlier epochs

    async def _settle(self, state: LogState) -> None:
        try:
            await self._fence(state)
            if not self.is_over:
                await self._recover()
        except Exception:
            logger.exception(
                "loglet %d: the epochs before %d cannot be settled: it ends, another one begins",
                self._log,
                self.epoch,
            )
            await asyncio.sleep(GIVE_UP.delay_s(self._given_up))
            self.gave_up = True
            self._do(self._core.drain(self._loop.time()))

    async def _fence(self, state: LogState) -> None:
        async def attempt() -> dict[ShardId, Lsn] | Preempted | None:
            if self.is_over:
                return {}
            asker = self._context.asker
            authorities = asker.authorities(self._log)
            return await asker.run(fence(self._log, self.epoch, state, authorities))

        outcome: dict[ShardId, Lsn] | Preempted = await insist(attempt, RETRY)
        if isinstance(outcome, Preempted):
            self._do(self._core.preempted(outcome.seal))
            return
        for shard, newer in outcome.items():
            self._do(self._core.found(shard, newer))
        self._do(self._core.fenced())

    async def _recover(self) -> None:
        context = self._context
        ending = await recover(
            self._log,
            self.epoch,
            context.asker,
            context.now_us,
            lambda: self.is_over,
            lambda: context.exclusions.down,
        )
        if isinstance(ending, Preempted):
            self._do(self._core.preempted(ending.seal))
        elif isinstance(ending, Recovered):
            state = ending.state
            self._do(self._core.recovered_up_to(state.last_clean, self._loop.time(), state.tail))
            if not self._recovered.done():
                self._recovered.set_result(True)
