"""Finds the tail of a log whose active segment is of protocol `copyset`.

The sequencer knows what was acknowledged in its epoch, the metadata repository what was recovered
before. Asking the sequencer first and then the repository shows whether a newer sequencer may have
acknowledged more.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.client.loglets.copyset.known_segments import SegmentGoneError, Segments, View
from loomlog.client.loglets.copyset.sequencers import Sequencers
from loomlog.core.copyset.landmarks import SequencerTail, tail
from loomlog.core.copyset.log_state import awaited
from loomlog.errors import LoomError, NotFound, Retryable, Sealed, Unavailable
from loomlog.protocol_names import COPYSET
from loomlog.types import Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

HOPELESS_S: Final = 1.0  # how long to try while nodes are missing that are needed to find it
ANSWER_S: Final = 2.0  # until a silent sequencer is looked for elsewhere


class CopysetTail:
    """Finds the tail of one log."""

    def __init__(self, segments: Segments, sequencers: Sequencers, timeout_s: float) -> None:
        self._segments = segments
        self._sequencers = sequencers
        self._timeout_s = timeout_s

    async def complete(self, log: pb.Log) -> pb.Log:
        """Return the current log with its tail."""
        begun_s = asyncio.get_running_loop().time()
        deadline_s = begun_s + self._timeout_s
        attempts = 0
        while (stream := _active(log)) is not None:
            doubt: LoomError | None = None
            known: SequencerTail | None = None
            try:
                known = await self._ask(self._segments.view(stream))
            except (Retryable, Sealed, NotFound, SegmentGoneError) as error:
                doubt = error
            log = await self._segments.log.fetch()
            if (found := self._tail(log, known)) is not None:
                log.tail = max(log.tail, found)
                log.tail_unknown = False
                return log
            if self._waits_for_nodes(log):
                deadline_s = min(deadline_s, begun_s + HOPELESS_S)
            await self._pause(attempts, deadline_s, _condition(log) or str(doubt or ""))
            attempts += 1
        return log

    async def find(self, view: View) -> Glsn | None:
        """Return the tail of one segment; None if it cannot be found now."""
        try:
            known: SequencerTail | None = await self._ask(view)
        except (Retryable, Sealed, NotFound):
            known = None
        await self._segments.log.fetch()  # after the sequencer's answer, so not shared
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

    def _waits_for_nodes(self, log: pb.Log) -> bool:
        """Return whether nodes must be started before the tail can be found."""
        stream = _active(log)
        if stream is None:
            return False
        try:
            state, nodes = self._segments.view(stream)[2:]
        except SegmentGoneError:
            return False
        alive = [node.node_id for node in nodes.values() if node.alive]
        over = state.epoch if state.sequencer not in alive else state.epoch - 1
        return bool(awaited(state, alive, over))

    async def _pause(self, attempts: int, deadline_s: float, doubt: str) -> None:
        wait_s = self._sequencers.pause_s(attempts)
        if asyncio.get_running_loop().time() + wait_s > deadline_s:
            raise Unavailable(
                f"the tail of log {self._segments.log.name!r} is not known now: "
                f"{doubt or 'old epochs are being recovered'}; try again, and see `loom status`"
            )
        await asyncio.sleep(wait_s)


def _condition(log: pb.Log) -> str:
    """Return the condition of the active stream, e.g. which nodes it waits for."""
    active = _active(log)
    return next((str(s.condition) for s in log.streams if s.log_stream_id == active), "")


def _active(log: pb.Log) -> StreamId | None:
    """Return the stream of the active segment if its protocol is `copyset`."""
    if log.segments[-1].protocol != COPYSET:
        return None
    loglet = log.segments[-1].loglet_id
    streams = (stream for stream in log.streams if stream.loglet_id == loglet)
    return next((s.log_stream_id for s in streams if s.HasField("copyset")), None)
