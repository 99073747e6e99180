"""Appends that are taken in one epoch only, which is decided first, by whoever carries them out.

In its epoch a sequencer recognises a batch that it was given before. When the epoch is over and
recovered, what it has is final. So several processes may append the same batch for the same epoch,
at any time: it is there once or, if it was too late, never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from loomlog.client.copyset.segments import SegmentGoneError, Segments, View
from loomlog.client.copyset.sequencers import Sequencers
from loomlog.core.copyset.lsn import Epoch
from loomlog.errors import AppendUnknown, LoomError, NotFound, Retryable, Sealed, Unavailable
from loomlog.types import Buffer, Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

ANSWER_S: Final = 2.0  # then the metadata is looked at, and the same is sent again


class EpochAppends:
    """Such appends of one client to the copyset streams of one log."""

    def __init__(self, segments: Segments, sequencers: Sequencers, timeout_s: float) -> None:
        self._segments = segments
        self._sequencers = sequencers
        self._timeout_s = timeout_s

    async def reserve(self, stream: StreamId) -> Epoch:
        """The epoch that takes appends now. Sealed: the stream's segment has ended."""

        async def ask(view: View) -> Epoch:
            frame = pb.Frame(find_copyset_tail=pb.FindCopysetTail(loglet_id=view.loglet))
            answer = await self._sequencers.ask(view, frame, ANSWER_S)
            return int(answer.copyset_tail.epoch)

        try:
            return await self._insist(stream, ask)
        except SegmentGoneError as error:
            raise Sealed(str(error)) from error

    async def append(
        self,
        stream: StreamId,
        epoch: Epoch,
        batch: Buffer,
        confirm: Callable[[], Awaitable[None]],
    ) -> Glsn:
        """Its first position; 0: the epoch is over, and what it has is final. `confirm` raises if
        others went on without us; it is asked each time before the batch is sent."""

        async def attempt(view: View) -> Glsn | None:
            if view.state.last_clean >= epoch:
                return 0
            await confirm()
            order = pb.CopysetAppend(loglet_id=view.loglet, epoch=epoch)
            frame = pb.Frame(copyset_append=order)
            answer = await self._sequencers.ask(view, frame, ANSWER_S, (batch,))
            return int(answer.appended.first_glsn) or None  # None: another epoch has begun

        try:
            return await self._insist(stream, attempt, Sealed, NotFound, AppendUnknown)
        except SegmentGoneError:
            # Nobody trims a reference before its writer knows of it: so it was not there.
            return 0

    async def _insist(
        self,
        stream: StreamId,
        attempt: Callable[[View], Awaitable[int | None]],
        *tolerated: type[LoomError],
    ) -> int:
        """Until there is an answer."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        attempts = 0
        await self._segments.log.get()
        while True:
            problem: LoomError = Unavailable("its epoch is over, and is being recovered")
            try:
                if (found := await attempt(self._segments.view(stream))) is not None:
                    return found
            except LoomError as error:
                if not isinstance(error, (Retryable, *tolerated)):
                    raise
                problem = error
            wait_s = self._sequencers.pause_s(attempts)
            if loop.time() + wait_s >= deadline_s:
                raise self._overdue(stream, problem) from problem
            await asyncio.sleep(wait_s)
            await self._look_again()
            attempts += 1

    async def _look_again(self) -> None:
        try:
            await self._segments.log.refresh()
        except Retryable:
            pass  # then as far as is known

    def _overdue(self, stream: StreamId, problem: LoomError) -> LoomError:
        return Unavailable(
            f"log {self._segments.log.name!r}: stream {stream} took no append for "
            f"{self._timeout_s:g} s ({problem}); see `loom status`, start the nodes that are away, "
            "and publish again: nothing is lost or doubled by that"
        )
