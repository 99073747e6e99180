"""The plan of a rebuilding: its epochs, donors, targets and nodesets."""

from __future__ import annotations

from dataclasses import replace

from loomlog.core.copyset.log_state import holders, lossy_epochs, still_lossy, waits_for
from loomlog.core.copyset.messages import Acknowledged, EpochEnd, LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.rebuild.plan import (
    Delay,
    Part,
    choose_targets,
    delay,
    donor_of,
    doubts,
    is_ready,
    narrowed,
    parts,
    uncertain,
    widened,
)
from loomlog.core.copyset.record import make
from loomlog.core.copyset.upkeep import losses


def nodeset(*nodes: int) -> tuple[Member, ...]:
    return tuple(Member(node) for node in nodes)


OLD = EpochMetadata(1, nodeset(1, 2, 3), 2)
NEW = EpochMetadata(4, nodeset(2, 3, 4), 2)
STATE = LogState(6, 1, (OLD, NEW), last_clean=5, tail=make(5, 9))


def test_all_epochs_that_the_shard_may_have_copies_of_are_scanned() -> None:
    assert parts(STATE, {1: 6}) == [Part(OLD, 1, 3)]
    assert parts(STATE, {2: 5}) == [Part(OLD, 1, 3), Part(NEW, 4, 5)]
    assert parts(STATE, {9: 6}) == []


def test_what_is_trimmed_is_not_scanned() -> None:
    trimmed = replace(STATE, trimmed=make(3, 7))
    assert parts(trimmed, {1: 6}) == [Part(OLD, 3, 3)]
    assert parts(replace(STATE, trimmed=make(4, 0)), {1: 6}) == []


def test_rebuilding_waits_until_the_epochs_are_recovered() -> None:
    assert is_ready(STATE, {2: 5})
    assert not is_ready(STATE, {2: 6})
    assert is_ready(STATE, {1: 6}), "it is not in the newest nodeset"


def test_a_record_may_have_been_only_on_shards_that_may_return() -> None:
    assert uncertain(STATE, {1: 6}, absent=[1], may_return=[1]) == []
    assert uncertain(STATE, {1: 6, 2: 5}, absent=[1, 2], may_return=[1]) == [OLD]
    assert uncertain(STATE, {1: 6, 2: 5}, absent=[1, 2], may_return=[]) == []
    assert uncertain(STATE, {1: 6, 2: 5}, absent=[1], may_return=[1]) == [], "2 is drained"
    lost = {2: 6, 3: 6, 4: 6}
    assert uncertain(STATE, lost, absent=[2, 3, 4], may_return=[4]) == [NEW], "nobody else returns"


def test_an_epoch_in_doubt_holds_up_only_the_shards_of_its_nodeset() -> None:
    """Only shards 1 and 2 may have had a record of epochs 1 to 3; shard 4 joined later."""
    through = {1: 6, 2: 6, 4: 6}
    state = replace(STATE, history=(OLD, NEW._replace(replication=3)), last_clean=6)
    assert delay(1, state, through, [1, 2, 4], [1]) is Delay.UNCERTAIN
    assert delay(2, state, through, [1, 2, 4], [1]) is Delay.UNCERTAIN, "it is lost"
    assert delay(4, state, through, [1, 2, 4], [1, 4]) is None


def test_an_epoch_that_is_not_recovered_holds_up_only_the_shards_of_its_nodeset() -> None:
    through = {1: 6, 2: 6}
    assert delay(1, STATE, through, [1, 2], []) is None
    assert delay(2, STATE, through, [1, 2], []) is Delay.UNRECOVERED


def test_a_shard_leaves_the_nodesets_that_are_certain_though_it_waits_for_others() -> None:
    state = replace(STATE, last_clean=6)
    through = {1: 6, 2: 6}
    kept = doubts(2, state, through, [1, 2], [1])
    assert kept == [OLD]
    after = narrowed(state, 2, 6, kept)
    assert [metadata.shards for metadata in after.history] == [(1, 2, 3), (3, 4)]
    assert doubts(4, state, through, [1, 2], [1]) == [], "it is there"
    crashed = doubts(2, state, through, [1, 2], [1], [3])
    assert crashed == [OLD, NEW], "shard 3 may have forgotten what 2 has"


def test_others_that_crashed_may_have_forgotten_what_a_shard_had() -> None:
    """Crashed shards are checked first. If the other may return, the check waits for it."""
    through = {1: 6}
    assert delay(1, STATE, through, [1], [], [2]) is Delay.UNCHECKED
    assert delay(1, STATE, through, [1], [1], [2]) is Delay.UNCERTAIN
    assert delay(1, STATE, through, [1], [1], []) is None
    assert delay(1, STATE, through, [1], [1], [4]) is None, "it is in another nodeset"
    assert delay(1, STATE, through, [], [], [2]) is None, "it is drained, and gives"
    assert delay(1, STATE, {1: 6, 2: 5}, [1, 2], [], [1, 2]) is None, "nobody is left to check"


def test_a_log_delays_only_the_shards_that_it_is_on() -> None:
    through = {1: 6, 2: 5}
    assert delay(1, STATE, through, [1, 2], [1]) is Delay.UNCERTAIN
    assert delay(9, STATE, through, [1, 2, 9], [1]) is None, "it has nothing of the log"
    assert delay(2, STATE, through, [1], [1]) is None, "it is drained, and gives"
    assert delay(2, STATE, {2: 6}, [], []) is Delay.UNRECOVERED
    assert delay(9, STATE, {2: 6}, [9], [9]) is None


def test_the_donors_of_a_copyset_take_turns() -> None:
    donors = {donor_of((1, 2, 3), lsn, absent=[2]) for lsn in range(50)}
    assert donors == {1, 3}
    assert donor_of((2,), 1, absent=[2]) is None


def test_records_of_one_copyset_go_to_one_target() -> None:
    wide = EpochMetadata(1, nodeset(*range(1, 10)), 3)
    chosen = choose_targets((1, 2, 3), {1, 2}, wide, range(4, 10))
    assert chosen is not None
    assert len(chosen) == 1
    assert choose_targets((3, 1, 2), {1, 2}, wide, range(4, 10)) == chosen
    assert choose_targets((1, 2, 3, 4), {1, 2, 3}, wide, range(5, 10)) == ()
    assert choose_targets((1, 2, 3), {1, 2}, wide, []) is None
    others = {choose_targets((1, 2, n), {1, 2}, wide, range(4, 10)) for n in range(20, 60)}
    assert len(others) > 3, "different copysets use all of them"


def test_a_target_is_in_another_failure_domain_if_possible() -> None:
    members = tuple(Member(node, f"rack {node % 3}") for node in range(1, 10))
    racks = EpochMetadata(1, members, 3)
    for lost in range(1, 4):
        kept = {1, 2, 3} - {lost}
        chosen = choose_targets((1, 2, 3), kept, racks, range(4, 10))
        assert chosen is not None
        assert {node % 3 for node in chosen} == {lost % 3}


def test_a_node_joins_the_nodesets_where_too_few_others_are_left() -> None:
    state = LogState(6, 1, (EpochMetadata(1, nodeset(1, 2, 3), 3),), last_clean=5, tail=0)
    usable = nodeset(1, 2, 4, 5)
    after = widened(state, {3: 4}, usable)
    old, new = after.history
    assert (old.since, new.since) == (1, 5)
    assert new.nodeset == nodeset(1, 2, 3)
    assert old.nodeset in (nodeset(1, 2, 3, 4), nodeset(1, 2, 3, 5))
    assert widened(after, {3: 4}, usable) == after, "once"


def racks(*nodes: int, count: int) -> tuple[Member, ...]:
    return tuple(Member(node, f"rack {node % count}") for node in nodes)


def test_a_node_joins_in_the_failure_domain_of_one_that_leaves() -> None:
    """A third rack would make existing copysets invalid that lie in a single rack."""
    old = EpochMetadata(1, (*racks(1, 2, 3, count=2), Member(5, "rack 1")), 3)
    state = LogState(6, 1, (old,), last_clean=5, tail=0)
    after = widened(state, {3: 4, 5: 4}, [*racks(1, 2, count=2), Member(4, "rack 9")])
    [_, _, _, _, joined] = after.history[0].nodeset
    assert joined.shard == 4
    assert joined.domain in ("rack 0", "rack 1")
    assert after.history[0].domains_spanned == old.domains_spanned == 1


def test_failure_domains_no_longer_count_when_too_few_are_left() -> None:
    old = EpochMetadata(1, racks(1, 2, 3, 4, 5, 9, 13, count=4), 3)
    state = LogState(6, 1, (old,), last_clean=5, tail=0)
    after = widened(state, {2: 4, 3: 4, 4: 4}, racks(1, 5, 9, 13, count=4))
    assert old.domains_spanned == 3
    assert after.history[0].domains_spanned == 1
    assert after.history[0].shards == old.shards
    assert after.history[0].can_hold_a_copyset([1, 5, 9])


def test_no_node_joins_where_enough_others_are_left_or_nothing_is_recovered() -> None:
    assert widened(STATE, {1: 3}, nodeset(2, 3, 4)) == STATE
    state = LogState(1, 1, (EpochMetadata(1, nodeset(1, 2, 3), 3),), last_clean=0, tail=0)
    assert widened(state, {3: 1}, nodeset(1, 2, 4)) == state


def test_a_rebuilt_shard_leaves_the_nodesets_if_enough_others_are_in_them() -> None:
    after = narrowed(STATE, 2, through=5)
    assert [metadata.shards for metadata in after.history] == [(1, 3), (2, 3, 4)]
    small = replace(STATE, history=(EpochMetadata(1, nodeset(1, 2), 2), NEW))
    assert narrowed(small, 2, through=5) == small


def test_a_rebuilt_shard_leaves_a_log_that_is_closed_altogether() -> None:
    one = LogState(2, 0, (OLD,), last_clean=1, tail=make(1, 9), closed=True)
    after = narrowed(one, 3, through=1)
    assert holders(after) == {1, 2}
    full = replace(one, history=(OLD._replace(replication=3),))
    wide = widened(full, {3: 1}, nodeset(1, 2, 4))
    assert holders(narrowed(wide, 3, through=1)) == {1, 2, 4}
    unrecovered = replace(wide, last_clean=0)
    assert narrowed(unrecovered, 3, through=1) == unrecovered


def test_a_loss_stays_known_when_a_shard_that_shared_it_is_dropped() -> None:
    """Nodes 1 and 2 lost their copies; readers of what only they had are told so ever after."""
    state, lost = replace(STATE, ends=ended(2, 5)), {1: 5, 2: 5}
    lossy = lossy_epochs(state, lost)
    assert lossy == [2], "node 1 has nothing of later epochs"
    after = narrowed(narrowed(state, 1, through=5), 2, through=5)
    wide = widened(state, lost, nodeset(3, 4, 5))
    dropped = narrowed(narrowed(wide, 1, through=5), 2, through=5)
    for each in (state, wide, after, dropped):
        assert len(losses(each, lost, lossy)) == 1
        assert not losses(replace(each, trimmed=make(2, 9)), {}, lossy), "nothing of it is left"
    assert losses(dropped, {}, lossy) == losses(dropped, lost, lossy)


def ended(*epochs: int) -> tuple[EpochEnd, ...]:
    return tuple(EpochEnd(epoch, lng=9, last=9, seal=epoch, wave=1) for epoch in epochs)


def test_only_shards_that_lost_the_same_epoch_lose_a_record() -> None:
    state = replace(STATE, ends=ended(1, 2, 3, 4, 5))
    assert lossy_epochs(state, {2: 5, 3: 5}) == [1, 2, 3, 4, 5]
    assert lossy_epochs(state, {2: 5, 3: 2}) == [1, 2]
    assert lossy_epochs(state, {2: 6, 3: 6})[-1] == 6, "it is not recovered"
    assert lossy_epochs(state, {2: 5}) == []
    assert lossy_epochs(state, {1: 6, 4: 6}) == [], "they were never in one nodeset"
    assert lossy_epochs(replace(state, trimmed=make(4, 0)), {1: 6, 2: 3}) == []


def test_an_epoch_without_records_loses_none() -> None:
    """Two of three disks are lost. Only the epoch that began when node 1 was restarted needed no
    copy on it, and nothing was appended then."""
    full = EpochMetadata(1, nodeset(1, 2, 3), 3)
    short = full._replace(since=3, short=((2, 3),))
    history = (full, short, full._replace(since=4))
    state = LogState(6, 1, history, last_clean=5, tail=make(4, 9), ends=ended(1, 2, 4))
    lost = {2: 5, 3: 5}
    assert lossy_epochs(state, lost) == []
    assert losses(state, lost, [3]) == []
    assert lossy_epochs(replace(state, ends=ended(1, 2, 3, 4)), lost) == [3]


def test_what_is_lost_of_an_epoch_is_told_before_it_is_recovered() -> None:
    assert still_lossy(STATE, [6]) == [6]
    assert still_lossy(replace(STATE, last_clean=6), [6]) == [], "nothing was in it"
    told = replace(STATE, told=(Acknowledged(6, last=0, final=True),))
    assert still_lossy(told, [6]) == [], "its sequencer said that nothing was"
    assert still_lossy(STATE, []) == []


def test_a_log_that_is_over_waits_for_nobody() -> None:
    assert waits_for(STATE, 4)
    assert not waits_for(STATE, 1)
    assert not waits_for(replace(STATE, closed=True), 4)
