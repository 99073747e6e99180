"""How far a log reaches whose active segment is of protocol `copyset`.

The metadata repository knows how far it was recovered, and the sequencer what was acknowledged
since. Whoever asks first the one and then the other knows that no newer sequencer had acknowledged
more before.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.client.copyset.segments import PROTOCOL, SegmentGoneError, Segments, View
from loomlog.client.copyset.sequencers import Sequencers
from loomlog.core.copyset.landmarks import SequencerTail, tail
from loomlog.errors import LoomError, NotFound, Retryable, Sealed, Unavailable
from loomlog.types import Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

ANSWER_S: Final = 2.0  # a sequencer that says nothing for so long is asked for elsewhere


class Tails:
    """Those of one log, for one client."""

    def __init__(self, segments: Segments, sequencers: Sequencers, timeout_s: float) -> None:
        self._segments = segments
        self._sequencers = sequencers
        self._timeout_s = timeout_s

    async def complete(self, log: pb.Log) -> pb.Log:
        """The log as it is now, with its tail: all that was acknowledged before is at or below."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        attempts = 0
        while (stream := _active(log)) is not None:
            doubt: LoomError | None = None
            known: SequencerTail | None = None
            try:
                known = await self._ask(self._segments.view(stream))
            except (Retryable, Sealed, NotFound, SegmentGoneError) as error:
                doubt = error
            log = await self._segments.log.look()
            if (found := self._tail(log, known)) is not None:
                log.tail = max(log.tail, found)
                return log
            await self._pause(attempts, deadline_s, str(doubt or "") or _condition(log))
            attempts += 1
        return log

    async def find(self, view: View) -> Glsn | None:
        """Of one segment; None: it cannot be told now."""
        try:
            known: SequencerTail | None = await self._ask(view)
        except (Retryable, Sealed, NotFound):
            known = None
        await self._segments.log.look()  # not what somebody asked for before
        return tail(self._segments.view(view.stream).state, known)

    async def _ask(self, view: View) -> SequencerTail | None:
        if view.state.closed:
            return None
        question = pb.Frame(find_copyset_tail=pb.FindCopysetTail(loglet_id=view.loglet))
        answer = (await self._sequencers.ask(view, question, ANSWER_S)).copyset_tail
        return SequencerTail(answer.epoch, answer.tail)

    def _tail(self, log: pb.Log, known: SequencerTail | None) -> Glsn | None:
        stream = _active(log)
        if stream is None:
            return log.tail
        try:
            return tail(self._segments.view(stream).state, known)
        except SegmentGoneError:
            return None

    async def _pause(self, attempts: int, deadline_s: float, doubt: str) -> None:
        wait_s = self._sequencers.pause_s(attempts)
        if asyncio.get_running_loop().time() + wait_s > deadline_s:
            raise Unavailable(
                f"where log {self._segments.log.name!r} ends could not be found out within "
                f"{self._timeout_s:g} s, last: {doubt or 'old epochs are being recovered'}; "
                "try again, and see `loom status`"
            )
        await asyncio.sleep(wait_s)


def _condition(log: pb.Log) -> str:
    """What the metadata repository says of the active stream: whom it waits for, say."""
    active = _active(log)
    return next((str(s.condition) for s in log.streams if s.log_stream_id == active), "")


def _active(log: pb.Log) -> StreamId | None:
    """The stream of the active segment, if its protocol is this one."""
    if not log.segments or log.segments[-1].protocol != PROTOCOL:
        return None
    loglet = log.segments[-1].loglet_id
    streams = (stream for stream in log.streams if stream.loglet_id == loglet)
    return next((s.log_stream_id for s in streams if s.HasField("copyset")), None)
