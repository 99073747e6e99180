"""Readers of transactions show committed entries, and wait for undecided ones."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
from poll import until

from loomlog import batch as batches
from loomlog import columns
from loomlog.batch import Cell
from loomlog.client.subscribe.pieces import Piece, Stored
from loomlog.client.subscribe.subscription import OpenSubscriptions
from loomlog.client.transactions.decisions import Decisions, OnlyCommitted
from loomlog.columns.writer import encode
from loomlog.errors import DataLoss, LoomError, Timeout, Unavailable
from loomlog.types import Gap


class Cells:
    """The log of decisions: answers by position, in order; the last one stays."""

    def __init__(self, **answers: list[bool | LoomError]) -> None:
        self.answers = answers
        self.asked: list[int] = []

    async def settle(self, fixed: Any, producer_id: int, patience_s: float) -> bool:
        self.asked.append(fixed.last)
        answers = self.answers[f"at{fixed.last}"]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        await asyncio.sleep(0)
        if isinstance(answer, LoomError):
            raise answer
        return answer


class Arrived:
    """Pieces that have arrived."""

    def __init__(self, *pieces: Stored) -> None:
        self.waiting = deque(pieces)
        self.closed = False

    async def next(self) -> Stored | None:
        return self.next_ready()

    def next_ready(self) -> Stored | None:
        return self.waiting.popleft() if self.waiting else None

    def close(self) -> None:
        self.closed = True


def piece(first: int, rows: int = 1, cell: int = 0) -> Piece:
    batch = encode([b"x"] * rows, timestamps_us=1)
    if cell:
        batches.assign_cell(batch, Cell(100 + cell, cell, 1, 5))
    batches.assign_place(batch, 1, 1, first)
    return Piece(columns.decode(batch), 0, rows)


class Rig:
    """A reader of pieces, and the state that it shares with other readers of its client."""

    def __init__(self, cells: Cells, *pieces: Stored, gaps: bool = True) -> None:
        self.subscriptions = OpenSubscriptions()
        client = SimpleNamespace(
            settings=SimpleNamespace(hole_timeout_s=1.0),
            rng=random.Random(1),
            subscriptions=self.subscriptions,
        )
        loglets = SimpleNamespace(of=lambda protocol: cells)
        decisions = Decisions(cast(Any, loglets), cast(Any, client))
        self.reader = OnlyCommitted(Arrived(*pieces), "orders", decisions, gaps=gaps)

    async def all(self) -> list[tuple[int, int, str]]:
        found = []
        while (shown := await self.reader.next()) is not None:
            if isinstance(shown, Gap):
                found.append((shown.first, shown.last, shown.kind))
            else:
                assert isinstance(shown, Piece)
                found.append((shown.last_position - shown.rows + 1, shown.last_position, ""))
        return found


async def test_what_is_void_is_a_hole_and_the_rest_stays_in_order() -> None:
    cells = Cells(at1=[True], at2=[False])
    pieces = piece(1), piece(2, 3, cell=1), piece(5, 2, cell=2), piece(7), piece(8, 1, cell=2)
    shown = [(1, 1, ""), (2, 4, ""), (5, 6, "hole"), (7, 7, ""), (8, 8, "hole")]
    assert await Rig(cells, *pieces).all() == shown
    assert sorted(cells.asked) == [1, 2]
    without = [each for each in shown if not each[2]]
    assert await Rig(Cells(at1=[True], at2=[False]), *pieces, gaps=False).all() == without


async def test_a_reader_waits_while_decisions_cannot_be_read() -> None:
    cells = Cells(at1=[Timeout("no answer"), Unavailable("no leader"), True])
    assert await Rig(cells, piece(1, cell=1)).all() == [(1, 1, "")]
    assert cells.asked == [1, 1, 1]


async def test_a_reader_whose_client_was_closed_does_not_wait() -> None:
    rig = Rig(Cells(at1=[Unavailable("this connection was closed")]), piece(1, cell=1))
    rig.subscriptions.close()
    with pytest.raises(Unavailable, match="this client was closed"):
        await rig.reader.next()


async def test_a_reader_that_was_closed_stops_asking() -> None:
    cells = Cells(at1=[Unavailable("no leader")])
    rig = Rig(cells, piece(1, cell=1))
    consumer = asyncio.create_task(rig.reader.next())
    await until(lambda: bool(cells.asked))
    rig.reader.close()
    with pytest.raises(Unavailable, match="no leader"):
        await consumer


async def test_what_is_not_known_any_more_is_lost_and_the_reader_goes_on() -> None:
    cells = Cells(at1=[DataLoss("position 1 was trimmed")], at2=[True])
    pieces = piece(1, 2, cell=1), piece(3, cell=2)
    assert await Rig(cells, *pieces).all() == [(1, 2, "dataloss"), (3, 3, "")]
    rig = Rig(cells, *pieces, gaps=False)
    with pytest.raises(DataLoss, match=r"positions 1 to 2 of log 'orders' .* continue at 3"):
        await rig.reader.next()


async def test_what_has_arrived_is_shown_only_if_it_is_decided() -> None:
    rig = Rig(Cells(at1=[True]), piece(1), piece(2, cell=1), piece(3))
    shown = rig.reader.next_ready()
    assert isinstance(shown, Piece)
    assert shown.last_position == 1
    assert rig.reader.next_ready() is None
    assert await rig.all() == [(2, 2, ""), (3, 3, "")]
