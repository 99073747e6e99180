"""A loss that a node proves is recorded in a new epoch; one that does not begin is not forced."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loomlog.core.backoff import Backoff
from loomlog.core.chained.chain import Projection, Replica, Unheard
from loomlog.core.chained.comparison import Comparison
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import ACKNOWLEDGED_MAX
from loomlog.core.chained.reconfigure import Goal
from loomlog.errors import Busy, Unavailable
from loomlog.metadata import background
from loomlog.metadata.background import Background
from loomlog.metadata.chained import comparer
from loomlog.metadata.chained.comparer import ChainComparer
from loomlog.metadata.chained.epochs import Epochs
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

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


class SlowEpochs(NoEpochs):
    """A test says when it is known what is lost; then an epoch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.may_find = asyncio.Event()
        self.found = 0

        async def drive(loglet: int, steps: object) -> list[range]:
            self.found += 1
            await self.may_find.wait()
            return [range(3, 4)]

        self.driver: Any = SimpleNamespace(drive=drive)

    async def attempt(
        self, loglet: int, goal: Goal, reason: str, *, after: int | None = None
    ) -> Projection:
        self.attempts += 1
        return PROJECTION


def report(it: ChainComparer, *addresses: int) -> asyncio.Task[pb.Frame]:
    asked = pb.ReportForgotten(loglet_id=LOGLET, addresses=addresses)
    answer = it.answer(cast(Connection, None), pb.Frame(report_forgotten=asked))
    return asyncio.get_running_loop().create_task(answer)


async def turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def test_epochs_that_writers_cause_are_apart_however_long_one_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparer, "GATHER_S", 0.0)
    monkeypatch.setattr(comparer, "PAUSE_S", 3600.0)
    epochs, tasks = SlowEpochs(), Background()
    it = ChainComparer(epochs, tasks, lambda loglet: None)
    first = report(it, 3)
    await turns()
    later = [report(it, 2), report(it, 4)]  # while the first one is looked for
    await turns()
    epochs.may_find.set()
    await first
    await turns()
    assert (epochs.found, epochs.attempts) == (1, 1)
    await tasks.stop()
    await asyncio.gather(*later, return_exceptions=True)


async def test_reports_that_wait_are_bounded() -> None:
    epochs, tasks = SlowEpochs(), Background()
    it = ChainComparer(epochs, tasks, lambda loglet: None)
    assert await report(it) == pb.Frame(done=pb.Done())  # nothing is looked for
    asked = [report(it, *[3] * ACKNOWLEDGED_MAX) for _ in range(2 * comparer.REPORTED_MAX // 64)]
    await turns()
    refused = [task for task in asked if task.done()]
    assert refused
    assert {type(task.exception()) for task in refused} == {Busy}
    await tasks.stop()
    await asyncio.gather(*asked, return_exceptions=True)
