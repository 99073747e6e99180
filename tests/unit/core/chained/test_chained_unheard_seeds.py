"""Power failures with disks that forget, and absent nodes that come back: what a node proves to be
lost is reported, and with honest disks nothing is."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from chained_rig import LOG, batch
from forgetful_chains import NODES, Forgetful

from loomlog.core.chained import lost_blocks, reconfigure
from loomlog.core.chained.chain import Block, Extent, Projection, Replica, Unheard
from loomlog.core.chained.comparison import compare
from loomlog.core.chained.messages import Found, Steps, Write
from loomlog.core.chained.newcomer import Newcomer, create
from loomlog.core.chained.read import decide_at
from loomlog.core.chained.reconfigure import Admission, Goal
from loomlog.core.chained.trim import trim
from loomlog.types import Glsn, NodeId

SEEDS = 200


@pytest.fixture(autouse=True)
def few_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip few positions: each is read."""
    monkeypatch.setattr(reconfigure, "HANDED_OUT_MAX", 60)


class RandomLog(Forgetful):
    """Blocks of random lengths; writers die on the way, the power fails, terms end, readers fill
    holes, trims happen, and absent nodes come back, together or one by one, and join again."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        super().__init__(chains=random.choice((1, 2, 3)))
        self.honest = random.random() < 0.3
        self.acknowledged: list[Block] = []
        self.in_flight: list[Block] = []
        self.pending: list[Unheard] = []
        self.provable: set[Extent] = set()  # what a witness has, and no other of its chain
        self.trimmed: Glsn = 0
        self.sequence = 0
        self.births = 100

    def play(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self._write()
            self.remember()
            self._write()
            self._fail()
            self._use()
            self._come_back()
        self.silent = set()
        self._report()
        self._check()

    def _write(self) -> None:
        for _ in range(self.random.randint(0, 5)):
            self.sequence += 1
            ticket = self.ticket(self.random.randint(1, 4))
            block = batch(ticket, self.sequence)
            chain = self.projection.chain_of(block.first)
            depth = self.random.choice((0, 1, 2, 3, 3, 3))
            for replica in chain[:depth]:
                self.replica_answers(replica, Write(self.projection.epoch, block))
            (self.acknowledged if depth >= len(chain) else self.in_flight).append(block)

    def _fail(self) -> None:
        used = {replica.node_id for replica in self.projection.replicas}
        absent = set(self.random.sample(sorted(used), self.random.randint(0, len(used) - 1)))
        forgot = () if self.honest else self._some(used)
        self.lose_power(*forgot, absent=absent)
        self.continue_without(takeover=self.random.random() < 0.3)
        self.pending += self.unheard

    def _some(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        return [node for node in sorted(nodes) if self.random.random() < 0.7]

    def _use(self) -> None:
        """Read, and trim now and then."""
        for _ in range(self.random.randint(0, 4)):
            last = self.projection.start - 1
            if last > self.trimmed:
                position = self.random.randint(self.trimmed + 1, last)
                self.run(decide_at(self.projection, position))
                if self.random.random() < 0.1:
                    self.run(trim(self.projection, position))
                    self.trimmed = position

    def _come_back(self) -> None:
        self.silent = {node for node in self.silent if self.random.random() < 0.5}
        if self.random.random() < 0.7:
            self._report()
        if self.random.random() < 0.7:
            self._join()

    def _join(self) -> None:
        """Let nodes join the chains that they have left."""
        for chain in range(len(self.projection.chains)):
            used = {replica.node_id for replica in self.projection.chains[chain]}
            for node in sorted({*NODES} - used - self.silent):
                self.births += 1
                made = self.run(create(self.projection, Replica(node, LOG, chain, self.births)))
                assert isinstance(made, Newcomer)
                assert self.run(Admission(made).catch_up(self.projection)) is None
                self.reconfigured(Goal(newcomer=made))

    def _report(self) -> None:
        there = [each for each in self.pending if each.replica.node_id not in self.silent]
        for each in there:
            stored = self.tables[each.replica.node_id].look(each.replica)
            blocks = map(stored.load, stored.scan(0, 1 << 20))
            lost = (b for b in blocks if not b.is_junk and not self._is_there(b))
            self.provable.update(block.extent for block in lost)
        comparison = self.run(compare(self.projection, there))
        assert comparison.trouble == ""
        self.pending = [each for each in self.pending if each not in there]
        if comparison.forgotten:
            self.reconfigured(Goal(forgotten=comparison.forgotten))

    def _is_there(self, block: Block) -> bool:
        found = self.run(decide_at(self.projection, block.last))
        is_trimmed = block.last <= self.trimmed
        return is_trimmed or (isinstance(found, Found) and found.block == block)

    def _check(self) -> None:
        reported = set()
        for position in range(self.trimmed + 1, self.projection.start):
            found = self.run(decide_at(self.projection, position))
            assert isinstance(found, Found), found
            if self.projection.is_lost(found.block):
                assert found.block.is_junk
                reported.add(position)
        if self.honest:
            assert not any(self.projection.lost), self.projection
            for block in self.acknowledged:
                assert block.last <= self.trimmed or self._is_there(block)
        for extent in self.provable:
            for position in range(max(extent.first, self.trimmed + 1), extent.end):
                assert position in reported, (extent, self.projection)


def play_all() -> int:
    """Play all seeds; return in how many something was lost."""
    losses = 0
    for seed in range(SEEDS):
        log = RandomLog(seed)
        log.play()
        losses += bool(log.provable)
    return losses


def test_all_that_a_witness_has_is_reported_and_nothing_with_honest_disks() -> None:
    assert play_all() > SEEDS / 20


def test_the_check_notices_losses_that_are_recorded_where_the_blocks_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Junk in their places may have begun before them."""

    def naive(
        epoch: int, heads: list[Replica], blocks: Iterable[range], within: range
    ) -> Steps[dict[int, range]]:
        places: dict[int, range] = {}
        for block in blocks:
            chain = block.start % len(heads)
            places[chain] = lost_blocks._around(places.get(chain, range(0)), block)
        yield from ()
        return places

    monkeypatch.setattr(reconfigure, "find_places", naive)
    with pytest.raises(AssertionError):
        play_all()


def test_the_check_notices_witnesses_that_nobody_heard_is_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_absent(
        projection: Projection, absent: list[Replica], new: Projection
    ) -> tuple[Unheard, ...]:
        return tuple(Unheard(replica, new.epoch, new.start) for replica in absent)

    monkeypatch.setattr(reconfigure, "_unheard", all_absent)
    with pytest.raises(AssertionError):
        play_all()


def test_the_check_notices_positions_that_are_handed_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconfigure, "HANDED_OUT_MAX", 0)
    with pytest.raises(AssertionError):
        play_all()
