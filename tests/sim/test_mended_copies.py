"""Damaged copies are mended while records are stored again, amended, recovered and trimmed, and
nodes come and go: every copy keeps its head, has its own batch, and in the end all that one shard
of a copyset has sound is sound on the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from copyset_node import CopysetNode, MemoryRecords

from loomlog.core.copyset.messages import (
    Amend,
    EpochStoreRequest,
    Mend,
    NodeAnswer,
    NodeRequest,
    Release,
    Store,
    Stored,
    Trim,
)
from loomlog.core.copyset.procedures import Answer, CopysetAsk, Exchange, Mending, mend
from loomlog.core.copyset.record import Kind, Lsn, Record, make
from loomlog.core.copyset.storage import Change, Put
from loomlog.core.requests import Lost
from loomlog.errors import Corrupt

LOG = 1
EPOCH = 3
SHARDS = range(1, 6)
RECORDS = 12
STEPS = 150


class DamagedRecords(MemoryRecords):
    """The copies of a shard, some of which cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: set[Lsn] = set()
        self.sound_again: set[Lsn] = set()

    def load(self, head: Record) -> Record:
        if head.first in self.unreadable:
            raise Corrupt("damaged")
        return super().load(head)

    def apply(self, change: Change) -> None:
        before = set(self.unreadable)
        if isinstance(change, Put):
            self.unreadable.discard(change.record.first)
        super().apply(change)
        self.unreadable.intersection_update(self.by_first)
        self.sound_again |= before - self.unreadable


class Shard(CopysetNode):
    def __init__(self, shard: int) -> None:
        super().__init__(shard)
        self.up = True
        self.kept = DamagedRecords()
        self.logs[LOG] = self.kept

    def answer(self, request: NodeRequest) -> NodeAnswer:
        if not isinstance(request, Mend):
            return super().answer(request)
        before = dict(self.kept._heads)
        answer = super().answer(request)
        assert self.kept._heads == before, "mending changes nothing but a batch"
        return answer


class World:
    """Shards with copies, and menders that are under way."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.shards = {shard: Shard(shard) for shard in SHARDS}
        self.mending: list[tuple[int, Record, Iterator[Exchange], list[Answer] | None]] = []
        self.next_offset = 1
        self.written: dict[Lsn, list[Record]] = {}  # all that were ever stored at an LSN
        self.results = Counter[Mending]()

    def step(self) -> None:
        match self.random.randrange(8):
            case 0 | 1 if len(self.written) < RECORDS:
                self.store()
            case 2 if self.written:
                self.store_again()
            case 3:
                self.damage()
            case 4:
                shard = self.shards[self.random.choice(SHARDS)]
                shard.up = not shard.up or self.random.random() < 0.5
            case 5 if self.random.random() < 0.2:
                lsn = make(EPOCH, self.random.randrange(self.next_offset))
                for shard in self.shards.values():
                    shard.answer(Trim(LOG, lsn))
            case 6:
                self.begin_mending()
            case _:
                self.go_on()

    def store(self) -> None:
        first, count = make(EPOCH, self.next_offset), self.random.randint(1, 3)
        self.next_offset += count
        copyset = tuple(sorted(self.random.sample(SHARDS, 3)))
        batch = self.random.randbytes(8)
        record = Record(first, count, Kind.DATA, 0, copyset, 1, 0, 0, batch)
        self.written[first] = [record]
        for shard in copyset:
            # The epoch was taken twice, and another record is at the same place there.
            is_other = self.random.random() < 0.1
            own = record._replace(batch=self.random.randbytes(8)) if is_other else record
            self.written[first].append(own)
            self.shards[shard].answer(Store(LOG, own))
        self.release()

    def release(self) -> None:
        for shard in self.shards.values():
            shard.answer(Release(LOG, make(EPOCH, self.next_offset - 1)))

    def store_again(self) -> None:
        """Store a later wave of a record, on other shards, or have it recovered."""
        record = self.written[self.random.choice(list(self.written))][0]
        wave = record.wave + 1
        recovered = EPOCH + 1 if self.random.random() < 0.3 else record.recovered
        copyset = tuple(sorted(self.random.sample(SHARDS, 3)))
        record = record._replace(wave=wave, recovered=recovered, copyset=copyset)
        self.written[record.first].insert(0, record)
        for shard in copyset:
            if self.random.random() < 0.8:
                is_amended = self.random.random() < 0.5
                bare = record._replace(batch=b"")
                request = Amend(LOG, bare) if is_amended else Store(LOG, record)
                self.shards[shard].answer(request)

    def damage(self) -> None:
        kept = self.shards[self.random.choice(SHARDS)].kept
        if kept.firsts:
            kept.unreadable.add(self.random.choice(kept.firsts))

    def begin_mending(self) -> None:
        damaged = [
            (shard.node_id, shard.kept._heads[first])
            for shard in self.shards.values()
            for first in sorted(shard.kept.unreadable)
        ]
        if damaged:
            me, head = self.random.choice(damaged)
            self.mending.append((me, head, mend(LOG, head, me), None))

    def go_on(self) -> None:
        """Deliver the answers to one of the menders, which then continues."""
        if not self.mending:
            return
        me, head, steps, answers = self.mending.pop(self.random.randrange(len(self.mending)))
        try:
            asked = steps.send(answers)  # type: ignore[attr-defined]
        except StopIteration as end:
            self.results[end.value] += 1
            if end.value is Mending.LOST:
                self.check_lost(head)
        else:
            self.mending.append((me, head, steps, [self.answer(ask) for ask in asked.asks]))

    def check_lost(self, head: Record) -> None:
        """Check that no shard has a sound copy, but for those that got one since it was asked."""
        for kept in (self.shards[shard].kept for shard in head.copyset):
            is_sound = head.first in kept.by_first and head.first not in kept.unreadable
            assert not is_sound or head.first in kept.sound_again, "it is not lost"

    def answer(self, ask: CopysetAsk) -> Answer:
        assert isinstance(ask.target, int)
        assert not isinstance(ask.request, EpochStoreRequest)
        shard = self.shards[ask.target]
        return shard.answer(ask.request) if shard.up and self.random.random() < 0.9 else Lost()

    def check(self) -> None:
        for shard in self.shards.values():
            for copy in shard.kept.by_first.values():
                own = shard.kept.by_first[copy.first]
                assert any(own.batch == record.batch for record in self.written[copy.first])

    def end(self) -> None:
        """Mend everything."""
        self.random.random = lambda: 0.5  # type: ignore[method-assign]
        for shard in self.shards.values():
            shard.up = True
        self.release()
        while True:
            self.mending.clear()
            before = sum(len(shard.kept.unreadable) for shard in self.shards.values())
            for me, shard in self.shards.items():
                for first in sorted(shard.kept.unreadable):
                    head = shard.kept._heads[first]
                    self.mending.append((me, head, mend(LOG, head, me), None))
                    while self.mending:
                        self.go_on()
            if before == sum(len(shard.kept.unreadable) for shard in self.shards.values()):
                return

    def unmended(self) -> list[tuple[int, Lsn]]:
        """Return the copies that are damaged although a shard of their copyset has their batch."""
        return [
            (me, first)
            for me, shard in self.shards.items()
            for first in shard.kept.unreadable
            for other in shard.kept._heads[first].copyset
            if self._has(other, shard.kept.by_first[first])
        ]

    def _has(self, shard: int, record: Record) -> bool:
        kept = self.shards[shard].kept
        own = kept.by_first.get(record.first)
        is_sound = record.first not in kept.unreadable
        return own is not None and is_sound and own.batch == record.batch


def run(seed: int) -> World:
    world = World(seed)
    stored: dict[tuple[int, Lsn], bytes] = {}
    for _ in range(STEPS):
        world.step()
        world.check()
    for me, shard in world.shards.items():
        stored |= {(me, r.first): bytes(r.batch) for r in shard.kept.by_first.values()}
    world.end()
    world.check()
    assert not world.unmended()
    for me, shard in world.shards.items():
        for copy in shard.kept.by_first.values():
            assert stored[me, copy.first] == copy.batch, "it has the batch of another record"
    return world


def run_all() -> list[World]:
    return [run(seed) for seed in range(300)]


def test_all_copies_are_sound_in_the_end() -> None:
    results = sum((world.results for world in run_all()), Counter[Mending]())
    assert results[Mending.MENDED] > 300
    assert results[Mending.LOST] > 30


def test_a_shard_that_does_not_answer_may_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loomlog.core.copyset.procedures._has_lost", lambda *args: True)
    with pytest.raises(AssertionError, match="it is not lost"):
        run_all()


def test_a_node_that_takes_any_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryRecords, "is_batch_of", lambda *args: True)
    with pytest.raises(AssertionError, match="another record"):
        run_all()


def test_a_mend_that_replaces_the_head_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def replacing(record: Record, standing: object, records: MemoryRecords) -> object:
        return Stored(), [Put(record)]

    monkeypatch.setattr("loomlog.core.copyset.storage._mend", replacing)
    with pytest.raises(AssertionError, match="nothing but a batch"):
        run_all()
