"""Appends to `copyset` streams that are valid in one epoch only, for publications.

Within its epoch, a sequencer detects a batch that it took before. Once the epoch is over and
recovered, its content is final. So several processes may append the same batch for the same epoch
at any time: it is stored once or, if all were too late, never.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from loomlog.batch import read_header
from loomlog.client.context import Client, Retries
from loomlog.client.loglets.contract import Confirm, Fixed
from loomlog.client.loglets.copyset.acknowledged import Acknowledgements
from loomlog.client.loglets.copyset.segments import Segments, Sequencers, View
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.core.copyset.record import OFFSET_MAX, Epoch, make
from loomlog.errors import (
    AppendUnknown,
    LoomError,
    NotFound,
    Retryable,
    Sealed,
    Unavailable,
    seconds,
)
from loomlog.protocol_names import COPYSET
from loomlog.types import Buffer, Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

_Result = TypeVar("_Result")

ANSWER_S: Final = 2.0  # then the metadata is refreshed and the batch sent again


class FixedAppend:
    """Appends within a given epoch to the copyset streams of one log."""

    def __init__(
        self,
        segments: Segments,
        sequencers: Sequencers,
        acknowledgements: Acknowledgements,
        client: Client,
    ) -> None:
        self._segments = segments
        self._sequencers = sequencers
        self._acknowledgements = acknowledgements
        self._timeout_s = client.settings.append_timeout_s
        self._rng = client.rng

    async def reserve(self, stream: StreamId, tail: Glsn) -> Fixed:
        """Choose the epoch that takes appends now; raise Sealed if the segment has ended."""

        async def ask(view: View) -> pb.CopysetTail:
            frame = pb.Frame(find_copyset_tail=pb.FindCopysetTail(loglet_id=view.loglet))
            answer = await self._sequencers.ask(view, frame, ANSWER_S)
            return answer.copyset_tail

        try:
            found = await self._insist(stream, ask)
        except SegmentGoneError as error:
            raise Sealed(str(error)) from error
        epoch: Epoch = found.epoch
        above, last = max(tail, found.tail, make(epoch, 0)), make(epoch, OFFSET_MAX)
        return Fixed(COPYSET, stream, above, last, epoch)

    async def append(self, fixed: Fixed, batch: Buffer, confirm: Confirm) -> Glsn:
        """Return the batch's first position; 0 if the epoch is over and its content final.
        `confirm` is called each time before the batch is sent."""
        epoch: Epoch = fixed.place

        async def attempt(view: View) -> Glsn | None:
            if view.state.last_clean >= epoch:
                return 0
            await confirm()
            order = pb.CopysetAppend(loglet_id=view.loglet, epoch=epoch)
            frame = pb.Frame(copyset_append=order)
            answer = await self._sequencers.ask(view, frame, ANSWER_S, (batch,))
            if not (first := int(answer.appended.first_glsn)):
                return None  # another epoch has begun
            self._acknowledgements.add(view.stream, first, read_header(batch).count)
            return first

        try:
            return await self._insist(fixed.stream, attempt, Sealed, NotFound, AppendUnknown)
        except SegmentGoneError:
            # References are not trimmed before their writer records them, so it was never there.
            return 0

    async def _insist(
        self,
        stream: StreamId,
        attempt: Callable[[View], Awaitable[_Result | None]],
        *tolerated: type[LoomError],
    ) -> _Result:
        """Retry until an attempt returns a result; raise other errors than `tolerated` ones."""
        retries = Retries(self._rng, self._timeout_s)
        while True:
            problem: LoomError = Unavailable("its epoch has ended and is being recovered")
            try:
                if (result := await attempt(await self._segments.learn(stream))) is not None:
                    return result
            except LoomError as error:
                if not isinstance(error, (Retryable, *tolerated)):
                    raise
                problem = error
            if not await retries.pause():
                raise Unavailable(
                    f"log {self._segments.log.name!r}: stream {stream} took no append for "
                    f"{seconds(self._timeout_s)} ({problem}); see `loom status`, start the nodes "
                    "that are away, and publish again: nothing is lost or doubled by that"
                ) from problem
            await self._segments.try_to_refresh()
