"""A sequencer at work: carries out what core/copyset/sequencer.py decides, in one epoch.

It takes appends at once. Beside that the sequencers before it are fenced, and their epochs
recovered. If that breaks down, this epoch ends as well: the next one begins afresh.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from loomlog.core.copyset.effects import (
    Acknowledge,
    Drained,
    Effect,
    LeaveOpen,
    Reactivate,
    Reject,
    Rejection,
    Send,
    StepDown,
)
from loomlog.core.copyset.fencing import fence
from loomlog.core.copyset.lsn import Epoch, Lsn, offset_of
from loomlog.core.copyset.messages import Amend, LogState, NodeAnswer, Preempted, Release, Store
from loomlog.core.copyset.recovery import Recovered
from loomlog.core.copyset.sequencer import Sequencer, State
from loomlog.errors import AppendUnknown, Busy, Unavailable
from loomlog.node.copyset.appends import Append
from loomlog.node.copyset.asking import insist
from loomlog.node.copyset.epoch_store import Known
from loomlog.node.copyset.means import Means
from loomlog.node.copyset.recovering import Recovering
from loomlog.node.producers import ProducerTable
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

OpenEnd = tuple[Append, Lsn]

GIVE_UP_S: Final = 1.0  # what breaks down every time costs no more epochs than one in so long


class Sequencing:
    """`again` gets appends that are nowhere, and have to find another sequencer; `over` is called
    once, with the appends of which nobody knows what recovery makes of them."""

    def __init__(
        self,
        known: Known,
        means: Means,
        again: Callable[[Append], None],
        over: Callable[[list[OpenEnd]], None],
    ) -> None:
        state = known.state
        self._log = known.log
        self._stream = known.stream
        self._means = means
        self._again = again
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._core = Sequencer(
            known.log,
            state.metadata_of(state.epoch),
            state.epoch,
            {node for metadata in state.history for node in metadata.nodes},
            means.exclusions,
            means.chance,
            means.settings,
        )
        self._nodes = state.metadata_of(state.epoch).nodes
        # There is nothing before it, and never was.
        self._is_first = state.history[0].since == state.epoch and not state.trimmed
        self._producers = ProducerTable()
        self._underway: dict[Lsn, Append] = {}
        self._open_ends: list[OpenEnd] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ticks_at = 0.0  # not asked of the timer: uvloop's does not know it when that is now
        self._recovered: asyncio.Future[bool] = self._loop.create_future()
        self.gave_up = False  # what was before could not be settled, and nobody else does it
        self._settling = self._loop.create_task(self._settle(state))

    # ---- what is known

    @property
    def epoch(self) -> Epoch:
        return self._core.epoch

    @property
    def is_over(self) -> bool:
        return self._core.state is State.OVER

    async def recovered(self) -> bool:
        """Wait until all epochs before are recovered; False: this one ended before."""
        return await asyncio.shield(self._recovered)

    def tail(self) -> pb.CopysetTail:
        last = self._core.last_acknowledged
        return pb.CopysetTail(
            tail=last if offset_of(last) else 0,
            released=self._core.released,
            epoch=self._core.epoch,
        )

    def knows(self, append: Append) -> bool:
        """That it was taken in this epoch, or is too old to tell; or that there is none before."""
        if self._is_first:
            return True
        try:
            header = append.header
            return bool(self._producers.find(header.producer_id, header.sequence))
        except AppendUnknown:
            return True

    # ---- what happens

    def append(self, append: Append) -> None:
        """Raises AppendUnknown if it repeats one that is too long ago to tell."""
        producer_id, sequence = append.header.producer_id, append.header.sequence
        if repeated := self._producers.find(producer_id, sequence):
            self._repeat(append, repeated)
            return
        lsn = self._core.next_lsn
        append.place(self._stream, self._core.epoch, lsn)
        effects = self._core.append(
            append.batch, append.header.count, append, self._means.now_us(), self._loop.time()
        )
        if not (effects and isinstance(effects[0], Reject)):
            self._producers.note(producer_id, sequence, lsn)
            self._underway[lsn] = append
        self._do(effects)

    def returned(self, node: NodeId) -> None:
        """It was started anew, or the connection to it was."""
        self._do(self._core.returned(node))

    def retry(self) -> None:
        """Nodes are there again."""
        self._do(self._core.retry(self._loop.time()))

    def learned(self, state: LogState) -> None:
        """What the epoch store has by now."""
        if state.epoch > self.epoch:
            self._do(self._core.preempted(state.epoch - 1))

    def stop(self) -> None:
        self._settling.cancel()
        if not self._recovered.done():
            self._recovered.set_result(False)
        if self._timer is not None:
            self._timer.cancel()

    def _repeat(self, append: Append, lsn: Lsn) -> None:
        """It is here: if still under way, its answer goes to who asked last."""
        underway = self._underway.get(lsn)
        if underway is None:
            append.succeeded(lsn)
        else:
            underway.connection, underway.request_id = append.connection, append.request_id

    def _answered(self, node: NodeId, lsn: Lsn, wave: int, answer: NodeAnswer | None) -> None:
        self._do(self._core.answered(node, lsn, wave, answer, self._loop.time()))

    def _tick(self) -> None:
        self._timer = None
        self._do(self._core.tick(self._loop.time()))

    # ---- what is done about it

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(node, Release() as release):
                    self._means.tell(node, release)
                case Send(node, (Store() | Amend()) as request):
                    record = request.record
                    answered = partial(self._answered, node, record.first, record.wave)
                    self._means.ask(node, request, answered)
                case Acknowledge(Append() as append, lsn):
                    del self._underway[lsn]
                    append.succeeded(lsn)
                case Reject(Append() as append, why):
                    self._reject(append, why)
                case LeaveOpen(Append() as append, lsn):
                    self._open_ends.append((append, lsn))
                case StepDown(seal):
                    logger.info(
                        "loglet %d: epoch %d is over, epoch %d or a later one has begun",
                        *(self._log, self.epoch, seal + 1),
                    )
                    self.gave_up = False
                    self._end()
                case Drained():
                    self._end()
                case Reactivate():
                    logger.info("loglet %d: epoch %d is full", self._log, self.epoch)
        self._schedule()

    def _reject(self, append: Append, why: Rejection) -> None:
        match why:
            case Rejection.BUSY:
                append.failed(Busy(f"loglet {self._log}: {why}: try again in a moment"))
            case Rejection.UNAVAILABLE:
                away = self._means.exclusions.down.intersection(self._nodes)
                nodes = ", ".join(f"node {node}" for node in sorted(away))
                append.failed(Unavailable(f"loglet {self._log}: {why}: start {nodes}"))
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
        self._over(open_ends)

    def _schedule(self) -> None:
        due = self._core.next_due
        if due is None or (self._timer is not None and self._ticks_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._ticks_at = self._loop.call_at(due, self._tick), due

    # ---- the epochs before

    async def _settle(self, state: LogState) -> None:
        try:
            await self._fence(state)
            if not self.is_over:
                await self._recover()
        except Exception:
            logger.exception(
                "loglet %d: what was before epoch %d cannot be settled: it ends, to begin anew",
                *(self._log, self.epoch),
            )
            await asyncio.sleep(GIVE_UP_S)
            self.gave_up = True
            self._do(self._core.drain(self._loop.time()))

    async def _fence(self, state: LogState) -> None:
        async def attempt() -> bool | None:
            if self.is_over:
                return True
            outcome = await self._means.asker.run(fence(self._log, self.epoch, state, {}))
            if isinstance(outcome, Preempted):
                self._do(self._core.preempted(outcome.seal))
                return True
            return outcome or None

        await insist(attempt)
        self._do(self._core.fenced())

    async def _recover(self) -> None:
        recovering = Recovering(self._log, self.epoch, self._means)
        ending = await recovering.run(lambda: self.is_over)
        if isinstance(ending, Preempted):
            self._do(self._core.preempted(ending.seal))
        elif isinstance(ending, Recovered):
            last_clean = ending.state.last_clean
            self._do(self._core.recovered_up_to(last_clean, self._loop.time()))
            if not self._recovered.done():
                self._recovered.set_result(True)
