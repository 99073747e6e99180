"""Copies vanish without notice, and shards compare theirs with others: in the end every record is
again on all shards of its copyset, and nothing is said to be missing that never was there."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from copyset_node import CopysetNode

from loomlog.core.copyset import comparison
from loomlog.core.copyset.comparison import Compared, Comparison, compare
from loomlog.core.copyset.messages import (
    Clean,
    EpochEnd,
    EpochStoreRequest,
    LogState,
    NodeAnswer,
    NodeRequest,
    Reassign,
    Release,
    Restore,
    Seal,
    Store,
    Trim,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.procedures import Answer, CopysetAsk, Exchange
from loomlog.core.copyset.rebuild import restore
from loomlog.core.copyset.record import LSN_MAX, Kind, Lsn, Record, make, offset_of
from loomlog.core.copyset.storage import Erase
from loomlog.core.requests import Lost

LOG = 1
SHARDS = range(1, 7)
REPLICAS = 3
RECORDS = 10  # of an epoch
STEPS = 200
VERSION = 1
BEGUN = Iterator[Exchange]


class Shard(CopysetNode):
    def __init__(self, shard: int) -> None:
        super().__init__(shard)
        self.up = True

    @property
    def firsts(self) -> list[Lsn]:
        return self.records(LOG).firsts

    def answer(self, request: NodeRequest) -> NodeAnswer:
        if not isinstance(request, Restore | Reassign):
            return super().answer(request)
        records = self.records(LOG)
        answer, changes = restore.decide(request, records.standing, records, self.node_id, VERSION)
        for change in changes:
            records.apply(change)
        return answer


class World:
    """Two epochs, of which the first is recovered some time, and shards that compare."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.shards = {shard: Shard(shard) for shard in SHARDS}
        metadata = EpochMetadata(1, tuple(map(Member, SHARDS)), REPLICAS)
        self.state = LogState(1, 1, (metadata,), last_clean=0, tail=0)
        self.truth: dict[Lsn, Record] = {}  # of the last wave
        self.vanished: set[tuple[int, Lsn]] = set()
        self.reported: list[tuple[int, Lsn, bool]] = []
        self.comparing: list[tuple[Iterator[Exchange], list[Answer] | None]] = []
        self.next_offset = 1
        self.trimmed: Lsn = 0

    def step(self) -> None:
        match self.random.randrange(9):
            case 0 | 1 if self.next_offset < RECORDS:
                self.append()
            case 2 | 3:
                self.lose_copy()
            case 4:
                shard = self.shards[self.random.choice(SHARDS)]
                shard.up = not shard.up or self.random.random() < 0.5
            case 5:
                self.release()
            case 6 if self.random.random() < 0.1:
                self.trim()
            case 7 if self.state.epoch == 1 and self.random.random() < 0.2:
                self.next_epoch()
            case _ if self.random.random() < 0.3:
                self.begin()
            case _:
                self.go_on()

    def append(self) -> None:
        """Store a record, in several waves if shards do not take it."""
        first, count = make(self.state.epoch, self.next_offset), self.random.randint(1, 3)
        self.next_offset += count
        for wave in range(1, 20):
            copyset = tuple(sorted(self.random.sample(SHARDS, REPLICAS)))
            record = Record(first, count, Kind.DATA, 0, copyset, wave, 0, 0, b"%d" % first)
            took = [s for s in copyset if self.shards[s].up and self.random.random() < 0.8]
            for shard in took:
                self.shards[shard].answer(Store(LOG, record))
            self.truth[first] = record
            if len(took) == REPLICAS:
                return
        self.next_offset -= count
        del self.truth[first]
        for kept in self.shards.values():
            kept.records(LOG).apply(Erase(first, first))

    def lose_copy(self) -> None:
        first = self.random.choice([0, *self.truth])
        record = self.truth.get(first)
        if record is None or record.last <= self.trimmed or first > self.released:
            return
        copies = {s: self.shards[s].records(LOG).by_first.get(first) for s in record.copyset}
        holders = [s for s, copy in copies.items() if copy == record]
        if len(holders) > 1:
            shard = self.random.choice(holders)
            self.shards[shard].records(LOG).apply(Erase(first, first))
            self.vanished.add((shard, first))

    @property
    def released(self) -> Lsn:
        return max(shard.records(LOG).standing.released for shard in self.shards.values())

    def release(self) -> None:
        lsn = make(self.state.epoch, self.next_offset - 1)
        for shard in self.shards.values():
            if shard.up and self.random.random() < 0.7:
                shard.answer(Release(LOG, lsn))

    def trim(self) -> None:
        self.trimmed = max(self.trimmed, self.random.choice([0, *self.truth]))
        for shard in self.shards.values():
            if self.random.random() < 0.8:
                shard.answer(Trim(LOG, self.trimmed))

    def next_epoch(self) -> None:
        """Recover the epoch: all shards know its end, and hold what was released."""
        last = self.next_offset - 1
        end = EpochEnd(1, lng=last, last=last, seal=1, wave=1)
        for shard in self.shards.values():
            shard.answer(Release(LOG, make(1, last)))
            shard.answer(Seal(LOG, 1))
            shard.answer(Clean(LOG, 1, end))
        self.state = LogState(2, 1, self.state.history, last_clean=1, tail=0, ends=(end,))
        self.next_offset = 1

    # ---- comparisons

    def begin(self) -> None:
        shard = self.shards[self.random.choice(SHARDS)]
        if shard.up:
            self.comparing.append((self.run(shard.node_id), None))

    def run(self, me: int) -> Iterator[Exchange]:
        others = frozenset(SHARDS) - {me}
        result: Compared = yield from compare(
            Comparison(LOG, me, self.state, others, VERSION), 1, LSN_MAX
        )
        self.reported += [(each.shard, each.first, each.restored) for each in result.missing]

    def go_on(self) -> None:
        if not self.comparing:
            return
        steps, answers = self.comparing.pop(self.random.randrange(len(self.comparing)))
        try:
            asked = steps.send(answers)  # type: ignore[attr-defined]
        except StopIteration:
            return
        self.comparing.append((steps, [self.answer(ask) for ask in asked.asks]))

    def answer(self, ask: CopysetAsk) -> Answer:
        assert isinstance(ask.target, int)
        assert not isinstance(ask.request, EpochStoreRequest)
        shard = self.shards[ask.target]
        return shard.answer(ask.request) if shard.up and self.random.random() < 0.9 else Lost()

    def end(self) -> None:
        self.random.random = lambda: 0.5  # type: ignore[method-assign]
        for shard in self.shards.values():
            shard.up = True
        self.release()
        for _ in range(2):  # a shard that just got a copy back leaves others to the next time
            self.comparing += [(self.run(me), None) for me in SHARDS]
            while self.comparing:
                self.go_on()

    def check(self) -> None:
        vanished = {first for _, first in self.vanished}
        for shard, first, restored in self.reported:
            assert first in vanished or restored, f"{first} was never on {shard}"
            has_it = shard in self.truth[first].copyset and (shard, first) not in self.vanished
            assert not has_it, f"{first} was never missing on {shard}"
        for first, record in self.truth.items():
            if record.last <= self.trimmed:
                continue
            for shard in record.copyset:
                copy = self.shards[shard].records(LOG).by_first.get(first)
                assert copy == record, f"{offset_of(first)} is missing on {shard}"
        for kept in self.shards.values():
            assert all(first in self.truth for first in kept.firsts), "from nowhere"


def run(seed: int) -> World:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.end()
    world.check()
    return world


def run_all(seeds: int = 100) -> list[World]:
    return [run(seed) for seed in range(seeds)]


def test_all_copies_are_there_in_the_end() -> None:
    worlds = run_all()
    assert sum(len(world.vanished) for world in worlds) > 300
    assert sum(restored for world in worlds for _, _, restored in world.reported) > 300


def test_a_comparison_that_believes_shards_which_show_nothing_yet_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison._Heads, "is_sure", lambda self, head: True)
    with pytest.raises(AssertionError, match="was never"):
        run_all()


def test_a_comparison_that_leaves_stale_copies_to_each_other_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, "_counts", lambda copy, head: copy is not None)
    with pytest.raises(AssertionError, match="is missing on"):
        run_all()
