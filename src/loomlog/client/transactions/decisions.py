"""Determines for readers whether the transactions of batches were committed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from loomlog import limits, protocol_names
from loomlog.batch import Cell
from loomlog.client.context import Client, Retries
from loomlog.client.loglets.contract import Fixed
from loomlog.client.loglets.registry import Loglets
from loomlog.client.subscribe.pieces import Piece, Pieces, Stored
from loomlog.core.transactions import DECISIONS_LOG
from loomlog.errors import DataLoss, NotFound, Retryable
from loomlog.types import Gap

CACHED_MAX: Final = 10_000  # decisions that a client remembers
_AHEAD_MAX: Final = 100  # pieces to read ahead while waiting for a decision
_AHEAD_BYTES: Final = 4 * limits.MIB


class Decisions:
    """Reads the log of decisions. A decision never changes."""

    def __init__(self, loglets: Loglets, client: Client) -> None:
        """A cell that stays empty for `hole_timeout_s` is filled, which voids its transaction."""
        self._loglets = loglets
        self._patience_s = client.settings.hole_timeout_s
        self._rng = client.rng
        self._subscriptions = client.subscriptions
        self._cached: dict[Cell, bool] = {}  # oldest first

    def cached(self, cell: Cell) -> bool | None:
        """Return a decision that was read before, or None."""
        return self._cached.get(cell)

    async def is_committed(self, cell: Cell) -> bool:
        """Return whether the transaction of a cell was committed; wait a moment for its writer."""
        cached = self._cached.get(cell)
        return await self.settle(cell, self._patience_s) if cached is None else cached

    async def await_committed(self, cell: Cell, is_wanted: Callable[[], bool]) -> bool:
        """Like `is_committed`, but wait until the log of decisions can be read, for as long as
        `is_wanted` returns True."""
        retries = Retries(self._rng)
        while True:
            try:
                return await self.is_committed(cell)
            except Retryable:
                self._subscriptions.check_open()
                if not is_wanted():
                    raise
                await retries.pause()

    async def settle(self, cell: Cell, patience_s: float) -> bool:
        """Return whether the transaction of a cell was committed, filling the cell if it stays
        empty for `patience_s`. Raise DataLoss if the decision is lost."""
        loglet = self._loglets.of(protocol_names.DECISIONS)
        try:
            committed = await loglet.settle(fixed_of(cell), cell.transaction, patience_s)
        except NotFound as error:
            raise DataLoss(
                f"log {DECISIONS_LOG} was deleted, or is not known since the metadata was restored "
                "from an older copy, and the decision on their transaction is gone with it: only a "
                "newer copy of the metadata may bring it back"
            ) from error
        except DataLoss as error:
            raise DataLoss(
                f"the decision on their transaction, in {DECISIONS_LOG}, is gone: {error}"
            ) from error
        self._cached[cell] = committed
        if len(self._cached) > CACHED_MAX:
            del self._cached[next(iter(self._cached))]
        return committed


def cell_of(fixed: Fixed, transaction: int) -> Cell:
    position, _, epoch = fixed.place
    return Cell(transaction, position, epoch, fixed.stream)


def fixed_of(cell: Cell) -> Fixed:
    place = [cell.position, 1, cell.epoch]
    return Fixed(protocol_names.DECISIONS, cell.stream, cell.position - 1, cell.position, place)


class OnlyCommitted:
    """Filters out the pieces of transactions that were not committed, for one consumer at a time.

    While it waits for one decision, it also requests those for the next pieces."""

    def __init__(
        self, pieces: Pieces[Stored], log: str, decisions: Decisions, *, gaps: bool
    ) -> None:
        self._pieces = pieces
        self._log = log
        self._decisions = decisions
        self._gaps = gaps
        self._held: deque[Stored] = deque()  # not delivered yet; the first waits for a decision
        self._held_bytes = 0
        self._requested: dict[Cell, asyncio.Task[bool]] = {}
        self._closed = False

    async def next(self) -> Stored | None:
        while True:
            if not self._held:
                piece = await self._pieces.next()
                if piece is None or _cell(piece) is None:
                    return piece
                self._hold(piece)
            piece = self._held[0]  # remains there if this is cancelled
            cell = _cell(piece)
            try:
                shown = self._shown(piece, cell is None or await self._decided(cell))
            except DataLoss as error:
                shown = self._lost(piece, error)
            self._release()
            if shown is not None:
                return shown

    def next_ready(self) -> Stored | None:
        while (piece := self._held[0] if self._held else self._pieces.next_ready()) is not None:
            cell = _cell(piece)
            committed = True if cell is None else self._decisions.cached(cell)
            if committed is None:
                if not self._held:
                    self._hold(piece)
                self._request_ahead()
                return None
            self._release()
            if (shown := self._shown(piece, committed)) is not None:
                return shown
        return None

    def _hold(self, piece: Stored) -> None:
        self._held.append(piece)
        self._held_bytes += 0 if isinstance(piece, Gap) else piece.header.size

    def _release(self) -> None:
        if self._held:
            piece = self._held.popleft()
            self._held_bytes -= 0 if isinstance(piece, Gap) else piece.header.size

    def _request_ahead(self) -> None:
        while len(self._held) < _AHEAD_MAX and self._held_bytes < _AHEAD_BYTES:
            if (piece := self._pieces.next_ready()) is None:
                break
            self._hold(piece)
        self._requested = {cell: task for cell, task in self._requested.items() if not task.done()}
        for cell in filter(None, map(_cell, self._held)):
            if self._decisions.cached(cell) is None and cell not in self._requested:
                self._request(cell)

    def _request(self, cell: Cell) -> None:
        task = self._requested[cell] = asyncio.create_task(
            self._decisions.await_committed(cell, lambda: not self._closed)
        )
        # Mark an error as retrieved, in case nothing awaits the task.
        task.add_done_callback(lambda _: task.cancelled() or task.exception())

    async def _decided(self, cell: Cell) -> bool:
        if (cached := self._decisions.cached(cell)) is not None:
            return cached
        self._request_ahead()
        return await asyncio.shield(self._requested[cell])

    def _lost(self, piece: Stored, error: DataLoss) -> Gap:
        lost = _as_gap(piece, "dataloss")
        if self._gaps:
            return lost
        raise DataLoss(
            f"positions {lost.first} to {lost.last} of log {self._log!r} cannot be read: {error}; "
            f"continue at {lost.last + 1}"
        ) from error

    def _shown(self, piece: Stored, committed: bool) -> Stored | None:
        if committed:
            return piece
        return _as_gap(piece, "hole") if self._gaps else None

    def close(self) -> None:
        self._closed = True
        awaited = _cell(self._held[0]) if self._held else None  # perhaps by the consumer
        for cell, task in self._requested.items():
            if cell != awaited:
                task.cancel()
        self._pieces.close()


def _as_gap(piece: Stored, kind: str) -> Gap:
    assert isinstance(piece, Piece)
    return Gap(piece.last_position - piece.rows + 1, piece.last_position, kind)


def _cell(piece: Stored) -> Cell | None:
    return piece.header.cell if isinstance(piece, Piece) else None
