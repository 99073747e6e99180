"""Repair streams: core.ordered.repair decides what to do, repair_steps.py does it.

Events wake a stream: a node registered, fell silent or came back, a replica reported another state,
an operator requested a change. Then one task per stream works until it can only wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

from loomlog.core.ordered import repair
from loomlog.core.ordered.repair import condition
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.errors import LoomError, NotFound
from loomlog.metadata.background import (
    RETRY,
    UNEXPECTED,
    Background,
    Later,
    RetryLoop,
    StepResult,
)
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.node_choice import NodeChoice
from loomlog.metadata.ordered.repair_steps import RepairAttempt, RepairSteps, adopt_wishes
from loomlog.net.timers import Timers
from loomlog.types import NodeId, StreamId

logger = logging.getLogger(__name__)


class Reconciler:
    """Repairs all streams of a term; one task per stream that needs work."""

    def __init__(
        self, committer: Committer, background: Background, choice: NodeChoice, steps: RepairSteps
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._committer = committer
        self._choice = choice
        self._steps = steps
        self._work = RetryLoop("repair of stream", self._step, background)
        self._woken: dict[StreamId, None] = {}  # an ordered set
        self._waiting: dict[StreamId, None] = {}  # blocked, and to be tried again after a change
        self._failures: dict[StreamId, Counter[type[repair.Action]]] = {}  # in a row
        self._awaited: dict[StreamId, list[asyncio.Future[None]]] = {}
        self._timers = Timers()

    def stop(self) -> None:
        self._timers.stop()

    # ---- events

    def wake(self, stream_id: StreamId) -> None:
        """Check a stream that changed, at the end of this iteration of the event loop."""
        if not self._woken:
            self._loop.call_soon(self._look)
        self._woken[stream_id] = None

    def wake_waiting(self) -> None:
        """Check streams that wait for something, such as another node."""
        for stream_id in self._waiting:
            self.wake(stream_id)

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        """Called when a node registered, fell silent, or is back."""
        self._wake_node(node)
        if alive:
            self.wake_waiting()
        else:
            delay_s = max(0.0, self._choice.lost_in_s(node))
            self._timers.set(node, delay_s, partial(self._wake_node, node))

    def _wake_node(self, node: NodeId) -> None:
        for stream in self._committer.records.on_node(node):
            self.wake(stream.stream_id)

    def wishes_changed(self, stream_id: StreamId) -> None:
        """Called when the desired state of the stream or one of its nodes changed."""
        stream = self._committer.stream(stream_id)
        if stream is not None:
            adopt_wishes(stream, self._committer.records)
            self.wake(stream_id)

    def _look(self) -> None:
        woken, self._woken = self._woken, {}
        for stream_id in woken:
            stream = self._committer.stream(stream_id)
            if stream_id in self._work:
                self._work.wake(stream_id)
            elif stream is None:
                self._forget(stream_id)
            elif not self._waits(stream_id, self.decide(stream)):
                self._work.wake(stream_id)

    def _waits(self, stream_id: StreamId, action: repair.Action) -> bool:
        if not isinstance(action, repair.Wait):
            return False
        self._forget(stream_id)
        if action.reason != repair.RUNNING:
            self._waiting[stream_id] = None
        return True

    def _forget(self, stream_id: StreamId) -> None:
        self._waiting.pop(stream_id, None)
        self._work.trouble.pop(stream_id, None)
        self._failures.pop(stream_id, None)
        self._steps.preferred.pop(stream_id, None)
        self._stepped(stream_id)

    def prefer_source(self, stream_id: StreamId, node: NodeId) -> None:
        """Copy from this replica until the next copy is finished."""
        self._steps.preferred[stream_id] = node
        self.wake(stream_id)

    # ---- for callers

    async def until(self, stream_id: StreamId, true: Callable[[StreamRounds], bool]) -> None:
        """Wait until the condition holds for the stream after a step."""
        while True:
            stream = self._committer.stream(stream_id)
            if stream is None:
                raise NotFound(f"stream {stream_id} was deleted")
            if true(stream):
                return
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._awaited.setdefault(stream_id, []).append(waiting)
            await waiting

    def _stepped(self, stream_id: StreamId) -> None:
        for waiting in self._awaited.pop(stream_id, ()):
            if not waiting.done():
                waiting.set_result(None)

    def condition(self, stream: StreamRounds) -> str:
        """Return what is wrong with the stream, in words; "" if nothing is."""
        stream_id = stream.stream_id
        copying, trouble = self._steps.copying.get(stream_id), self._work.trouble.get(stream_id)
        return condition(self.decide(stream), copying, trouble)

    def copied_entries(self, stream: StreamRounds) -> int:
        """Return how many entries the newcomer has so far; 0 without a newcomer."""
        if stream.joining is None:
            return 0
        report = stream.reports.get(stream.joining)
        copying = self._steps.copying.get(stream.stream_id)
        copied = copying.copied_llsn if copying and copying.destination == stream.joining else 0
        return max(copied, report.uncommitted_llsn_offset - 1 if report else 0)

    # ---- one stream

    def decide(self, stream: StreamRounds) -> repair.Action:
        log = self._committer.log_of(stream.stream_id)
        if log is not None and (reason := self._committer.lost_rounds(log.log_id)):
            return repair.Wait(reason)  # a decision without them could be wrong
        if stream.stream_id not in self._committer.records.streams:
            return repair.Wait("its segment is trimmed, and its replicas are about to be removed")
        return repair.decide(stream, self._choice.of(stream))

    async def _step(self, stream_id: StreamId) -> StepResult | Later:
        log = self._committer.log_of(stream_id)
        if log is None:
            self._forget(stream_id)
            return StepResult.IDLE
        stream = log.streams[stream_id]
        action = self.decide(stream)
        if self._waits(stream_id, action):
            logger.info("stream %d: %s", stream_id, action)
            return StepResult.IDLE
        failures = self._failures.setdefault(stream_id, Counter())
        number = failures[type(action)]
        is_done = await self._try(log, stream, action, number)
        failures[type(action)] = 0 if is_done else number + 1
        return StepResult.DONE if is_done else Later(RETRY.delay_s(number))

    async def _try(
        self, log: LogRounds, stream: StreamRounds, action: repair.Action, number: int
    ) -> bool:
        """Carry out an action. Return False if it made no progress."""
        stream_id, joining = stream.stream_id, stream.joining
        attempt = RepairAttempt(
            number,
            is_wanted=lambda: repair.is_same(action, self.decide(stream)),
            pause=partial(self._work.pause, stream_id),
        )
        is_done = False
        try:
            is_done = await self._steps.carry_out(log, stream, action, attempt)
        except LoomError as error:
            logger.warning("stream %d: %s failed: %s", stream_id, action, error)
            self._work.trouble[stream_id] = str(error)
        except Exception:
            logger.exception("stream %d: %s failed", stream_id, action)
            self._work.trouble[stream_id] = UNEXPECTED
        was_removed = isinstance(action, repair.Remove) and is_done
        if was_removed or (joining is not None and stream.joining is None):
            self.wake_waiting()  # others may move now
        self._stepped(stream_id)
        return is_done
