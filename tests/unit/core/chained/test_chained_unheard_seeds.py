"""Power failures with disks that forget, and absent nodes that come back: what a node proves to be
lost is reported, and with honest disks nothing is. A node proves what it has if one that was heard
is before it in the chain; and else what it got when it joined, or what it or the head knows to have
been acknowledged. A writer that lives on reports what nobody has any more of what it could not tell
before, also if it appends nothing more."""

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
from loomlog.core.chained.admission import Admission
from loomlog.core.chained.append import ChainKey
from loomlog.core.chained.chain import Block, Chain, Extent, Projection, Replica, Unheard
from loomlog.core.chained.comparison import compare, find_lost
from loomlog.core.chained.lost_blocks import Side
from loomlog.core.chained.messages import (
    Acknowledge,
    Answer,
    Found,
    Interrupted,
    Missing,
    Steps,
    Stop,
    Write,
)
from loomlog.core.chained.newcomer import Newcomer, create
from loomlog.core.chained.read import decide_at, read_at
from loomlog.core.chained.reconfigure import Goal, Reconfigured
from loomlog.core.chained.sequencer import Sequencer
from loomlog.core.chained.trim import trim
from loomlog.types import Glsn, NodeId

SEEDS = 200
TOGETHER = range(175, 185)  # seeds that find their flaws


@pytest.fixture(autouse=True)
def few_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip few positions: each is read."""
    monkeypatch.setattr(reconfigure, "HANDED_OUT_MAX", 60)


class RandomLog(Forgetful):
    """Blocks of random lengths; writers die on the way, or tell replicas what was acknowledged; the
    power fails, terms end, readers complete blocks and fill holes, trims happen, and absent nodes
    come back, together or one by one, and join again, perhaps at the same time."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        # What the writer of each block on a replica told, of itself and others.
        self.told = defaultdict[Replica, dict[Extent, set[Extent]]](dict)
        super().__init__(chains=random.choice((1, 2, 3)))
        self.honest = random.random() < 0.3
        self.acknowledged: list[Block] = []
        self.in_flight: list[Block] = []
        self.pending: list[Unheard] = []
        self.first: set[Replica] = set()  # of them: nobody that was heard is before them
        self.provable: set[Extent] = set()  # what a witness has, and no other of its chain
        self.untold: dict[ChainKey, list[Block]] = {}  # of one writer
        self.by_writer = 0  # how often one reports that something is lost
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
                self._begin_epoch(Goal())
            if self.random.random() < 0.3:
                self._renew()
            if not self.forgets_copies:
                self.remember()
            self.forgets_copies = False
            self._write()
            if self.random.random() < 0.3:
                self._leave()
            if self.random.random() < 0.5:
                self.untold.clear()  # the writer dies, or is powerless
            self._fail()
            self._use()
            if self.random.random() < 0.5:
                self._tell_forgotten()
            self._come_back()
        self.silent = set()
        self._tell_forgotten()
        self._report()
        self._check()

    def _write(self) -> None:
        for _ in range(self.random.randint(0, 5)):
            self.sequence += 1
            ticket = self.ticket(self.random.randint(1, 4))
            index = ticket.first % len(self.projection.chains)
            untold = self.untold.setdefault((1, ticket.epoch, index), [])
            tells = tuple(each.first for each in untold)
            block = batch(ticket, self.sequence)._replace(acknowledged=tells)
            chain = self.projection.chain_of(block.first)
            depth = self.random.choice((0, 1, 2, 3, 3, 3))
            for replica in chain[:depth]:
                self.replica_answers(replica, Write(self.projection.epoch, block))
                told = self.told[replica].setdefault(block.extent, set())
                told.update(each.extent for each in untold)
                if self.random.random() < 0.2:
                    self._read(block.first)
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
        for (_, _, chain), blocks in self.untold.items():
            self._acknowledge(chain, blocks, self.random.choice((1, 3, 3)))
        self.untold.clear()

    def _acknowledge(self, chain: int, blocks: list[Block], depth: int) -> list[Answer]:
        tells, answers = tuple(block.first for block in blocks), []
        for replica in self.projection.chains[chain][:depth]:
            note = Acknowledge(self.projection.epoch, tells)
            answers.append(self.replica_answers(replica, note))
            for block in blocks:
                if block.extent in self._has(replica, junk=False):
                    self.told[replica].setdefault(block.extent, set()).add(block.extent)
        return answers

    def _tell_forgotten(self) -> None:
        """Tell all replicas in force of blocks of older epochs. They say what they lack, and that
        is reported."""
        for (_, _, chain), blocks in self.untold.items():
            answers = self._acknowledge(chain, blocks, len(NODES))
            if any(isinstance(answer, Missing) for answer in answers):
                lost = [block for block in blocks if not self._is_there(block)]
                assert not self.honest
                self.by_writer += bool(lost)
                self.provable.update(block.extent for block in lost)
                found = self.run(find_lost(self.projection, [block.first for block in blocks]))
                assert not isinstance(found, Interrupted)
                if found:
                    self.reconfigured(Goal(forgotten=tuple(found)))
        self.untold.clear()

    def _has(self, replica: Replica, *, junk: bool = True) -> set[Extent]:
        stored = self.tables[replica.node_id].look(replica)
        return {each for each in stored.scan(0, 1 << 20) if junk or stored.size_of(each)}

    def _known(self, replica: Replica) -> set[Extent]:
        """Return what a replica knows to have been acknowledged."""
        has = self._has(replica)
        return set().union(*(told for block, told in self.told[replica].items() if block in has))

    def _read(self, position: Glsn) -> None:
        """Read a block as a reader does. On replicas where that completes it, it tells what it told
        on those before them."""
        chain = self.projection.chain_of(position)
        before = [self._has(replica) for replica in chain]
        self.run(read_at(self.projection, position))
        for above, below, had in zip(chain, chain[1:], before[1:], strict=False):
            for block in self._has(below) - had:
                self.told[below][block] = set(self.told[above].get(block, ()))

    def remember(self) -> None:
        super().remember()
        self._told_before = deepcopy(self.told)

    def lose_power(self, *forgot: NodeId, absent: Iterable[NodeId] = ()) -> None:
        super().lose_power(*forgot, absent=absent)
        for replica in self.told:
            if replica.node_id in forgot:
                self.told[replica] = deepcopy(self._told_before[replica])

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
        # What all disks forgot may be handed out again, if the sequencer was lost as well.
        for key, blocks in self.untold.items():
            self.untold[key] = [each for each in blocks if each.end <= self.projection.start]
        self.pending += self.unheard
        self.first.update(replica for chain in chains for replica in _leading(chain, absent))

    def _leave(self) -> None:
        """Let the first node of a chain leave."""
        if min(map(len, self.projection.chains)) == len(NODES):
            first = self.projection.chains[0][0]
            self._begin_epoch(Goal(leaving=frozenset([first.node_id])))

    def _renew(self) -> None:
        """Replace all replicas but one by new ones, which are filled at the same time."""
        if min(map(len, self.projection.chains)) == len(NODES):
            others = self.random.sample(NODES, 2)
            self._begin_epoch(Goal(leaving=frozenset(others)))
            self._join_together(others)
            self._leave()

    def _begin_epoch(self, goal: Goal) -> None:
        assert self.sequencer is not None
        end = self.sequencer.end
        self.reconfigured(goal, lambda _: end)

    def _some(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        return [node for node in sorted(nodes) if self.random.random() < 0.7]

    def _use(self) -> None:
        """Read, and trim now and then."""
        for _ in range(self.random.randint(0, 4)):
            last = self.projection.start - 1
            if last > self.trimmed:
                position = self.random.randint(self.trimmed + 1, last)
                self._read(position)
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
        """Let nodes join the chains that they have left, one after the other or together."""
        if self.random.random() < 0.3:
            self._join_together(sorted({*NODES} - self.silent))
            return
        for chain in range(len(self.projection.chains)):
            for node in self._lacking(chain, sorted({*NODES} - self.silent)):
                made = self._create(chain, node)
                self.forgets_copies = self.random.random() < 0.2
                if self.forgets_copies:
                    self.remember()
                self._fill_and_admit(Admission(made))
                if self.forgets_copies:
                    return

    def _lacking(self, chain: int, nodes: list[NodeId]) -> list[NodeId]:
        used = {replica.node_id for replica in self.projection.chains[chain]}
        return [node for node in nodes if node not in used]

    def _join_together(self, nodes: list[NodeId]) -> None:
        chains = range(len(self.projection.chains))
        joining = [(chain, node) for chain in chains for node in self._lacking(chain, nodes)]
        admissions = [Admission(self._create(*each)) for each in joining]
        for admission in admissions:
            assert self.run(admission.catch_up(self.projection)) is None
        self._write()
        self.forgets_copies = self.random.random() < 0.5
        if self.forgets_copies:
            self.remember()
        for admission in admissions:
            goal = Goal(newcomer=admission.newcomer)
            ending = self.run(reconfigure.reconfigure(self.projection, goal, 10_000 + self.births))
            if isinstance(ending, Reconfigured):
                self.sequencer = Sequencer(self.projection, self.remembered)
                self._note_joined(admission)
            else:  # another one has joined
                self._fill_and_admit(admission)

    def _create(self, chain: int, node: NodeId) -> Newcomer:
        self.births += 1
        made = self.run(create(self.projection, Replica(node, LOG, chain, self.births)))
        assert isinstance(made, Newcomer)
        return made

    def _fill_and_admit(self, admission: Admission) -> None:
        assert self.run(admission.catch_up(self.projection)) is None
        self.reconfigured(Goal(newcomer=admission.newcomer))
        self._note_joined(admission)

    def _note_joined(self, admission: Admission) -> None:
        joined = admission.newcomer.replica
        self.got[joined] = self._has(joined)

    def _report(self) -> None:
        there = [each for each in self.pending if each.replica.node_id not in self.silent]
        for each in there:
            replica = each.replica
            stored = self.tables[replica.node_id].look(replica)
            blocks = map(stored.load, stored.scan(0, 1 << 20))
            lost = {b.extent for b in blocks if not b.is_junk and not self._is_there(b)}
            if replica in self.first:
                head = self.projection.chains[replica.chain][0]
                known = self._known(replica) | self._known(head)
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


def play_all(seeds: Iterable[int] = range(SEEDS)) -> tuple[int, int, int]:
    """Play all seeds; return in how many something was lost, in how many the first node of a chain
    proved that, and in how many a writer reported it."""
    losses = by_first = by_writer = 0
    for seed in seeds:
        log = RandomLog(seed)
        log.play()
        losses += bool(log.provable)
        by_first += bool(log.by_first)
        by_writer += bool(log.by_writer)
    return losses, by_first, by_writer


def test_all_that_is_known_to_be_lost_is_reported_and_nothing_with_honest_disks() -> None:
    losses, by_first, by_writer = play_all()
    assert losses > SEEDS / 20
    assert by_first > SEEDS / 40
    assert by_writer > SEEDS / 40


def test_the_check_notices_writers_that_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(projection: Projection, addresses: Iterable[Glsn]) -> Steps[list[range]]:
        yield from ()
        return []

    monkeypatch.setitem(globals(), "find_lost", nothing)
    with pytest.raises(AssertionError):
        play_all()


def test_the_check_notices_newcomers_that_do_not_catch_up_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconfigure, "_is_behind", lambda projection, newcomer: False)
    with pytest.raises(AssertionError):
        play_all(TOGETHER)


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
    play_all(range(155, 165))
    monkeypatch.setattr(reconfigure, "_decided", lambda projection, goal, seals, start: 0)
    with pytest.raises(AssertionError):
        play_all(range(155, 165))


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
            places[chain] = lost_blocks._hull(places.get(chain, range(0)), block)
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
