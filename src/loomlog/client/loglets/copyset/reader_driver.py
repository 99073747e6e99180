"""Drives a reader (core/copyset/reader.py): sends its requests to nodes and queues what it
delivers for a consumer.

Requests are long polls: a node without new records answers late. Failures are reported to the
reader, which decides what to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from loomlog.client.loglets.copyset.segments import Segments, View
from loomlog.core.copyset.effects import (
    AskShard,
    Deliver,
    Finished,
    NeedMetadata,
    ReaderEffect,
    ReadGap,
    SetTimer,
)
from loomlog.core.copyset.messages import Delivered, LogState
from loomlog.core.copyset.reader import CopysetReader
from loomlog.core.copyset.reader_sources import ReadSettings
from loomlog.core.copyset.record import LSN_MAX, Lsn
from loomlog.errors import LoomError, PermissionDenied, Retryable
from loomlog.types import ShardId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import answer_from_wire, request_to_wire

WAIT_MS: Final = 2000  # for a node that has no more records; then it is asked again
ANSWER_S: Final = 2.0  # beyond WAIT_MS, until a silent node has failed
CLOSING_S: Final = 0.05  # between polls of a segment that is being closed


class RunningReader:
    """A running reader, for one consumer, until it is closed."""

    def __init__(
        self,
        segments: Segments,
        view: View,
        first: Lsn,
        until: Lsn | None,
        notify: Callable[[], None],
        *,
        room_bytes: int,
    ) -> None:
        """`notify` is called when there is an item to take, at the end, and on failure."""
        self._segments = segments
        self._view = view
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._reader = CopysetReader(
            view.loglet,
            first,
            LSN_MAX if until is None else until,
            settings=ReadSettings(room_bytes=room_bytes),
        )
        self._ready: deque[Deliver | ReadGap] = deque()
        self._questions: dict[ShardId, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.failure: Exception | None = None
        self._do(self._reader.learn_losses(view.lost, self._loop.time()))
        self._do(self._reader.learn_state(view.state, self._loop.time()))
        self._look_if_closing(view.state)

    # ---- the consumer's side

    @property
    def finished(self) -> bool:
        """True if all items were taken, up to `until` or to the segment's end."""
        return self._reader.finished and not self._ready

    def take(self) -> Deliver | ReadGap | None:
        """Return the next item if it has arrived."""
        if not self._ready:
            return None
        found = self._ready.popleft()
        if isinstance(found, Deliver):
            self._do(self._reader.consumed(1, self._loop.time()))
        return found

    def close(self) -> None:
        self._ready.clear()
        self._end()

    # ---- effects of the reader

    def _do(self, effects: list[ReaderEffect]) -> None:
        for effect in effects:
            match effect:
                case Deliver() | ReadGap():
                    self._ready.append(effect)
                case AskShard():
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
        """Fail with any error, even an unexpected one: a consumer must never wait on a task that
        has already failed."""
        self.failure = error
        self._notify()

    # ---- questions to shards

    def _ask(self, ask: AskShard) -> None:
        before = self._questions.pop(ask.shard, None)
        if before is not None:
            before.cancel()
        self._questions[ask.shard] = self._loop.create_task(self._question(ask))

    async def _question(self, ask: AskShard) -> None:
        try:
            await self._ask_and_tell(ask)
        except Exception as error:
            self._fail(error)

    async def _ask_and_tell(self, ask: AskShard) -> None:
        try:
            answer: Delivered | None = await self._answer(ask)
        except PermissionDenied:
            raise
        except LoomError:
            answer = None
        if self._questions.get(ask.shard) is asyncio.current_task():
            del self._questions[ask.shard]
        now = self._loop.time()
        if answer is None:
            self._do(self._reader.failed(ask.shard, ask.question, now))
        else:
            self._do(self._reader.answered(ask.shard, ask.question, answer, now))

    async def _answer(self, ask: AskShard) -> Delivered | None:
        stamp = self._view.state.stamp
        message, _ = request_to_wire(ask.shard, ask.request, stamp, wait_ms=WAIT_MS)
        connection = await self._segments.connect(self._view, ask.shard)
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
        is_fresh = True
        try:
            self._view = await self._segments.refresh(self._view.stream)
        except Retryable:
            is_fresh = False  # the reader asks again
        finally:
            self._looking = None
        state, now = self._view.state, self._loop.time()
        self._do(self._reader.learn_losses(self._view.lost, now))
        self._do(self._reader.learn_state(state, now, fresh=is_fresh))
        self._look_if_closing(state)

    def _look_if_closing(self, state: LogState) -> None:
        """Poll while a closed segment is recovered: its end is known afterwards, but no message
        says so."""
        if state.closed and state.last_clean < state.epoch - 1 and not self._reader.finished:
            self._look(CLOSING_S)
