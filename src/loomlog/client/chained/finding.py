"""One entry by its position: at the tails, in one round trip when it is there.

Where nothing is although somebody was given the place, its writer is waited for; who takes too long
is overtaken: the place is filled, and nothing will ever stand there.
"""

from __future__ import annotations

import asyncio

from loomlog.batch import read_header
from loomlog.client.chained.chains import Chains
from loomlog.client.pieces import Referred, decode, refers
from loomlog.core.chained.block import Block
from loomlog.core.chained.filling import decide_at
from loomlog.core.chained.messages import Found
from loomlog.core.chained.outcomes import Interrupted, NotWritten, Reading, Trimmed
from loomlog.core.chained.reading import find_end, read_at
from loomlog.errors import NotFound, NotYetWritten, Timeout
from loomlog.errors import Trimmed as TrimmedError
from loomlog.types import Entry, Glsn, StreamId

LOOK_S = 0.02  # how often a place that is about to be written is looked at


class ChainedFinder:
    """Reads of one client from the chained segments of one log."""

    def __init__(self, chains: Chains, name: str, hole_timeout_s: float) -> None:
        self._chains = chains
        self._name = name
        self._hole_timeout_s = hole_timeout_s

    async def read(
        self, stream: StreamId, position: Glsn, deadline_s: float
    ) -> Entry | Referred | None:
        """None: the segment has ended before that position. NotFound: there is a hole."""
        loop = asyncio.get_running_loop()
        fill_s = min(loop.time() + self._hole_timeout_s, deadline_s)
        view = self._chains.view(stream)
        attempts = 0
        while True:
            steps = read_at if loop.time() < fill_s else decide_at
            outcome: Reading = await self._chains.run(view, steps(view.projection, position))
            if isinstance(outcome, NotWritten):
                end = await self._chains.run(view, find_end(view.projection))
                if isinstance(end, int) and end <= position:
                    if view.projection.closed:
                        return None
                    raise self._not_yet(position, end)
                if isinstance(end, int):
                    await asyncio.sleep(LOOK_S)
                    continue
                outcome = end
            match outcome:
                case Found(block):
                    return self._entry(block, position)
                case Trimmed(trimmed):
                    raise TrimmedError(
                        f"position {position} of log {self._name!r} was trimmed; "
                        f"the first one kept is {trimmed + 1}"
                    )
                case Interrupted(reason):
                    if loop.time() >= deadline_s:
                        raise Timeout(
                            f"position {position} of log {self._name!r} could not be read in time, "
                            f"last: {reason}; try again, and see `loom status`"
                        )
                    view = await self._chains.recover(view, outcome, attempts)
                    attempts += 1

    def _entry(self, block: Block, position: Glsn) -> Entry | Referred:
        if block.is_junk:
            raise NotFound(
                f"nothing stands at position {position} of log {self._name!r}, and nothing ever "
                f"will: go on at {block.end}"
            )
        index = position - block.first
        piece = decode(block.batch, refers(read_header(block.batch)), index, 1)
        return piece if isinstance(piece, Referred) else piece.batch.entry(index)

    def _not_yet(self, position: Glsn, end: Glsn) -> NotYetWritten:
        return NotYetWritten(
            f"position {position} of log {self._name!r} is not written yet; the last one is "
            f"{end - 1}"
        )
