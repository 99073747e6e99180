"""Finds the tail of a log whose active segment is of protocol `chained`, at the chains' tails.

Positions that were only assigned do not count: they may never be written, and the next sequencer
would assign them again.
"""

from __future__ import annotations

import asyncio

from loomlog.client.loglets.chained.chains import Chains, SegmentGoneError
from loomlog.client.servers import CachedLog
from loomlog.core.chained.messages import Interrupted
from loomlog.core.chained.read import find_tail
from loomlog.errors import Unavailable
from loomlog.protocol_names import CHAINED
from loomlog.types import Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb


class ChainedTail:
    """Finds the tail of one log."""

    def __init__(self, log: CachedLog, chains: Chains, timeout_s: float) -> None:
        self._log = log
        self._chains = chains
        self._timeout_s = timeout_s

    async def complete(self) -> pb.Log:
        """Return the current log with its tail."""
        reason = "it is being switched"
        try:
            async with asyncio.timeout(self._timeout_s):
                attempts = 0
                while (stream := _active(log := await self._log.fetch())) is not None:
                    found = await self._find(stream, attempts)
                    if isinstance(found, int):
                        log.tail = found
                        break
                    reason = found
                    attempts += 1
        except TimeoutError:
            raise Unavailable(
                f"the tail of log {self._log.name!r} could not be found within "
                f"{self._timeout_s:g} s, last: {reason}; try again, and see `loom status`"
            ) from None
        return log

    async def _find(self, stream: StreamId, attempts: int) -> Glsn | str:
        """Return the segment's tail, or a reason to try again."""
        try:
            view = self._chains.view(stream)
            outcome = await self._chains.run(view, find_tail(view.projection))
            if isinstance(outcome, int):
                return outcome
            assert isinstance(outcome, Interrupted)
            await self._chains.recover(view, outcome, attempts)
        except SegmentGoneError as error:
            return str(error)
        return outcome.reason


def _active(log: pb.Log) -> StreamId | None:
    """Return the stream of the active segment if its protocol is `chained`."""
    if log.segments[-1].protocol != CHAINED:
        return None
    loglet = log.segments[-1].loglet_id
    streams = (stream for stream in log.streams if stream.loglet_id == loglet)
    return next((s.log_stream_id for s in streams if s.HasField("projection")), None)
