"""Finds entries of chained segments by their positions, and the tail of a log.

An entry takes one round trip if it is there. If it is not there although the position was assigned,
the finder waits for its writer. After the hole timeout it fills the position, which then never has
an entry.

Positions that were only assigned do not count for the tail: they may never be written, and the next
sequencer would assign them again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.batch import read_header
from loomlog.client.cached_log import CachedLog
from loomlog.client.loglets.chained.chains import Chains, ChainView
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.client.subscribe.pieces import Single, decode_one
from loomlog.core.chained.chain import Block
from loomlog.core.chained.messages import Found, Interrupted, NotWritten, Reading, Trimmed
from loomlog.core.chained.read import (
    decide_at,
    find_end,
    find_end_of_loss,
    find_tail,
    read_at,
)
from loomlog.errors import (
    DataLoss,
    LoomError,
    NotFound,
    NotYetWritten,
    Timeout,
    Unavailable,
    seconds,
)
from loomlog.errors import Trimmed as TrimmedError
from loomlog.protocol_names import CHAINED
from loomlog.types import Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

LOOK_S: Final = 0.02  # between reads of a position that is about to be written


class ChainedFinder:
    """Reads from the chained segments of one log by position."""

    def __init__(self, chains: Chains, name: str, hole_timeout_s: float) -> None:
        self._chains = chains
        self._name = name
        self._hole_timeout_s = hole_timeout_s

    async def read(self, stream: StreamId, position: Glsn, deadline_s: float) -> Single | LoomError:
        """Implement Loglet.read."""
        now_s = asyncio.get_running_loop().time
        fill_s = min(now_s() + self._hole_timeout_s, deadline_s)
        view = self._chains.view(stream)
        attempts = 0
        while True:
            look = read_at if now_s() < fill_s else decide_at
            outcome: Reading = await self._chains.run(view, look(view.projection, position))
            if isinstance(outcome, Found):
                if view.projection.is_lost(outcome.block):
                    raise await self._lost(view, outcome.block, position)
                return self._entry(outcome.block, position)
            if isinstance(outcome, NotWritten):
                end = await self._chains.run(view, find_end(view.projection))
                if isinstance(end, int):
                    if end > position:  # it was assigned to a writer
                        await asyncio.sleep(LOOK_S)
                        continue
                    if view.projection.closed:
                        return Unavailable(f"position {position} is in another segment by now")
                    raise self._not_yet(position, end)
                outcome = end
            if isinstance(outcome, Trimmed):
                raise self._trimmed(position, outcome.position)
            if now_s() >= deadline_s:
                raise self._overdue(position, outcome.reason)
            view = await self._chains.recover(view, outcome, attempts)
            attempts += 1

    async def _lost(self, view: ChainView, block: Block, position: Glsn) -> DataLoss:
        end = await self._chains.run(view, find_end_of_loss(view.projection, block))
        return DataLoss(
            f"position {position} of log {self._name!r} is lost with all its replicas: "
            f"continue at {end if isinstance(end, int) else block.end}"
        )

    def _entry(self, block: Block, position: Glsn) -> Single:
        if block.is_junk:
            raise NotFound(
                f"position {position} of log {self._name!r} has no entry and never will: "
                f"continue at {block.end}"
            )
        return decode_one(block.batch, read_header(block.batch), position - block.first)

    def _not_yet(self, position: Glsn, end: Glsn) -> NotYetWritten:
        return NotYetWritten(
            f"position {position} of log {self._name!r} is not written yet; the last one is "
            f"{end - 1}"
        )

    def _trimmed(self, position: Glsn, trimmed: Glsn) -> TrimmedError:
        return TrimmedError(
            f"position {position} of log {self._name!r} was trimmed; "
            f"the first one kept is {trimmed + 1}"
        )

    def _overdue(self, position: Glsn, reason: str) -> Timeout:
        return Timeout(
            f"position {position} of log {self._name!r} could not be read in time, last: {reason}; "
            "try again, and see `loom status`"
        )


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
                        log.tail, log.tail_unknown = found, False
                        break
                    reason = found
                    attempts += 1
        except TimeoutError:
            raise Unavailable(
                f"the tail of log {self._log.name!r} could not be found within "
                f"{seconds(self._timeout_s)}, last: {reason}; try again, and see `loom status`"
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
