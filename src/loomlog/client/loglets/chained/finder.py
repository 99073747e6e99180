"""Reads one entry by its position from the chain's tail, in one round trip if it is there.

If it is not there although the position was assigned, the finder waits for its writer. After the
hole timeout it fills the position, which then never has an entry.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.batch import read_header
from loomlog.client.loglets.chained.chains import Chains, View
from loomlog.client.subscribe.pieces import Referred, decode, refers
from loomlog.core.chained.chain import Block
from loomlog.core.chained.messages import Found, NotWritten, Reading, Trimmed
from loomlog.core.chained.read import decide_at, find_end, read_at
from loomlog.errors import DataLoss, LoomError, NotFound, NotYetWritten, Timeout, Unavailable
from loomlog.errors import Trimmed as TrimmedError
from loomlog.types import Entry, Glsn, StreamId

LOOK_S: Final = 0.02  # between reads of a position that is about to be written


class ChainedFinder:
    """Reads from the chained segments of one log by position."""

    def __init__(self, chains: Chains, name: str, hole_timeout_s: float) -> None:
        self._chains = chains
        self._name = name
        self._hole_timeout_s = hole_timeout_s

    async def read(
        self, stream: StreamId, position: Glsn, deadline_s: float
    ) -> Entry | Referred | LoomError:
        """Implement Loglet.read."""
        now_s = asyncio.get_running_loop().time
        fill_s = min(now_s() + self._hole_timeout_s, deadline_s)
        view = self._chains.view(stream)
        attempts = 0
        while True:
            look = read_at if now_s() < fill_s else decide_at
            outcome: Reading = await self._chains.run(view, look(view.projection, position))
            if isinstance(outcome, Found):
                return self._entry(view, outcome.block, position)
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

    def _entry(self, view: View, block: Block, position: Glsn) -> Entry | Referred:
        if view.projection.is_lost(block):
            raise DataLoss(
                f"position {position} of log {self._name!r} is lost with all its replicas: go on "
                f"at {block.end}"
            )
        if block.is_junk:
            raise NotFound(
                f"position {position} of log {self._name!r} has no entry and never will: go on at "
                f"{block.end}"
            )
        index = position - block.first
        piece = decode(block.batch, refers(read_header(block.batch)), index, 1)
        return piece if isinstance(piece, Referred) else piece.batch.entry(index)

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
