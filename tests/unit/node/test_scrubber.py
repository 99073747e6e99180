"""Passes over all that a node stores: the rate, and what operators see."""

from __future__ import annotations

import asyncio

import pytest

from loomlog.core.conditions import Kind
from loomlog.node import scrubber
from loomlog.node.scrubber import Scope, Scrubber, ScrubNotes
from loomlog.wire import loomlog_pb2 as pb

MB = 1_000_000


class Stored:
    """A protocol with damaged entries."""

    def __init__(self, *damaged: str) -> None:
        self.damaged = list(damaged)
        self.repairs: list[str] = []
        self.passes = 0

    def stored(self) -> list[pb.StoredReplica]:
        return [pb.StoredReplica(loglet_id=3, stored_bytes=1000)]

    async def scrub(self, notes: ScrubNotes) -> None:
        if not notes.want_loglet(3):
            return
        self.passes += 1
        for what in self.damaged:
            notes.found(what, repaired=what in self.repairs)
        self.damaged = [what for what in self.damaged if what not in self.repairs]
        await notes.checked(1000)


class Failing(Stored):
    async def scrub(self, notes: ScrubNotes) -> None:
        await super().scrub(notes)
        raise RuntimeError("it was just removed")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "BEGIN_S", 0.0)
    monkeypatch.setattr(scrubber, "BETWEEN_S", 0.0)


async def passed(found: Scrubber, count: int) -> None:
    async with asyncio.timeout(20):
        while found.status().passes < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_what_cannot_be_repaired_is_a_condition_until_it_is() -> None:
    stored, found = Stored("e1n5 of loglet 3"), Scrubber(MB)
    found.start([Failing(), stored])
    await passed(found, 1)
    [condition] = found.conditions()
    assert condition.kind is Kind.DATA_DAMAGED
    assert "e1n5 of loglet 3" in condition.sentence
    assert found.status().unrepaired == 1
    stored.repairs = stored.damaged
    await passed(found, found.status().passes + 3)
    assert not found.conditions()
    status = found.status()
    assert (status.repaired, status.unrepaired) == (1, 0)
    assert status.bytes >= 2000 * status.passes
    assert status.HasField("last_pass_s")
    await found.stop()


async def test_it_keeps_to_its_rate() -> None:
    notes, loop = ScrubNotes(10 * MB), asyncio.get_running_loop()
    began_s = loop.time()
    for _ in range(4):
        await notes.checked(MB)
    assert loop.time() - began_s >= 0.3
    assert notes.size == 4 * MB


async def test_a_busy_node_is_left_alone_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "LATE_S", 0.0)  # it is always late
    monkeypatch.setattr(scrubber, "BUSY_S", 0.001)
    pauses = 0

    async def sleep(delay_s: float) -> None:
        nonlocal pauses
        pauses += delay_s == 0.001

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await ScrubNotes(0).checked(MB)
    assert pauses == scrubber.PAUSES_MAX


async def test_nothing_is_read_without_a_rate() -> None:
    stored, found = Stored("all"), Scrubber(0)
    found.start([stored])
    await asyncio.sleep(0)
    assert not stored.passes
    await found.stop()


async def test_operators_have_a_log_read_at_once() -> None:
    """The log is read without a pause and without a rate of its own; other logs are left alone."""
    stored, found = Stored("e1n5 of loglet 3", "e1n6 of loglet 3"), Scrubber(0)
    stored.repairs = stored.damaged[:1]
    found.start([stored])
    scope = Scope(frozenset({1}), frozenset({3}))
    other = Scope(frozenset({2}), frozenset({4}))
    assert found.order(scope, [], start=False) is None
    begun = found.order(scope, [], start=True)
    assert begun is not None
    assert (begun.finished, begun.stored_bytes) == (False, 1000)
    found.order(other, [], start=True)
    await asyncio.gather(*(order.task for order in found._orders.values()))
    progress = found.order(scope, [], start=False)
    assert progress is not None
    assert progress.finished
    assert progress.checked_bytes == 1000
    assert (progress.corrupt_batches, progress.repaired_batches) == (2, 1)
    assert progress.error == "e1n6 of loglet 3 is broken and no other node has it"
    assert stored.passes == 1
    assert found.order(scope, [], start=True) is not None  # once more
    await found.stop()
