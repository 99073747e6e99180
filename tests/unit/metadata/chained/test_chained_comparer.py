"""A loss that a node proves is recorded in a new epoch; one that does not begin is not forced."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from loomlog.core.backoff import Backoff
from loomlog.core.chained.chain import Projection, Replica, Unheard
from loomlog.core.chained.comparison import Comparison
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.reconfigure import Goal
from loomlog.errors import Unavailable
from loomlog.metadata import background
from loomlog.metadata.background import Background
from loomlog.metadata.chained.comparer import ChainComparer
from loomlog.metadata.chained.epochs import Epochs

LOGLET = 7
HEAD, AWAY = Replica(1, LOGLET, 0, 11), Replica(2, LOGLET, 0, 12)
PROJECTION = Projection(LOGLET, 2, 1, 5, ((HEAD,),), 1)
RECORD = ChainedRecord(
    LOGLET, 3, 4, PROJECTION, made=True, dropping=(AWAY,), unheard=(Unheard(AWAY, 2, 5),)
)


class NoEpochs(Epochs):
    """No epoch begins; whoever wants one is counted."""

    def __init__(self) -> None:
        """Let one replica prove that something is lost."""
        self.attempts = 0
        found = Comparison((AWAY,), (AWAY,), (range(3, 4),))

        async def drive(loglet: int, steps: object) -> Comparison:
            return found

        there: Any = SimpleNamespace(
            segment_of=lambda record: record,
            get=lambda loglet: RECORD,
            drive=drive,
            reachable=lambda node: True,
            lost=lambda replica: False,
            removed_for_good=lambda node: False,
        )
        self.catalog = self.records = self.driver = self.nodes = there
        self.changed = lambda loglet: self.comparer.look(RECORD)  # as the upkeep does
        self.comparer: ChainComparer

    async def attempt(
        self, loglet: int, goal: Goal, reason: str, *, after: int | None = None
    ) -> Projection:
        self.attempts += 1
        raise Unavailable("a node does not answer")


async def test_a_failed_attempt_is_repeated_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RETRY", Backoff(3600.0, 3600.0))
    epochs, tasks, repaired = NoEpochs(), Background(), list[int]()
    epochs.comparer = ChainComparer(epochs, tasks, repaired.append)
    epochs.comparer.look(RECORD)
    for _ in range(100):
        await asyncio.sleep(0)
    assert (epochs.attempts, repaired) == (1, [LOGLET])  # what was sealed needs another epoch
    await tasks.stop()
