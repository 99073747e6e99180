"""Determines the outcome of appends that are repeated, or whose sequencer ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from loomlog.core.copyset.log_state import is_recovered
from loomlog.core.copyset.messages import FoundBatch, GetState, LogState
from loomlog.core.copyset.procedures import (
    Appended,
    Nowhere,
    Resolution,
    Unresolved,
    look_back,
    resolve,
)
from loomlog.core.copyset.record import Epoch, Lsn, epoch_of
from loomlog.errors import AppendUnknown
from loomlog.limits import REQUEST_TIMEOUT_S
from loomlog.node.copyset.asker import ANSWER_S
from loomlog.node.copyset.recovery import RETRY
from loomlog.node.copyset.sequencer import OpenAppend, OpenEnd, SequencerContext
from loomlog.node.workers import insist
from loomlog.types import LogId

STATE_S: Final = 0.25  # the list of live nodes is fetched at most this often
LOOK_BACK_S: Final = ANSWER_S + 0.5  # for nodes that tell which batches they were given


class Resolver:
    """Determines whether appends are in one log."""

    def __init__(self, log: LogId, context: SequencerContext) -> None:
        self._log = log
        self._context = context

    async def answer_all(
        self, epoch: Epoch, open_ends: list[OpenEnd], running: Callable[[], Epoch]
    ) -> None:
        """Answer appends that were in progress when an epoch ended, once the next sequencer has
        recovered it. `running` returns the epoch of the sequencer here; 0: there is none."""
        left = dict(open_ends)
        reason = f"epoch {epoch} is not recovered yet"

        async def answer(append: OpenAppend, lsn: Lsn) -> None:
            outcome = await self._find_out(lsn)
            del left[append]
            match outcome:
                case Appended(record):
                    append.succeeded(record.first)
                case Nowhere():
                    append.not_taken(running())
                case Unresolved(reason):
                    self.answer_unknown(append, reason)

        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._state_when(lambda state: state.last_clean >= epoch)
                reason = "too few nodes answer"
                await asyncio.gather(*(answer(*open_end) for open_end in open_ends))
        except TimeoutError:
            for append in left:
                self.answer_unknown(append, reason)

    def answer_unknown(self, append: OpenAppend, reason: str) -> None:
        append.failed(
            AppendUnknown(
                f"loglet {self._log}: whether the batch was appended is not known: {reason}"
            )
        )

    async def closed_at(self) -> Epoch:
        """Wait until the closed log is recovered; return its last epoch, which has no appends."""
        return (await self._state_when(is_recovered)).epoch

    async def is_in_none(self, append: OpenAppend, before: Epoch) -> bool:
        """Search for an append in the epochs before a given one. If it is in one of them, answer it
        and return False."""
        header = append.header

        async def attempt() -> FoundBatch | None:
            known = await self._context.epochs.get(self._log, STATE_S)
            steps = look_back(self._log, header.producer_id, header.sequence, known.state)
            return await self._context.asker.run(steps)

        async with asyncio.timeout(LOOK_BACK_S):
            found: FoundBatch = await insist(attempt, RETRY)
        certain = found.certain
        for lsn in (lsn for lsn in found.lsns if epoch_of(lsn) < before):
            outcome = await self._find_out(lsn)
            if isinstance(outcome, Appended):
                append.succeeded(outcome.record.first)
                return False
            if isinstance(outcome, Unresolved):
                certain = False
        if not certain:
            self.answer_unknown(append, "too few nodes remember what they were given")
        return certain

    async def _state_when(self, holds: Callable[[LogState], bool]) -> LogState:
        """Ask the epoch store until the condition holds."""

        async def attempt() -> LogState | None:
            state = await self._context.epochs.ask(GetState(self._log))
            return state if state is not None and holds(state) else None

        return await insist(attempt, RETRY)

    async def _find_out(self, lsn: Lsn) -> Resolution:
        async def attempt() -> Resolution | None:
            outcome = await self._context.asker.run(resolve(self._log, lsn))
            return None if isinstance(outcome, Unresolved) and not outcome.for_good else outcome

        outcome: Resolution = await insist(attempt, RETRY)
        return outcome
