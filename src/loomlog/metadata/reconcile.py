"""Keeps every stream as it should be: asks core.ordered.repair what to do, and has it done.

Nothing runs while nothing is to be done. Events wake a stream (a node registered, fell silent or
came back, a replica reported another state, an operator wants something); then one task per stream
works until there is nothing to do but wait. A failed step is tried again, later and later; an event
cuts that short.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from loomlog.core.ordered import repair
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.errors import LoomError, NotFound
from loomlog.metadata.background import UNEXPECTED, Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.conditions import RUNNING, condition
from loomlog.metadata.members import Members
from loomlog.metadata.node_choice import UNABLE_S, NodeChoice
from loomlog.metadata.steps import Steps, adopt_wishes, first
from loomlog.types import NodeId, StreamId

logger = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 5.0
MOVES_MAX: Final = 4  # streams that are moved at one time although they run well


class Reconciler:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        members: Members,
        background: Background,
        nodes: NodeChoice,
        steps: Steps,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._background = background
        self._nodes = nodes
        self._steps = steps
        self._woken: dict[StreamId, None] = {}  # an ordered set
        self._at_work: dict[StreamId, asyncio.Event] = {}  # set: look again at once
        self._waiting: dict[StreamId, None] = {}  # would do something if they could
        self._trouble: dict[StreamId, str] = {}  # why the last step failed
        self._awaited: dict[StreamId, list[asyncio.Future[None]]] = {}
        self._timers: dict[object, asyncio.TimerHandle] = {}

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    # ---- waking

    def wake(self, stream_id: StreamId) -> None:
        """Something about the stream changed; looked at when this turn of the loop is over."""
        if not self._woken:
            self._loop.call_soon(self._look)
        self._woken[stream_id] = None

    def wake_waiting(self) -> None:
        """Something changed that streams may have waited for, such as another node."""
        for stream_id in self._waiting:
            self.wake(stream_id)

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        """It registered, fell silent, or speaks again."""
        self._wake_node(node)
        if alive:
            self.wake_waiting()
        else:
            delay_s = max(0.0, self._nodes.lost_in_s(node))
            self._wake_later(("node", node), delay_s, lambda: self._wake_node(node))

    def _wake_node(self, node: NodeId) -> None:
        for log in self._committer.logs.values():
            for stream in log.streams.values():
                if node in stream.replicas or node == stream.joining:
                    self.wake(stream.stream_id)

    def _wake_later(self, key: object, delay_s: float, wake: Callable[[], None]) -> None:
        if key in self._timers:
            self._timers[key].cancel()

        def due() -> None:
            self._timers.pop(key, None)
            wake()

        self._timers[key] = self._loop.call_later(delay_s, due)

    def wishes_changed(self, stream_id: StreamId) -> None:
        """An operator wants something else of the stream, or of a node that it is on."""
        stream = self._committer.stream(stream_id)
        if stream is not None:
            adopt_wishes(stream, self._catalog)
            self.wake(stream_id)

    def _look(self) -> None:
        woken, self._woken = self._woken, {}
        for stream_id in woken:
            if stream_id in self._at_work:
                self._at_work[stream_id].set()
                continue
            log = self._committer.log_of(stream_id)
            if log is None:
                self._forget(stream_id)
            elif not self._waits(stream_id, self.decide(log.streams[stream_id])):
                self._at_work[stream_id] = asyncio.Event()
                repair_ = self._repair(log, log.streams[stream_id])
                self._background.spawn(repair_, f"repair of stream {stream_id}")

    def _waits(self, stream_id: StreamId, action: repair.Action) -> bool:
        if not isinstance(action, repair.Wait):
            return False
        self._trouble.pop(stream_id, None)
        if action.reason == RUNNING:
            self._waiting.pop(stream_id, None)
        else:
            self._waiting[stream_id] = None
        self._stepped(stream_id)
        return True

    def _forget(self, stream_id: StreamId) -> None:
        self._waiting.pop(stream_id, None)
        self._trouble.pop(stream_id, None)
        self._stepped(stream_id)

    # ---- who wants to know

    async def until(self, stream_id: StreamId, true: Callable[[StreamRounds], bool]) -> None:
        """Wait until some step made it true of the stream."""
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
        """What is the matter with it, in words; empty: nothing."""
        stream_id = stream.stream_id
        copying, trouble = self._steps.copying.get(stream_id), self._trouble.get(stream_id)
        return condition(self.decide(stream), copying, trouble)

    def copied_entries(self, stream: StreamRounds) -> int:
        """What the newcomer has so far, if there is one."""
        if stream.joining is None:
            return 0
        report = stream.reports.get(stream.joining)
        copying = self._steps.copying.get(stream.stream_id)
        told = copying.copied_llsn if copying and copying.destination == stream.joining else 0
        return max(told, report.uncommitted_llsn_offset - 1 if report else 0)

    # ---- one stream

    def decide(self, stream: StreamRounds) -> repair.Action:
        if not stream.sealed:
            for node in stream.replicas:
                if self._members.connected(node) and node not in stream.reports:
                    return repair.BeginSeal(f"node {node} came back without its replica")
        action = repair.decide(stream, self._nodes.of(stream))
        if isinstance(action, repair.Join) and self._must_queue(stream):
            return repair.Wait(f"{RUNNING}; waits until other streams have moved")
        return action

    def _must_queue(self, stream: StreamRounds) -> bool:
        """A stream that runs can wait to be moved."""
        moving = len(self._catalog.filling)
        return not stream.sealed and stream.joining is None and moving >= MOVES_MAX

    async def _repair(self, log: LogRounds, stream: StreamRounds) -> None:
        stream_id = stream.stream_id
        woken = self._at_work[stream_id]
        attempts: Counter[type[repair.Action]] = Counter()  # in a row, of each kind of step
        try:
            while self._committer.stream(stream_id) is stream:
                woken.clear()
                action = self.decide(stream)
                if self._waits(stream_id, action):
                    logger.info("stream %d: %s", stream_id, action)
                    return
                kind = type(action)
                attempt = attempts[kind]
                if await self._tried(log, stream, action, attempt, woken):
                    attempts[kind] = 0
                else:
                    attempts[kind] += 1
                    await first(woken, min(RETRY_FIRST_S * 2 ** min(attempt, 10), RETRY_MAX_S))
        finally:
            del self._at_work[stream_id]
            self._stepped(stream_id)

    async def _tried(
        self,
        log: LogRounds,
        stream: StreamRounds,
        action: repair.Action,
        attempt: int,
        woken: asyncio.Event,
    ) -> bool:
        """Carry it out; False if that did not bring us on."""
        stream_id, joining = stream.stream_id, stream.joining
        try:
            done = await self._steps.carry_out(log, stream, action, attempt, self.decide, woken)
        except LoomError as error:
            logger.warning("stream %d: %s failed: %s", stream_id, action, error)
            self._trouble[stream_id] = str(error)
            done = False
        except Exception:
            logger.exception("stream %d: %s failed", stream_id, action)
            self._trouble[stream_id] = UNEXPECTED
            done = False
        if done:
            self._trouble.pop(stream_id, None)
        else:  # a node that was found unable is tried again some time
            self._wake_later(("stream", stream_id), UNABLE_S, lambda: self.wake(stream_id))
        if joining is not None and stream.joining is None:
            self.wake_waiting()  # others may move now
        self._stepped(stream_id)
        return done
