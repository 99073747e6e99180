"""Drives a reader (core/copyset/reader.py): its questions go to the nodes, and what it delivers
waits here for a consumer.

Nodes may take their time to answer while there is nothing to tell, so a question is a request that
waits. Whoever fails is told to the reader, which knows what to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from loomlog.client.copyset.segments import Segments, View
from loomlog.core.copyset.lsn import LSN_MAX, Lsn
from loomlog.core.copyset.messages import Delivered, LogState
from loomlog.core.copyset.reader import Reader
from loomlog.core.copyset.reader_words import (
    Ask,
    Deliver,
    Effect,
    Finished,
    Gap,
    NeedMetadata,
    ReadSettings,
    SetTimer,
)
from loomlog.errors import LoomError, Retryable
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import answer_from_wire, request_to_wire

WAIT_MS: Final = 2000  # for a node that has nothing more; then it is asked again
ANSWER_S: Final = 2.0  # a node that says nothing for so much longer has failed
CLOSING_S: Final = 0.05  # between looks at a segment that is being closed


class Reading:
    """One reader at work, for one consumer, until it is closed."""

    def __init__(
        self,
        segments: Segments,
        view: View,
        first: Lsn,
        until: Lsn | None,
        notify: Callable[[], None],
        *,
        room_bytes: int,
        payloads: bool = True,
    ) -> None:
        """`notify` is called when there is something to take, or something is wrong."""
        self._segments = segments
        self._view = view
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(
            view.loglet,
            first,
            LSN_MAX if until is None else until,
            batches=payloads,
            settings=ReadSettings(room_bytes=room_bytes),
        )
        self._ready: deque[Deliver | Gap] = deque()
        self._questions: dict[NodeId, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.failure: Exception | None = None
        self._do(self._reader.told_state(view.state, self._loop.time()))
        self._look_if_closing(view.state)

    # ---- the consumer's side

    @property
    def finished(self) -> bool:
        """All that was wanted was taken, or the segment has come to its end."""
        return self._reader.finished and not self._ready

    def take(self) -> Deliver | Gap | None:
        """What comes next, if it is here."""
        if not self._ready:
            return None
        found = self._ready.popleft()
        if isinstance(found, Deliver):
            self._do(self._reader.consumed(1, self._loop.time()))
        return found

    def close(self) -> None:
        self._ready.clear()
        self._end()

    # ---- what the reader wants

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Deliver() | Gap():
                    self._ready.append(effect)
                case Ask():
                    self._ask(effect)
                case NeedMetadata():
                    self._look()
                case SetTimer(at):
                    self._set_timer(at)
                case Finished():
                    self._end()
        if self._ready or self._reader.finished:
            self._notify()

    def _end(self) -> None:
        for question in self._questions.values():
            question.cancel()
        self._questions.clear()
        if self._looking is not None:
            self._looking.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._woken)

    def _woken(self) -> None:
        self._timer = None
        try:
            self._do(self._reader.woken(self._loop.time()))
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Also with what nobody expected: a consumer must not wait for a task that died of it."""
        self.failure = error
        self._notify()

    # ---- asking nodes

    def _ask(self, ask: Ask) -> None:
        before = self._questions.pop(ask.node, None)
        if before is not None:
            before.cancel()
        self._questions[ask.node] = self._loop.create_task(self._question(ask))

    async def _question(self, ask: Ask) -> None:
        try:
            await self._ask_and_tell(ask)
        except Exception as error:
            self._fail(error)

    async def _ask_and_tell(self, ask: Ask) -> None:
        try:
            answer: Delivered | None = await self._answer(ask)
        except LoomError:
            answer = None
        if self._questions.get(ask.node) is asyncio.current_task():
            del self._questions[ask.node]
        now = self._loop.time()
        if answer is None:
            self._do(self._reader.failed(ask.node, ask.question, now))
        else:
            self._do(self._reader.answered(ask.node, ask.question, answer, now))

    async def _answer(self, ask: Ask) -> Delivered | None:
        message, _ = request_to_wire(ask.request, wait_ms=WAIT_MS)
        connection = await self._segments.connect(self._view, ask.node)
        reply, payload = await connection.request(
            pb.Frame(copyset_request=message), timeout_s=ANSWER_S + WAIT_MS / 1000
        )
        answer = answer_from_wire(reply.copyset_answer, payload)
        return answer if isinstance(answer, Delivered) else None

    # ---- asking the metadata repository

    def _look(self, after_s: float = 0.0) -> None:
        if self._looking is None:
            self._looking = self._loop.create_task(self._learn(after_s))

    async def _learn(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            await self._refresh()
        except Exception as error:
            self._fail(error)

    async def _refresh(self) -> None:
        try:
            self._view = await self._segments.refresh(self._view.stream)
        except Retryable:
            pass  # the reader asks again
        finally:
            self._looking = None
        state = self._view.state
        self._do(self._reader.told_state(state, self._loop.time()))
        self._look_if_closing(state)

    def _look_if_closing(self, state: LogState) -> None:
        """Its end is known once all of it is recovered, which nobody tells a reader."""
        if state.closed and state.last_clean < state.epoch - 1 and not self._reader.finished:
            self._look(CLOSING_S)
