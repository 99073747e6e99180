"""Writers report acknowledged blocks to replicas. So the first node of a chain, which was not
waited for after a power failure, can prove that all others forgot a block."""

from __future__ import annotations

import pytest
from chained_rig import LOG, Chains, batch
from forgetful_chains import Forgetful

from loomlog.core.chained import lost_blocks
from loomlog.core.chained.admission import Admission
from loomlog.core.chained.append import Appended, UnreportedBlocks, append
from loomlog.core.chained.chain import Block, Replica
from loomlog.core.chained.messages import (
    ACKNOWLEDGED_MAX,
    Acknowledge,
    Done,
    EpochOver,
    Found,
    List,
    Listed,
    Missing,
    Stored,
    Write,
)
from loomlog.core.chained.newcomer import Newcomer, create
from loomlog.core.chained.read import read_at
from loomlog.core.chained.reconfigure import Goal
from loomlog.core.chained.replica import Standing, decide
from loomlog.core.chained.trim import trim
from loomlog.storage.chained.block_table import MemoryBlocks
from loomlog.types import Glsn, NodeId

HEAD = Replica(1, LOG, 0, 1)


def told(log: Chains, *others: Block, sequence: int = 99) -> Block:
    """Append a block that reports other blocks as acknowledged."""
    ticket = log.ticket()
    block = batch(ticket, sequence)._replace(acknowledged=tuple(other.first for other in others))
    assert log.run(append(log.projection, ticket, block)) == Appended()
    return block


def tell(log: Chains, *others: Block) -> None:
    """Tell of blocks when none follow."""
    for other in others:
        for replica in log.projection.chain_of(other.first):
            request = Acknowledge(log.projection.epoch, (other.first,))
            assert log.replica_answers(replica, request) == Done()


def positions(*blocks: Block) -> set[Glsn]:
    return {position for block in blocks for position in range(block.first, block.end)}


# ---- what is lost


@pytest.mark.parametrize("absent", [{1}, {1, 2}])
def test_the_first_node_proves_what_it_knows_to_be_acknowledged(absent: set[NodeId]) -> None:
    log = Forgetful()
    forgotten = log.appended(3)
    told(log, forgotten)
    log.lose_power(*({1, 2, 3} - absent), absent=absent)
    log.continue_without()
    comparison = log.come_back()
    assert {witness.node_id for witness in comparison.witnesses} == absent
    assert comparison.forgotten == (range(forgotten.first, forgotten.end),)
    assert log.report(comparison) >= positions(forgotten)


def test_a_writer_without_more_blocks_tells_of_its_last_one() -> None:
    log = Forgetful(chains=2)
    forgotten = [log.appended(2), log.appended(3)]
    tell(log, *forgotten)
    log.lose_power(2, 3, absent={1})
    log.continue_without()
    assert log.report(log.come_back()) == positions(*forgotten)


def test_a_block_may_tell_of_a_later_one() -> None:
    """Appends of one writer overtake each other."""
    log = Forgetful()
    slow = log.ticket()
    forgotten = log.appended()
    first = batch(slow)._replace(acknowledged=(forgotten.first,))
    assert log.run(append(log.projection, slow, first)) == Appended()
    log.lose_power(2, 3, absent={1})
    log.continue_without()
    assert log.report(log.come_back()) >= positions(forgotten)


def test_with_honest_disks_nothing_is_lost() -> None:
    log = Forgetful()
    last = told(log, log.appended(), log.appended())
    tell(log, last)
    log.at_head_only(2, 5)
    log.lose_power(absent={1})
    log.continue_without()
    comparison = log.come_back()
    assert (comparison.compared, comparison.forgotten) == ((HEAD,), ())


def test_blocks_that_were_in_flight_are_not_lost() -> None:
    log = Forgetful()
    log.at_head_only()
    forgotten = told(log)
    log.at_head_only()
    tell(log, forgotten)
    log.lose_power(2, 3, absent={1})
    log.continue_without()
    assert log.come_back().forgotten == (range(forgotten.first, forgotten.end),)


def test_what_is_told_without_sense_proves_nothing() -> None:
    log = Forgetful()
    kept = log.appended()
    log.remember()
    senseless = batch(log.ticket())._replace(acknowledged=(kept.first, 7_777, kept.first))
    log.replica_answers(HEAD, Write(log.projection.epoch, senseless))
    log.lose_power(2, 3, absent={1})
    log.continue_without()
    assert log.come_back().forgotten == ()


def test_what_was_trimmed_is_not_lost() -> None:
    log = Forgetful()
    forgotten = [log.appended(2), log.appended(2)]
    told(log, *forgotten)
    log.lose_power(2, 3, absent={1})
    log.continue_without()
    log.appended()
    log.run(trim(log.projection, forgotten[1].first))
    assert log.come_back().forgotten == (range(forgotten[1].first, forgotten[1].end),)
    log.run(trim(log.projection, forgotten[1].last))
    assert log.come_back().forgotten == ()


def test_the_comparison_looks_through_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks far after and before others report them."""
    monkeypatch.setattr(lost_blocks, "LIST_MAX", 3)
    log = Forgetful()
    early = log.ticket()
    forgotten = [log.appended(1, sequence) for sequence in range(20)]
    told(log, *forgotten[:10])
    ahead = batch(early)._replace(acknowledged=tuple(each.first for each in forgotten[10:]))
    assert log.run(append(log.projection, early, ahead)) == Appended()
    log.lose_power(2, 3, absent={1})
    log.continue_without()
    comparison = log.come_back()
    assert {*comparison.forgotten} == {range(block.first, block.end) for block in forgotten}
    assert log.report(comparison) >= positions(*forgotten)


# ---- blocks that were copied


def test_a_newcomer_that_has_become_the_first_proves_what_was_copied_to_it() -> None:
    """No writer told it anything, but all that it got was decided when another one joined."""
    log = Forgetful()
    forgotten = log.appended(2)
    log.reconfigured(Goal(leaving=frozenset([2, 3])))
    join(log, Replica(3, LOG, 0, 30))
    log.reconfigured(Goal(leaving=frozenset([1])))
    join(log, Replica(2, LOG, 0, 20))
    assert [replica.node_id for replica in log.projection.chains[0]] == [3, 2]
    log.lose_power(2, absent={3})
    log.continue_without()
    assert log.on(2) == []
    assert log.report(log.come_back()) == positions(forgotten)


def join(log: Forgetful, replica: Replica) -> None:
    """Fill a newcomer, of which its disk forgets everything when it loses power."""
    newcomer = log.run(create(log.projection, replica))
    assert isinstance(newcomer, Newcomer)
    log.remember()
    admission = Admission(newcomer)
    assert log.run(admission.catch_up(log.projection)) is None
    log.reconfigured(Goal(newcomer=admission.newcomer))


def test_replicas_that_gave_each_other_all_they_had_prove_it_in_the_next_power_failure() -> None:
    """The head got a block back without the report about it."""
    log = Forgetful()
    forgotten = log.appended()
    told(log, forgotten)
    log.lose_power(1)
    log.continue_without()
    log.lose_power(2, 3, absent={1})
    log.continue_without()
    assert positions(forgotten) <= log.report(log.come_back())


def test_an_epoch_after_the_crash_of_some_proves_nothing() -> None:
    """A replica that did not crash may lack what is in flight."""
    log = Forgetful()
    in_flight = log.at_head_only()
    log.lives[3] += 1
    assert log.reconfigured().decided <= in_flight.first
    log.lose_power(absent={1})
    log.continue_without()
    assert log.come_back().forgotten == ()


# ---- replicas


def test_a_replica_lists_what_it_was_told() -> None:
    log = Chains()
    first, second = log.appended(2), log.appended(2)
    last = told(log, first)
    tell(log, second)
    tell(log, second)
    listed = log.replica_answers(HEAD, List(1, 1, 9, with_acknowledged=True))
    assert listed == Listed(
        [block.extent for block in (first, second, last)], False, 0, (second.first, first.first)
    )
    assert log.replica_answers(HEAD, List(1, 1, 9)) == Listed(
        [block.extent for block in (first, second, last)], more=False
    )


def test_blocks_that_are_not_there_are_not_noted() -> None:
    log = Chains()
    block = log.appended(3)
    for address in (block.first + 1, block.end):
        assert log.replica_answers(HEAD, Acknowledge(1, (address,))) == Missing(0)
    listed = log.replica_answers(HEAD, List(1, 1, 9, with_acknowledged=True))
    assert listed == Listed([block.extent], more=False)


def test_nothing_is_noted_of_blocks_that_the_same_commit_trims() -> None:
    log = Chains()
    block = log.appended()
    blocks = MemoryBlocks()
    blocks.put(block)  # the trim is decided, and removes them with the commit
    standing = Standing(epoch=1, trimmed=block.last)
    assert decide(Acknowledge(1, (block.first,)), standing, blocks) == (Done(), ())
    _, changes = decide(Acknowledge(1, (block.first,)), Standing(epoch=1), blocks)
    assert len(changes) == 1


def test_a_client_that_is_closed_tells_everything() -> None:
    unreported = UnreportedBlocks(lambda: None)
    addresses = tuple(range(1, 2 * ACKNOWLEDGED_MAX + 2))
    unreported.add((1, 1, 0), *addresses)
    assert [each for _, told in unreported.take_all() for each in told] == [*addresses]
    assert not unreported


def test_nothing_is_noted_in_another_epoch() -> None:
    log = Chains()
    block = log.appended()
    log.reconfigured()
    assert log.replica_answers(HEAD, Acknowledge(1, (block.first,))) == EpochOver(2)


# ---- writers


def test_a_writer_tells_with_its_next_block_on_the_chain() -> None:
    unreported = UnreportedBlocks(lambda: None)
    unreported.add((1, 1, 0), 10)
    unreported.add((1, 1, 1), 11)
    unreported.add((1, 1, 0), 12)
    assert unreported.take((2, 1, 0)) == ()
    assert (
        unreported.take((1, 2, 0)) == ()
    )  # replicas may have forgotten what was acknowledged before
    assert unreported.take((1, 1, 0)) == (10, 12)
    assert unreported.take((1, 1, 0)) == ()
    assert unreported.take((1, 1, 1)) == (11,)
    assert not unreported


def test_a_writer_does_not_tell_too_much_at_a_time() -> None:
    unreported = UnreportedBlocks(lambda: None)
    unreported.add((1, 1, 0), *range(1, ACKNOWLEDGED_MAX + 3))
    assert unreported.take((1, 1, 0)) == (*range(1, ACKNOWLEDGED_MAX + 1),)
    assert unreported.take((1, 1, 0)) == (ACKNOWLEDGED_MAX + 1, ACKNOWLEDGED_MAX + 2)


def test_only_what_no_block_could_tell_is_told_by_itself() -> None:
    watched: list[bool] = []
    unreported = UnreportedBlocks(lambda: watched.append(True))
    unreported.add((1, 1, 0), 10)
    unreported.add((1, 1, 1), 11)
    assert watched == [True]
    assert list(unreported.take_idle()) == []
    unreported.add((1, 1, 1), *unreported.take((1, 1, 1)), 13)  # a block was written
    assert list(unreported.take_idle()) == [((1, 1, 0), (10,))]
    assert list(unreported.take_idle()) == [((1, 1, 1), (11, 13))]
    assert not unreported


def test_a_block_that_tells_of_many_can_still_be_completed() -> None:
    """Writers may have sent it again with other addresses; a request takes no more than a writer
    tells at a time."""
    log = Chains()
    block = batch(log.ticket())
    for begin in range(1000, 2000, ACKNOWLEDGED_MAX):
        told_now = block._replace(acknowledged=tuple(range(begin, begin + ACKNOWLEDGED_MAX)))
        assert log.replica_answers(HEAD, Write(1, told_now)) == Stored()
    assert log.replica_answers(HEAD, Acknowledge(1, (block.first,))) == Done()
    assert isinstance(log.run(read_at(log.projection, block.first)), Found)
    for ask in log.asked:
        if isinstance(ask.request, Write):
            told_then = ask.request.block.acknowledged
            assert block.first in told_then
            assert len(told_then) <= ACKNOWLEDGED_MAX
    listed = log.replica_answers(HEAD, List(1, 1, 9, with_acknowledged=True))
    assert isinstance(listed, Listed)
    assert len(listed.acknowledged) == ACKNOWLEDGED_MAX + 1
