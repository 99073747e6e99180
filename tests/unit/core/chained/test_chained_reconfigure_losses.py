"""Chains that lost their replicas begin again, and say what they lost."""

from __future__ import annotations

import pytest
from chained_rig import Chains, newcomer

from loomlog.core.chained import lost_blocks
from loomlog.core.chained.chain import Block, Replica, first_projection, junk
from loomlog.core.chained.messages import (
    Answer,
    Copy,
    Create,
    Fetched,
    Found,
    Interrupted,
    Remove,
    Request,
    Trim,
    Write,
)
from loomlog.core.chained.read import decide, decide_at, find_end_of_loss, read_at
from loomlog.core.chained.reconfigure import (
    HANDED_OUT_MAX,
    Goal,
    Reconfigured,
    least_start,
    reconfigure,
)
from loomlog.core.chained.sequencer import Sequencer
from loomlog.limits import REFERENCE_RECORDS_MAX


def lose(log: Chains, chain: int = 0) -> Replica:
    """Empty all replicas of a chain; return the one with which it begins again."""
    for replica in log.projection.chains[chain]:
        log.replica_answers(replica, Remove())
    return Replica(1, 1, chain, 88)


def lost_by(log: Chains, last: int) -> set[int]:
    """Return the positions up to this one that a reader of single positions finds lost."""
    found = [log.run(decide_at(log.projection, position)) for position in range(1, last + 1)]
    blocks = [outcome.block for outcome in found if isinstance(outcome, Found)]
    return {p for p, block in enumerate(blocks, 1) if log.projection.is_lost(block)}


def test_what_a_chain_lost_is_lost_for_good_and_the_rest_is_read() -> None:
    log = Chains(chains=2)
    blocks = [log.appended(count, count) for count in (1, 2, 3, 1, 2, 1)]
    gone = {p for b in blocks if b.first % 2 == 1 for p in range(b.first, b.end)}
    assert 0 < len(gone) < 10
    projection = log.reconfigured(Goal(fresh=(lose(log, 1),)))
    assert projection.lost_range(1) == range(min(gone), max(gone) + 1)
    assert not projection.lost_range(0)
    assert lost_by(log, 10) == gone
    for block in blocks:
        if block.first % 2 == 0:
            assert log.run(read_at(projection, block.last)) == Found(block)
    log.appended()
    log.reconfigured()
    assert log.projection.lost == projection.lost
    assert lost_by(log, 10) == gone


def test_a_hole_before_what_was_lost_does_not_hide_it() -> None:
    log = Chains(chains=2)
    log.appended(2)  # at 1
    log.ticket(1)  # a hole at 3, on the same chain
    log.appended(3)  # at 4, on the other
    log.appended()  # at 7
    log.reconfigured(Goal(fresh=(lose(log, 0),)))
    assert lost_by(log, 7) == {4, 5, 6}


def test_nothing_of_a_chain_that_was_lost_is_handed_out_again() -> None:
    log = Chains()
    log.appended(5)
    goal = Goal(fresh=(lose(log),))
    ending = log.run(reconfigure(log.projection, goal, 2, lambda _: 6))
    assert isinstance(ending, Reconfigured)
    assert (ending.projection.start, ending.projection.lost_range(0)) == (6, range(1, 6))


def test_a_chain_that_begins_anew_gets_what_older_copies_have_left() -> None:
    log = Chains()
    block = log.appended(2)
    lost = log.appended(2, 2)
    for node in (1, 2, 3):
        [replica] = [r for r in log.projection.replicas if r.node_id == node]
        log.replica_answers(replica, Remove())
        log.replica_answers(replica, Create())
        if node > 1:
            log.replica_answers(replica, Copy(block))
    goal = Goal(fresh=(Replica(1, 1, 0, 88),))
    ending = log.run(reconfigure(log.projection, goal, 2, lambda _: lost.end))
    assert isinstance(ending, Reconfigured)
    assert log.run(read_at(ending.projection, 2)) == Found(block)
    assert lost_by(log, 4) == {3, 4}


@pytest.mark.parametrize("chains", [1, 2])
def test_older_copies_that_have_everything_lost_nothing(chains: int) -> None:
    log = Chains(chains=chains, nodes=2)
    blocks = [log.appended(1 + sequence % 3, sequence) for sequence in range(8)]
    hole = log.ticket()
    log.appended(2, 9)
    assert log.run(decide(log.projection, hole.first)) == Found(junk(hole.first, 1))
    fresh = tuple(Replica(3, 1, chain, 88) for chain in range(chains))
    void = frozenset(log.projection.replicas)
    projection = log.reconfigured(Goal(fresh=fresh, unfit=void))
    assert (projection.lost, projection.lost_from) == ((), ())
    assert lost_by(log, projection.start - 1) == set()
    for block in blocks:
        assert log.run(read_at(projection, block.last)) == Found(block)


def test_more_extents_than_one_answer_has_are_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lost_blocks, "LIST_MAX", 3)
    log = Chains(chains=2)
    blocks = [log.appended(1, sequence) for sequence in range(30)]
    lost = {blocks[9].first, blocks[17].first}  # both on the first chain
    for replica in log.projection.chains[0]:
        log.replica_answers(replica, Remove())
        log.replica_answers(replica, Create())
        for block in blocks[1::2]:
            if block.first not in lost:
                log.replica_answers(replica, Copy(block))
    projection = log.reconfigured(Goal(fresh=(Replica(1, 1, 0, 88),)))
    assert projection.lost_range(0) == range(min(lost), max(lost) + 1)
    assert lost_by(log, 30) == lost


def test_junk_of_a_replica_that_left_hides_no_loss() -> None:
    """The position may have been undecided there, and filled with something else later."""
    log = Chains(nodes=2)
    log.appended()
    hole = log.ticket()
    left = log.projection.chains[0][0]
    log.replica_answers(left, Write(log.projection.epoch, junk(hole.first, 1)))
    log.silent = {1}
    log.reconfigured()
    log.silent = set()
    decided = log.appended(1, 2)
    assert decided.first == hole.first
    projection = log.reconfigured(Goal(fresh=(lose(log),), older=(left,)))
    assert projection.lost_range(0) == range(decided.first, decided.end)
    assert lost_by(log, 2) == {decided.first}


def test_a_lost_block_that_was_trimmed_in_part_is_lost_as_far_as_it_was_not() -> None:
    log = Chains(chains=2)
    log.appended(3)  # at 1, on the second chain
    log.appended(1, 2)
    for replica in log.projection.chains[0]:
        log.replica_answers(replica, Trim(log.projection.epoch, 1))
    log.reconfigured(Goal(fresh=(lose(log, 1),)))
    found = [log.run(decide_at(log.projection, position)) for position in (2, 3)]
    assert all(isinstance(o, Found) and log.projection.is_lost(o.block) for o in found)


def test_no_chain_begins_anew_before_all_have_said_what_they_have_left() -> None:
    log = Chains()
    log.appended()
    goal = Goal(fresh=(lose(log),))
    log.silent = {2}
    ending = log.run(reconfigure(log.projection, goal, 2, lambda _: 2))
    assert ending == Interrupted("what node 2 has left of chain 0 is not known yet")
    removed = goal._replace(leaving=frozenset([2]))
    assert isinstance(log.run(reconfigure(log.projection, removed, 2, lambda _: 2)), Reconfigured)


def test_what_a_closed_chain_lost_is_lost_up_to_its_end() -> None:
    log = Chains()
    log.appended(3)
    closed = log.reconfigured(Goal(close=True))
    projection = log.reconfigured(Goal(fresh=(lose(log),)))
    assert (projection.start, projection.closed, projection.lost) == (closed.start, True, (4,))
    assert lost_by(log, 3) == {1, 2, 3}


def test_a_chain_that_begins_again_gets_what_a_replica_had_that_left() -> None:
    log = Chains(nodes=2)
    kept = log.appended(2)
    undecided = log.at_head_only()
    left = log.projection.chains[0][0]
    log.reconfigured(Goal(leaving=frozenset([1])))
    log.run(decide(log.projection, undecided.first))  # a reader fills it with junk
    late = log.appended(1, 5)
    newcomer(log, node_id=3, birth=77)  # it is filled, and does not join
    goal = Goal(fresh=(lose(log),), older=(Replica(3, 1, 0, 77), left))
    projection = log.reconfigured(goal)
    assert log.run(read_at(projection, 2)) == Found(kept)
    assert log.run(read_at(projection, undecided.first)) == Found(junk(undecided.first, 1))
    assert projection.start == late.end


def test_what_a_replica_had_that_left_does_not_overlap_what_another_chain_has() -> None:
    log = Chains(chains=2, nodes=2)
    kept = log.appended(1)  # at 1, on the second chain
    undecided = log.at_head_only(2, 2)  # at 2, on the first one
    left = log.projection.chains[0][0]
    log.appended(2, 3)  # at 4, on the first one, too
    log.silent = {1}
    log.reconfigured(Goal(leaving=frozenset([1])), lambda _: 2)
    log.silent = set()
    log.replica_answers(log.projection.chains[0][0], Remove())
    before = log.projection.chains[1][0]
    decided = Block(3, 4, 9, 8, b"batch")
    log.replica_answers(before, Write(log.projection.epoch, decided))
    fresh = Replica(3, 1, 0, 88)
    projection = log.reconfigured(Goal(fresh=(fresh,), older=(left,)))
    assert log.on(3) == []
    assert not {*range(undecided.first, undecided.end)}.isdisjoint(range(3, 7))
    assert log.run(read_at(projection, 1)) == Found(kept)
    assert log.run(read_at(projection, 3)) == Found(decided)


def test_no_chain_begins_again_before_replicas_that_left_have_been_asked() -> None:
    log = Chains(nodes=2)
    log.appended()
    left = log.projection.chains[0][0]
    log.reconfigured(Goal(leaving=frozenset([1])))
    log.silent = {1}
    goal = Goal(fresh=(Replica(3, 1, 0, 88),), older=(left,))
    for replica in log.projection.chains[0]:
        log.replica_answers(replica, Remove())
    ending = log.run(reconfigure(log.projection, goal, 2))
    assert ending == Interrupted("what node 1 has left of chain 0 is not known yet")


class DamagedBlocks:
    """Blocks of which some fail their checksums."""

    def __init__(self, log: Chains, damaged: dict[int, set[int]]) -> None:
        """`damaged`: by node, the addresses."""
        self._real = log.replica_answers
        self._damaged = damaged

    def __call__(self, replica: Replica, request: Request) -> Answer:
        answer = self._real(replica, request)
        bad = self._damaged.get(replica.node_id, set()) if replica.birth == 1 else set()
        if isinstance(answer, Fetched) and request.salvage:  # type: ignore[union-attr]
            return Fetched([b for b in answer.blocks if b.first not in bad], answer.more)
        return answer


@pytest.mark.parametrize("both", [set(), {3}, {5}])
def test_of_damaged_replicas_only_what_none_has_is_lost(
    both: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Chains(nodes=2)
    for sequence in range(7):
        log.appended(1, sequence)
    log.ticket()  # a hole, which is not lost
    log.appended()
    damaged = frozenset(log.projection.replicas)
    bad = {1: {2} | both, 2: {6} | both}
    monkeypatch.setattr(log, "replica_answers", DamagedBlocks(log, bad))
    goal = Goal(fresh=(Replica(3, 1, 0, 88),), unfit=damaged, damaged=damaged)
    projection = log.reconfigured(goal)
    assert lost_by(log, 9) == both
    assert projection.lost == ((max(both) + 1,) if both else ())
    assert projection.start == 10


@pytest.mark.parametrize("filled", [0, 1, 3])
def test_a_loss_of_unknown_extent_is_one_however_much_of_it_was_filled(filled: int) -> None:
    log = Chains()
    log.appended(5)
    start = 5 * REFERENCE_RECORDS_MAX + 7
    goal = Goal(fresh=(lose(log),))
    ending = log.run(reconfigure(log.projection, goal, 2, lambda _: start))
    assert isinstance(ending, Reconfigured)
    first = log.run(decide_at(log.projection, 1))
    assert isinstance(first, Found)
    for number in range(filled):
        log.run(decide_at(log.projection, number * REFERENCE_RECORDS_MAX + 1))
    for _ in range(2):
        assert log.run(find_end_of_loss(log.projection, first.block)) == start
    log.sequencer = Sequencer(log.projection)
    log.appended()
    log.reconfigured()
    assert log.run(find_end_of_loss(log.projection, first.block)) == start


def test_a_short_loss_ends_with_its_block() -> None:
    log = Chains()
    log.appended(5)
    log.reconfigured(Goal(fresh=(lose(log),)))
    found = Found(junk(1, 2))
    assert log.run(find_end_of_loss(log.projection, found.block)) == 3


def test_an_epoch_starts_behind_what_was_handed_out_and_trimmed() -> None:
    projection = first_projection(1, [[1, 2]], birth=1, sequencer=1)
    assert least_start(projection, Goal(), handed_out=7, trimmed=3) == 7
    assert least_start(projection, Goal(), handed_out=0, trimmed=3) == 4
    assert least_start(projection._replace(closed=True), Goal(), handed_out=0, trimmed=3) == 0


def test_an_epoch_leaves_room_for_what_a_lost_chain_may_have_had() -> None:
    projection = first_projection(1, [[1, 2]], birth=1, sequencer=1)
    lost = Goal(fresh=(Replica(3, 1, 0, 9),))
    assert least_start(projection, lost, handed_out=0, trimmed=0) == 1 + HANDED_OUT_MAX
    assert least_start(projection, lost, handed_out=7, trimmed=0) == 7
    damaged = lost._replace(damaged=frozenset(projection.chains[0][:1]))
    assert least_start(projection, damaged, handed_out=0, trimmed=0) == 1
    not_begun = projection._replace(first=0, start=0)
    assert least_start(not_begun, lost, handed_out=0, trimmed=0) == 1
