"""The donor of a shard: its progress, the remaining work, and the size of its portions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from loomlog.core.copyset.messages import EpochEnd, NodeAnswer, NodeRequest, Restore, Stored
from loomlog.core.copyset.rebuild.donor import DonorAsk, Scan
from loomlog.core.copyset.rebuild.events import RebuildState, Shard, Status
from loomlog.core.copyset.record import Kind, Record, make
from loomlog.core.requests import Ask
from loomlog.node.copyset.donor import PORTION_ASKS, PORTION_BYTES, Donor, _Progress
from loomlog.node.workers import Throttle
from loomlog.types import LogId, ShardId


@pytest.mark.parametrize("left", [(1, 0), (0, 1), (0, 0)])
async def test_what_any_log_leaves_counts_whichever_is_scanned_last(
    left: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scan(donor: Donor, log: LogId, state: RebuildState, progress: _Progress) -> int:
        for _ in range(log):
            await asyncio.sleep(0)
        return left[log - 1]

    monkeypatch.setattr(Donor, "_scan", scan)
    store = SimpleNamespace(
        logs=lambda: [1, 2], stored_bytes=lambda log: 10, flushed=lambda done: done(None)
    )
    copies: Any = SimpleNamespace(volume=SimpleNamespace(store=store))
    unused: Any = None
    donor = Donor(1, copies, unused, unused, unused, unused)
    assert await donor._scan_all(donor._progress) == (sum(left) == 0)
    assert donor._progress.left == sum(left)


async def test_what_a_scan_has_restored_so_far_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(_order: object, _state: object, _scans: int, result: Scan) -> Iterator[list[DonorAsk]]:
        result.records[3] += 1
        result.size_bytes[3] += 700
        yield []
        result.left += 1

    async def answer(_asks: object) -> list[NodeAnswer]:
        report = donor.report()
        assert report is not None
        told.append((report.shards[0].records, report.shards[0].size_bytes, report.left))
        return []

    async def request(_: object) -> object:
        return SimpleNamespace(rebuilt={3: 1}, state=None)

    monkeypatch.setattr("loomlog.node.copyset.donor.scan", scan)
    store = SimpleNamespace(
        logs=lambda: [1], stored_bytes=lambda log: 10, flushed=lambda done: done(None)
    )
    copies: Any = SimpleNamespace(volume=SimpleNamespace(store=store))
    epochs: Any = SimpleNamespace(request=request)
    unused: Any = None
    told: list[tuple[int, int, int]] = []
    donor = Donor(1, copies, unused, unused, epochs, unused)
    donor._state = RebuildState(shards={3: Shard(Status.LOST)})
    monkeypatch.setattr(donor, "_order", lambda known, state: None)
    monkeypatch.setattr(donor, "_answer", answer)
    for _ in range(2):
        assert not await donor._scan_all(donor._progress)
    assert told == [(1, 700, 0), (2, 1400, 0)], "what is left is known when a scan has ended"


class Target:
    """Takes what it is sent, and answers when the test lets it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[NodeAnswer], None]] = []

    def ask(self, shard: ShardId, request: NodeRequest, done: Callable[[NodeAnswer], None]) -> None:
        self.waiting.append(done)

    async def answer(self) -> int:
        """Answer all; return how many were waiting at once."""
        while not self.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        answered, self.waiting = self.waiting, []
        for done in answered:
            done(Stored())
        return len(answered)


@pytest.mark.parametrize(
    ("bytes_per_s", "size", "count", "at_once"),
    [
        (0, PORTION_BYTES // 2, 6, [6]),
        (1 << 40, PORTION_BYTES // 2, 6, [2, 2, 2]),
        (1 << 40, 1, PORTION_ASKS + 1, [PORTION_ASKS, 1]),
    ],
    ids=["unbounded", "bounded", "bounded-small"],
)
async def test_a_bounded_donor_sends_little_at_once(
    bytes_per_s: int, size: int, count: int, at_once: list[int]
) -> None:
    target: Any = Target()
    unused: Any = None
    donor = Donor(1, unused, unused, target, unused, unused)
    donor._throttle.bytes_per_s = bytes_per_s
    record = Record(make(1, 1), 1, Kind.DATA, 0, (1, 2), wave=1, lng=0, batch=bytes(size))
    ask = Ask(2, Restore(1, record, EpochEnd(1, 0, 6, 2, 1), 1))
    asks: list[DonorAsk] = [ask] * count
    answering = asyncio.create_task(donor._answer(asks))
    assert [await target.answer() for _ in at_once] == at_once
    assert await answering == [Stored()] * count


async def test_a_bounded_donor_sends_something_of_one_log_at_a_time() -> None:
    target: Any = Target()
    unused: Any = None
    donor = Donor(1, unused, unused, target, unused, unused)
    donor._throttle.bytes_per_s = 1 << 40
    record = Record(make(1, 1), 1, Kind.DATA, 0, (1, 2), wave=1, lng=0, batch=b"batch")
    asks: list[DonorAsk] = [Ask(2, Restore(1, record, EpochEnd(1, 0, 6, 2, 1), 1))]
    answering = [asyncio.create_task(donor._answer(asks)) for _ in range(4)]
    assert [await target.answer() for _ in range(4)] == [1, 1, 1, 1]
    assert await asyncio.gather(*answering) == [[Stored()]] * 4


async def test_what_took_time_leaves_three_times_as_much_to_others() -> None:
    throttle, loop = Throttle(1 << 40), asyncio.get_running_loop()
    begun_s = loop.time()
    throttle.rest(0.05)
    await throttle.take(1)
    assert loop.time() - begun_s >= 0.15
