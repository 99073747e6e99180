"""Power failures with disks that forget, and absent nodes that come back: what a node proves to be
lost is reported, and with honest disks nothing is. A node proves what it has if one that was heard
is before it in the chain; and else what it got when it joined, or what it or the head knows to have
been acknowledged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from copy import deepcopy
from itertools import takewhile
from random import Random

import pytest
from chained_rig import LOG, batch
from forgetful_chains import NODES, Forgetful

from loomlog.core.chained import comparison, lost_blocks, reconfigure
from loomlog.core.chained.chain import Block, Chain, Extent, Projection, Replica, Unheard
from loomlog.core.chained.comparison import compare
from loomlog.core.chained.lost_blocks import Side
from loomlog.core.chained.messages import Acknowledge, Found, Steps, Stop, Write
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
    """Blocks of random lengths; writers die on the way, or tell replicas what was acknowledged; the
    power fails, terms end, readers fill holes, trims happen, and absent nodes come back, together
    or one by one, and join again."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.known = defaultdict[Replica, set[Extent]](set)  # to have been acknowledged
        super().__init__(chains=random.choice((1, 2, 3)))
        self.honest = random.random() < 0.3
        self.acknowledged: list[Block] = []
        self.in_flight: list[Block] = []
        self.pending: list[Unheard] = []
        self.first: set[Replica] = set()  # of them: nobody that was heard is before them
        self.provable: set[Extent] = set()  # what a witness has, and no other of its chain
        self.untold: dict[int, list[Block]] = {}  # by chain, of one writer
        self.got: dict[Replica, set[Extent]] = {}  # before it joined
        self.forgets_copies = False  # disks forget what a newcomer got
        self.by_first = 0  # how often one proves that something is lost
        self.trimmed: Glsn = 0
        self.sequence = 0
        self.births = 100

    def play(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self._write()
            if self.random.random() < 0.2:  # some node was missed for a moment
                assert self.sequencer is not None
                end = self.sequencer.end
                self.reconfigured(Goal(), lambda _, end=end: end)  # type: ignore[misc]
            if not self.forgets_copies:
                self.remember()
            self.forgets_copies = False
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
            untold = self.untold.setdefault(ticket.first % len(self.projection.chains), [])
            tells = tuple(each.first for each in untold)
            block = batch(ticket, self.sequence)._replace(acknowledged=tells)
            chain = self.projection.chain_of(block.first)
            depth = self.random.choice((0, 1, 2, 3, 3, 3))
            for replica in chain[:depth]:
                self.replica_answers(replica, Write(self.projection.epoch, block))
                self.known[replica].update(each.extent for each in untold)
            if depth >= len(chain):
                self.acknowledged.append(block)
                untold[:] = [block]
            else:
                self.in_flight.append(block)
        if self.random.random() < 0.5:
            self._tell()

    def _tell(self) -> None:
        """Tell of the last blocks; maybe the writer dies meanwhile. Replicas that forgot them do
        not note it."""
        for chain, blocks in self.untold.items():
            tells = tuple(block.first for block in blocks)
            told = self.projection.chains[chain][: self.random.choice((1, 3, 3))]
            for replica in told:
                self.replica_answers(replica, Acknowledge(self.projection.epoch, tells))
                has = {*self.tables[replica.node_id].look(replica).scan(0, 1 << 20)}
                self.known[replica].update(has.intersection(block.extent for block in blocks))
        self.untold.clear()

    def remember(self) -> None:
        super().remember()
        self._known_before = deepcopy(self.known)

    def lose_power(self, *forgot: NodeId, absent: Iterable[NodeId] = ()) -> None:
        super().lose_power(*forgot, absent=absent)
        for replica in self.known:
            if replica.node_id in forgot:
                self.known[replica] = set(self._known_before[replica])

    def _fail(self) -> None:
        chains = self.projection.chains
        used = {replica.node_id for replica in self.projection.replicas}
        absent = set(self.random.sample(sorted(used), self.random.randint(0, len(used) - 1)))
        for chain in chains:  # each has one that is there
            if absent.issuperset(replica.node_id for replica in chain):
                absent.discard(self.random.choice(chain).node_id)
        forgot = () if self.honest else self._some(used)
        self.lose_power(*forgot, absent=absent)
        self.continue_without(takeover=self.random.random() < 0.3)
        self.pending += self.unheard
        self.first.update(replica for chain in chains for replica in _leading(chain, absent))

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
                replica = Replica(node, LOG, chain, self.births)
                made = self.run(create(self.projection, replica))
                assert isinstance(made, Newcomer)
                self.forgets_copies = self.random.random() < 0.2
                if self.forgets_copies:
                    self.remember()
                admission = Admission(made)
                assert self.run(admission.catch_up(self.projection)) is None
                self.reconfigured(Goal(newcomer=admission.newcomer))
                self.got[replica] = {*self.tables[node].look(replica).scan(0, 1 << 20)}
                if self.forgets_copies:
                    return

    def _report(self) -> None:
        there = [each for each in self.pending if each.replica.node_id not in self.silent]
        for each in there:
            replica = each.replica
            stored = self.tables[replica.node_id].look(replica)
            blocks = map(stored.load, stored.scan(0, 1 << 20))
            lost = {b.extent for b in blocks if not b.is_junk and not self._is_there(b)}
            if replica in self.first:
                head = self.projection.chains[replica.chain][0]
                known = self.known[replica] | self.known[head]
                lost &= known | self.got.get(replica, set())
                self.by_first += bool(lost)
            self.provable |= lost
        comparison = self.run(compare(self.projection, there))
        assert comparison.trouble == ""
        self.pending = [each for each in self.pending if each not in there]
        if comparison.forgotten:
            self.reconfigured(Goal(forgotten=comparison.forgotten))

    def _is_there(self, block: Block) -> bool:
        found = self.run(decide_at(self.projection, block.last))
        is_trimmed = block.last <= self.trimmed
        return is_trimmed or (isinstance(found, Found) and found.block.is_same(block))

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


def _leading(chain: Chain, absent: set[NodeId]) -> Iterable[Replica]:
    """Yield the replicas that are absent with all before them."""
    return takewhile(lambda replica: replica.node_id in absent, chain)


def play_all(seeds: Iterable[int] = range(SEEDS)) -> tuple[int, int]:
    """Play all seeds; return in how many something was lost, and in how many the first node of a
    chain proved that."""
    losses = by_first = 0
    for seed in seeds:
        log = RandomLog(seed)
        log.play()
        losses += bool(log.provable)
        by_first += bool(log.by_first)
    return losses, by_first


def test_all_that_a_witness_has_is_reported_and_nothing_with_honest_disks() -> None:
    losses, by_first = play_all()
    assert losses > SEEDS / 20
    assert by_first > SEEDS / 40


def test_the_check_notices_witnesses_that_do_not_say_what_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = lost_blocks.find_forgotten

    def without(witness: Side, head: Side, decided: Glsn) -> Steps[list[range] | Stop]:
        found = yield from real(witness, head, decided)
        if not isinstance(found, list):
            return found
        return [block for block in found if block.stop <= decided]

    monkeypatch.setattr(comparison, "find_forgotten", without)
    with pytest.raises(AssertionError):
        play_all()


def test_the_check_notices_newcomers_of_which_nobody_knows_what_they_got(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play_all(range(705, 715))
    monkeypatch.setattr(reconfigure, "_decided", lambda projection, goal, seals, start: 0)
    with pytest.raises(AssertionError):
        play_all(range(705, 715))


def test_the_check_notices_blocks_in_flight_that_are_taken_for_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconfigure, "_decided", lambda projection, goal, seals, start: start)
    with pytest.raises(AssertionError):
        play_all()


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
