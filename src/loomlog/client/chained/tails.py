"""How far a log reaches whose active segment is of protocol `chained`: as its tails say.

What was handed out since is not counted: nobody may ever write it, and the next sequencer would
hand it out again.
"""

from __future__ import annotations

import asyncio

from loomlog.client.chained.chains import PROTOCOL, Chains, SegmentGoneError
from loomlog.client.metadata import CachedLog
from loomlog.core.chained.outcomes import Interrupted
from loomlog.core.chained.reading import find_tail
from loomlog.errors import Unavailable
from loomlog.types import Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb


class ChainedTails:
    """Those of one log, for one client."""

    def __init__(self, log: CachedLog, chains: Chains, timeout_s: float) -> None:
        self._log = log
        self._chains = chains
        self._timeout_s = timeout_s

    async def complete(self, log: pb.Log) -> pb.Log:
        """The log as it is now, with its tail: all that was acknowledged before is at or below."""
        reason = "it is being switched"
        try:
            async with asyncio.timeout(self._timeout_s):
                attempts = 0
                while (stream := _active(log := await self._log.look())) is not None:
                    found = await self._find(stream, attempts)
                    if isinstance(found, int):
                        log.tail = found
                        break
                    reason = found
                    attempts += 1
        except TimeoutError:
            raise Unavailable(
                f"where log {self._log.name!r} ends could not be found out within "
                f"{self._timeout_s:g} s, last: {reason}; try again, and see `loom status`"
            ) from None
        return log

    async def _find(self, stream: StreamId, attempts: int) -> Glsn | str:
        """Or why it is worth to look again."""
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
    """The stream of the active segment, if its protocol is this one."""
    if not log.segments or log.segments[-1].protocol != PROTOCOL:
        return None
    loglet = log.segments[-1].loglet_id
    streams = (stream for stream in log.streams if stream.loglet_id == loglet)
    return next((s.log_stream_id for s in streams if s.HasField("projection")), None)
