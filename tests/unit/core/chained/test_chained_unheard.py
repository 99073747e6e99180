"""Replicas that were not waited for after a power failure show later what all others forgot."""

from __future__ import annotations

import pytest
from forgetful_chains import IMPATIENT, Forgetful

from loomlog.core.chained import lost_blocks
from loomlog.core.chained.chain import Block, Replica, Unheard, junk
from loomlog.core.chained.comparison import Comparison, compare
from loomlog.core.chained.messages import Found, Remove, Seal, Write
from loomlog.core.chained.read import decide, decide_at
from loomlog.core.chained.reconfigure import HANDED_OUT_MAX, Goal, least_start
from loomlog.core.chained.replica import NOT_HERE
from loomlog.core.chained.trim import trim
from loomlog.limits import POSITION_MAX, REFERENCE_RECORDS_MAX
from loomlog.types import Glsn, NodeId


def positions(*blocks: Block) -> set[Glsn]:
    return {position for block in blocks for position in range(block.first, block.end)}


def test_who_is_not_waited_for_is_noted_with_the_epoch() -> None:
    log = Forgetful()
    log.appended(3)
    log.lose_power(absent={2})
    new = log.continue_without()
    assert log.unheard == (Unheard(Replica(2, 1, 0, 1), new.epoch, new.start),)
    assert new.start == 4


@pytest.mark.parametrize(
    ("absent", "first"), [({1}, [1]), ({3}, []), ({2, 3}, []), ({1, 2}, [1, 2]), ({1, 3}, [1])]
)
def test_it_is_noted_who_may_have_blocks_that_were_in_flight(
    absent: set[NodeId], first: list[NodeId]
) -> None:
    """No replica that was heard is before them, so blocks that they alone have prove nothing;
    except those that all had."""
    log = Forgetful()
    log.appended()
    log.lose_power()
    decided = log.continue_without().start
    log.appended()
    log.lose_power(absent=absent)
    log.continue_without()
    found = {each.replica.node_id: each.decided for each in log.unheard}
    assert found == {node: decided if node in first else POSITION_MAX for node in absent}


def test_nobody_is_noted_if_one_did_not_crash_or_all_are_there() -> None:
    log = Forgetful()
    log.lose_power()
    log.continue_without()
    assert log.unheard == ()
    log.lose_power(absent={3})
    log.lives[2] -= 1
    log.continue_without()
    assert log.unheard == ()


def test_unfit_replicas_are_not_heard_either() -> None:
    log = Forgetful()
    forgotten = log.appended(2)
    log.lose_power(1, 2)
    unfit = frozenset([Replica(3, 1, 0, 1)])
    log.reconfigured(IMPATIENT._replace(unfit=unfit), lambda _: forgotten.end)
    comparison = log.come_back()
    assert comparison.witnesses == (Replica(3, 1, 0, 1),)
    assert log.report(comparison) == positions(forgotten)


def test_what_only_an_unheard_replica_has_is_lost() -> None:
    log = Forgetful()
    forgotten = [log.appended(2, 7), log.appended(1, 8)]
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    kept = log.appended(1, 9)
    comparison = log.come_back()
    places = tuple(range(block.first, block.end) for block in forgotten)
    witness = Replica(3, 1, 0, 1)
    assert comparison == Comparison((witness,), (witness,), places)
    assert log.report(comparison) == positions(*forgotten)
    assert log.run(decide_at(log.projection, kept.first)) == Found(kept)


def test_honest_disks_prove_nothing() -> None:
    log = Forgetful(chains=2)
    log.appended(2)
    log.at_head_only(2, 5)
    behind = log.at_head_only(1, 6)
    second = log.projection.chain_of(behind.first)[1]
    log.replica_answers(second, Write(log.projection.epoch, behind))
    log.lose_power(absent={2, 3})
    log.continue_without()
    assert len(log.unheard) == 4
    comparison = log.come_back()
    assert (len(comparison.compared), comparison.forgotten) == (4, ())


def test_junk_that_is_forgotten_is_no_loss() -> None:
    log = Forgetful()
    hole = log.ticket(2)
    log.run(decide(log.projection, hole.first))
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    assert log.come_back().forgotten == ()


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("chains", [1, 2, 3])
def test_readers_may_have_filled_the_place_from_another_chain(chains: int, filled: bool) -> None:
    log = Forgetful(chains=chains)
    first = log.ticket(2)  # a writer that died
    forgotten = log.appended(3)
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    kept = log.appended()
    if filled:
        assert log.run(decide(log.projection, 1)) == Found(junk(1, 5))
    found = log.report(log.come_back())
    assert found >= positions(forgotten)
    assert found <= positions(forgotten) | {*range(first.first, first.first + first.count)}
    assert log.run(decide_at(log.projection, kept.first)) == Found(kept)


def test_a_chain_that_begins_again_leaves_to_the_comparison_what_another_chain_has_filled() -> None:
    log = Forgetful(chains=2)
    log.ticket(1)  # a writer that died, on the second chain
    forgotten = log.appended(3)  # at 2, on the first one
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    assert log.run(decide(log.projection, 1)) == Found(junk(1, 4))
    unheard = log.unheard
    log.silent = set()
    for replica in log.projection.chains[0]:
        log.replica_answers(replica, Remove())
    (left,) = (each.replica for each in unheard if each.replica.chain == 0)
    log.reconfigured(Goal(fresh=(Replica(1, 1, 0, 88),), older=(left,)))
    assert log.run(decide_at(log.projection, forgotten.first)) == Found(junk(1, 4))
    found = log.report(log.run(compare(log.projection, unheard)))
    assert found >= positions(forgotten)


def test_only_the_hole_that_has_a_lost_block_is_reported() -> None:
    log = Forgetful()
    log.ticket()
    log.appended()
    log.remember()
    forgotten = log.appended(2)
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    log.appended()
    log.ticket()
    log.appended()
    assert log.report(log.come_back()) == positions(forgotten)
    assert log.projection.lost_range(0) == range(forgotten.first, forgotten.end)


def test_a_place_that_is_filled_in_parts_is_reported_as_a_whole() -> None:
    log = Forgetful(chains=2)
    forgotten = log.appended(4)
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    for first in (1, 2, 3, 4):  # as an older release may have done
        for replica in log.projection.chain_of(first):
            log.replica_answers(replica, Write(log.projection.epoch, junk(first, 1)))
    assert log.report(log.come_back()) == positions(forgotten)


def test_the_comparison_looks_through_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_blocks, "LIST_MAX", 3)
    log = Forgetful(chains=2)
    for sequence in range(20):
        log.appended(1, sequence)
    log.remember()
    forgotten = [log.appended(1 + sequence % 2, sequence) for sequence in range(20)]
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    for sequence in range(20):
        log.appended(1, sequence)
    comparison = log.come_back()
    assert {*comparison.forgotten} == {range(block.first, block.end) for block in forgotten}
    assert log.report(comparison) == positions(*forgotten)


def test_what_is_trimmed_is_not_lost() -> None:
    log = Forgetful()
    blocks = [log.appended(2, sequence) for sequence in range(3)]
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    log.appended()
    log.run(trim(log.projection, blocks[0].last))
    comparison = log.come_back()
    log.reconfigured(Goal(forgotten=comparison.forgotten))
    found = [log.run(decide_at(log.projection, p)) for p in range(blocks[1].first, blocks[2].end)]
    assert all(isinstance(each, Found) and log.projection.is_lost(each.block) for each in found)
    log.run(trim(log.projection, blocks[2].last))
    assert log.run(compare(log.projection, log.unheard)).forgotten == ()


def test_a_loss_that_is_trimmed_does_not_make_another_one_longer() -> None:
    log = Forgetful()
    first = log.appended()
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    log.report(log.come_back())
    log.run(trim(log.projection, first.last))
    hole = log.ticket()
    log.appended()
    log.remember()
    again = log.appended(2)
    log.lose_power(1, absent={2})
    log.continue_without()
    log.report(log.come_back())
    assert log.projection.lost_range(0) == range(again.first, again.end)
    assert not log.projection.may_be_lost(hole.first)


def test_two_come_back_one_after_the_other() -> None:
    log = Forgetful()
    forgotten = log.appended(2)
    log.lose_power(1, absent={2, 3})
    log.continue_without()
    second, third = log.unheard
    log.silent = {3}
    comparison = log.run(compare(log.projection, [second, third]))
    assert (comparison.compared, comparison.trouble) == ((second.replica,), "no answer")
    assert log.report(comparison) == positions(forgotten)
    log.silent = set()
    comparison = log.run(compare(log.projection, [third]))
    assert comparison.witnesses == (third.replica,)
    assert log.report(comparison) == positions(forgotten)


def test_a_closed_segment_reports_a_loss_and_keeps_its_end() -> None:
    log = Forgetful()
    forgotten = log.appended(2)
    end = forgotten.end
    log.lose_power(1, 2, absent={3})
    closed = log.reconfigured(IMPATIENT._replace(close=True), lambda _: end)
    comparison = log.come_back()
    assert log.report(comparison) == positions(forgotten)
    assert (log.projection.closed, log.projection.start) == (True, closed.start)


def test_the_unheard_replica_is_sealed_at_the_epoch_that_did_without_it() -> None:
    """If it were sealed at a later epoch, it would seem to have been in that projection, which
    could not be disproved after a rollback of the metadata."""
    log = Forgetful()
    log.appended()
    log.lose_power(1, 2, absent={3})
    epoch = log.continue_without().epoch
    unheard = log.unheard
    log.reconfigured()
    log.reconfigured()
    log.silent = set()
    log.run(compare(log.projection, unheard))
    stored = log.tables[3].look(unheard[0].replica)
    assert stored.standing is not None
    assert stored.standing.epoch == epoch


def test_a_replica_that_was_sealed_later_is_compared_too() -> None:
    log = Forgetful()
    forgotten = log.appended()
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    log.replica_answers(log.unheard[0].replica, Seal(99, salvage=True))
    assert log.report(log.come_back()) == positions(forgotten)


def test_a_replica_that_is_gone_proves_nothing_once_that_is_known_to_be_for_good() -> None:
    log = Forgetful()
    log.appended()
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    replica = log.unheard[0].replica
    log.replica_answers(replica, Remove())
    assert log.replica_answers(replica, Seal(1)) == NOT_HERE
    log.silent = set()
    comparison = log.run(compare(log.projection, log.unheard))
    assert comparison.compared == ()
    assert "bring back its volume" in comparison.trouble
    comparison = log.run(compare(log.projection, log.unheard, lost=[replica]))
    assert comparison == Comparison(compared=(replica,))


def test_a_head_that_does_not_answer_is_asked_again() -> None:
    log = Forgetful()
    log.appended()
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    log.silent = {1}
    comparison = log.run(compare(log.projection, log.unheard))
    assert comparison == Comparison(trouble="no answer")


# ---- positions


def test_positions_that_may_have_been_lost_are_not_handed_out_again() -> None:
    log = Forgetful()
    log.lose_power(absent={3})
    asked: list[bool] = []

    def stop(did_without: bool) -> Glsn:
        asked.append(did_without)
        return least_start(log.projection, IMPATIENT, 0, 0, did_without=did_without)

    start = log.projection.start
    assert log.reconfigured(IMPATIENT, stop).start == start + HANDED_OUT_MAX
    log.silent = set()
    start = log.projection.start
    assert log.reconfigured(IMPATIENT, stop).start == start
    assert asked == [True, False]
    assert least_start(log.projection, Goal(), start + 7, 0, did_without=True) == start + 7


def test_nor_are_they_if_only_replicas_before_the_others_are_absent() -> None:
    log = Forgetful()
    log.lose_power(absent={1})
    projection = log.projection
    log.reconfigured(
        IMPATIENT, lambda did: least_start(projection, IMPATIENT, 0, 0, did_without=did)
    )
    assert log.projection.start == projection.start + HANDED_OUT_MAX


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("chains", [1, 2, 3])
def test_a_loss_before_positions_that_were_skipped_is_found(chains: int, filled: bool) -> None:
    log = Forgetful(chains=chains)
    forgotten = [log.appended(1, sequence) for sequence in range(3)]
    log.lose_power(1, 2, absent={3})
    projection = log.projection
    log.reconfigured(
        IMPATIENT, lambda did: least_start(projection, IMPATIENT, 0, 0, did_without=did)
    )
    kept = log.appended()
    if filled:
        assert log.run(decide(log.projection, 1)) == Found(junk(1, REFERENCE_RECORDS_MAX))
    log.reconfigured(Goal(forgotten=log.come_back().forgotten))
    found = log.run(decide_at(log.projection, 2))
    assert isinstance(found, Found)
    assert log.projection.is_lost(found.block)
    assert log.projection.lost_range(1 % chains) == range(1, forgotten[-1].end)
    assert log.run(decide_at(log.projection, kept.first)) == Found(kept)


def test_a_loss_that_is_longer_than_a_fill_is_on_all_chains() -> None:
    log = Forgetful(chains=3)
    long = [log.appended(REFERENCE_RECORDS_MAX, sequence) for sequence in range(3)]
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    log.reconfigured(Goal(forgotten=log.come_back().forgotten))
    for block in long:
        for position in (block.first, block.last):
            found = log.run(decide_at(log.projection, position))
            assert isinstance(found, Found)
            assert log.projection.is_lost(found.block)


def test_a_hole_below_a_loss_is_filled_at_once() -> None:
    """A fill of each position would take too long."""
    log = Forgetful(chains=2)
    hole = log.ticket(1_000_000)
    log.appended(1, 2)
    log.remember()
    forgotten = log.appended(1, 3)
    log.lose_power(1, 2, absent={3})
    log.continue_without()
    log.reconfigured(Goal(forgotten=log.come_back().forgotten))
    found = log.run(decide(log.projection, hole.first))
    assert found == Found(junk(hole.first, hole.count))
    lost = log.run(decide_at(log.projection, forgotten.first))
    assert isinstance(lost, Found)
    assert log.projection.is_lost(lost.block)
