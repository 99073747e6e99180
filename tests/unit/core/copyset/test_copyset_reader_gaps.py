"""The conclusions of a reader when nothing comes, and the kinds of gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from copyset_reader_rig import START, ReaderRig, bridge, data, end, hole, lsns, metadata, state

from loomlog.core.copyset.effects import GapKind, ReadGap
from loomlog.core.copyset.evidence import finished, with_loss
from loomlog.core.copyset.messages import EpochEnd, Life, LogState
from loomlog.core.copyset.nodeset import Authority, EpochMetadata, Member
from loomlog.core.copyset.reader_knowledge import Knowledge
from loomlog.core.copyset.reader_sources import Finding, ReadSource, find_nothing
from loomlog.core.copyset.record import OFFSET_MAX, Record, last_of, make

THREE = state(metadata(1, 2, 3))


def at(offset: int) -> int:
    return make(1, offset)


def sources(*passed: int, **authorities: Authority) -> list[ReadSource]:
    """Return nodes 1 to 5, of which those have looked up to 9 and the others have not answered."""
    made = [ReadSource(node, at(10) if node in passed else START) for node in range(1, 6)]
    for source in made:
        source.authority = authorities.get(f"node{source.shard}", Authority.FULL)
    return made


FIVE = metadata(1, 2, 3, 4, 5, replication=3)


def find(found: list[ReadSource], known: EpochMetadata = FIVE, decided: int = 0) -> Finding | None:
    return find_nothing(START, decided, known, found, graces=2)


# ---- who has to have answered


def test_all_that_count_have_answered_so_it_is_decided_at_once() -> None:
    assert find(sources(1, 2, 3, 4, 5)) == Finding(at(9), at_once=True)


def test_an_f_majority_is_enough_after_a_grace() -> None:
    assert find(sources(1, 2)) is None
    assert find(sources(1, 2, 3)) == Finding(at(9), at_once=False)


def test_a_node_that_crashed_may_have_forgotten_a_record() -> None:
    """Readers wait for all others that may have it. When nobody is left, it is lost."""
    assert find_nothing(START, 0, FIVE, sources(1, 2, 3), graces=2, crashed=[2]) is None
    assert find_nothing(START, 0, FIVE, sources(1, 2, 3, 4), graces=2, crashed=[2]) == Finding(
        at(9), at_once=False
    )
    everybody = sources(1, 2, 3, 4, 5)
    lost = find_nothing(START, 0, FIVE, everybody, graces=2, crashed=range(1, 6))
    assert lost == Finding(at(9), at_once=True)


def test_nobody_waits_again_for_a_node_that_missed_more_than_two_graces() -> None:
    found = sources(1, 2, 3, 4)
    found[4].graces_missed = 3
    assert find(found) == Finding(at(9), at_once=True)


def test_domains_are_what_counts_not_nodes() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    known = EpochMetadata(1, tuple(Member(node, rack) for node, rack in racks.items()), 2)
    assert find(sources(1, 3, 5), known) is None  # one copy in rack a, one in rack b: not excluded
    assert find(sources(1, 2, 3, 4), known) == Finding(at(9), at_once=False)


def test_the_finding_reaches_as_far_as_all_have_looked() -> None:
    found = sources(1, 2, 3, 4, 5)
    found[2].next_lsn = at(5)
    assert find(found) == Finding(at(4), at_once=True)


def test_a_node_that_may_miss_records_does_not_count() -> None:
    found = sources(1, 2, 3)
    found[0].lost_through = 1
    assert find(found) is None
    assert find(sources(1, 2, 3, node1=Authority.UNDERREPLICATED)) is None


def test_when_nobody_else_is_left_to_be_asked_it_is_decided_by_those_there_are() -> None:
    lost = {f"node{node}": Authority.UNDERREPLICATED for node in (3, 4, 5)}
    assert find(sources(1, 2, **lost)) == Finding(at(9), at_once=False)
    assert find(sources(1, 2, 3, 4, 5, **lost)) == Finding(at(9), at_once=True)
    assert find(sources(1, **lost)) is None


def test_what_was_on_an_empty_node_is_elsewhere_so_it_counts_as_one_that_has_nothing() -> None:
    assert find(sources(1, 2, node3=Authority.EMPTY)) == Finding(at(9), at_once=False)


def test_where_records_cannot_be_copied_as_often_as_they_should_all_have_to_answer() -> None:
    empty = {f"node{node}": Authority.EMPTY for node in (3, 4, 5)}
    assert find(sources(1, **empty)) is None
    assert find(sources(1, 2, **empty)) == Finding(at(9), at_once=True)


def test_a_node_that_is_unavailable_is_waited_for() -> None:
    unavailable = {f"node{node}": Authority.UNAVAILABLE for node in (3, 4, 5)}
    assert find(sources(1, 2, **unavailable)) is None


def test_with_no_node_left_only_the_metadata_says_that_there_was_something() -> None:
    gone = {f"node{node}": Authority.EMPTY for node in range(1, 6)}
    assert find(sources(**gone)) is None
    assert find(sources(**gone), decided=last_of(1)) == Finding(last_of(1), at_once=False)


# ---- what kind of gap it is


def all_send_all(known: LogState = THREE, **wanted: int) -> ReaderRig:
    """A reader at a head that nobody has sent, which has asked for everything."""
    rig = ReaderRig(known, **wanted)  # type: ignore[arg-type]
    for node in (1, 2, 3):
        rig.answer(node, up_to=rig.reader.head)
    assert rig.request(1).everything
    return rig


def test_a_gap_inside_an_epoch_is_a_loss() -> None:
    rig = all_send_all()
    for node in (1, 2, 3):
        rig.answer(node, data(at(4)), up_to=4)
    assert rig.gaps == [(at(1), at(3), GapKind.DATALOSS)]
    assert rig.delivered == [lsns(4, 4)]


def test_a_loss_is_believed_only_after_everybody_was_asked_again_for_everything() -> None:
    rig = all_send_all()
    for node in (1, 2, 3):
        rig.answer(node, data(at(2)), up_to=3)
    assert rig.gaps == [(at(1), at(1), GapKind.DATALOSS)]  # it was asked again for 1 before
    assert rig.reader.head == at(3)
    assert rig.request(1).first == at(3)  # now it is asked again for 3
    rig.answer(1, data(at(3)), up_to=3)
    assert rig.delivered == [lsns(2, 2), lsns(3, 3)]


def test_a_loss_by_an_f_majority_is_told_after_a_grace() -> None:
    rig = ReaderRig(THREE)
    for node in (1, 2):
        rig.answer(node, up_to=3)
    rig.pass_grace()  # node 3 is late: the others shall send what it should
    for node in (1, 2):
        rig.answer(node, up_to=3)
    for node in (1, 2):
        rig.answer(node, up_to=3)  # everything, this time
    assert rig.gaps == []
    rig.pass_grace()
    assert rig.gaps == [(at(1), at(3), GapKind.DATALOSS)]


def test_with_fewer_than_an_f_majority_a_reader_waits() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, up_to=3)
    for _ in range(5):
        rig.pass_grace()
        if 1 in rig.asks:
            rig.answer(1, up_to=3)
    rig.pass_time(100)
    assert rig.gaps == []
    rig.answer(3, data(at(1), 3), up_to=3)
    assert rig.delivered == [lsns(1, 3)]


def test_what_recovery_left_are_holes_and_bridges() -> None:
    rig = ReaderRig(state(metadata(1, 2, 3), epoch=2))
    rig.answer(1, hole(at(1), at(2)), data(at(3)), bridge(at(4)), up_to=last_of(1))
    rig.tell(recovered(end(1, 3)))
    assert rig.gaps == [
        (at(1), at(2), GapKind.HOLE),
        (at(4), last_of(1), GapKind.BRIDGE),
    ]
    assert rig.reader.head == make(2, 1)


def test_what_is_left_of_a_bridge_that_was_overwritten_is_a_hole() -> None:
    rig = ReaderRig(state(metadata(1, 2, 3), epoch=2))
    rig.answer(1, data(at(3), recovered=3), bridge(at(1)), up_to=5)
    rig.tell(recovered(end(1, 3)))
    assert rig.gaps == [
        (at(1), at(2), GapKind.HOLE),
        (at(4), last_of(1), GapKind.BRIDGE),
    ]


def test_who_knows_the_end_of_an_epoch_needs_no_bridge() -> None:
    rig = ReaderRig(state(metadata(1, 2, 3), epoch=2, last_clean=1, ends=(end(1, 1),)))
    rig.answer(1, data(at(1)), up_to=last_of(1))
    assert rig.gaps == [(at(2), last_of(1), GapKind.BRIDGE)]


def test_an_epoch_that_the_metadata_knows_as_empty_is_passed_at_once() -> None:
    known = state(metadata(1, 2, 3), epoch=4, last_clean=3, ends=(end(1, 1),))
    rig = ReaderRig(known, first=at(2))
    assert [kind for _, _, kind in rig.gaps] == [GapKind.BRIDGE] * 3
    assert rig.reader.head == make(4, 1)


def test_what_is_before_the_first_epoch_is_a_bridge() -> None:
    rig = ReaderRig(state(metadata(1, 2, 3, since=5), epoch=5), first=7)
    assert rig.gaps == [(7, last_of(0), GapKind.BRIDGE)] + [
        (make(epoch, 1), last_of(epoch), GapKind.BRIDGE) for epoch in range(1, 5)
    ]


def recovered(*ends: EpochEnd) -> LogState:
    """Return metadata in which epoch 1 is recovered and epoch 2 continues."""
    return state(metadata(1, 2, 3), epoch=2, last_clean=1, ends=ends)


def test_nodes_do_not_know_where_an_epoch_ends_so_the_epoch_store_is_asked() -> None:
    rig = all_send_all(state(metadata(1, 2, 3), epoch=2))
    for node in (1, 2, 3):
        rig.answer(node, data(make(2, 1)), up_to=make(2, 1))
    assert (rig.gaps, rig.wanted) == ([], [1, 1])
    rig.tell(recovered())
    assert rig.gaps == [(at(1), last_of(1), GapKind.BRIDGE)]
    assert rig.delivered == [lsns(1, 1, epoch=2)]


def test_the_epoch_store_is_not_asked_all_the_time_whether_an_epoch_has_ended() -> None:
    rig = all_send_all(state(metadata(1, 2, 3), epoch=2))
    for node in (1, 2, 3):
        rig.answer(node, up_to=make(2, 1))
    for _ in range(10):
        rig.tell(state(metadata(1, 2, 3), epoch=2))
    assert rig.wanted == [1, 1]
    rig.pass_time(1)
    assert rig.wanted == [1, 1, 1]


def test_the_last_records_of_an_epoch_are_lost_if_it_is_known_to_have_ended_later() -> None:
    rig = all_send_all(recovered(end(1, 5)))
    for node in (1, 2, 3):
        rig.answer(node, up_to=make(2, 1))
    assert rig.gaps == [
        (at(1), at(5), GapKind.DATALOSS),
        (at(6), last_of(1), GapKind.BRIDGE),
    ]


UNCERTAIN = end(1, 2, exact=False)  # of epoch 1


def test_where_nobody_knows_the_end_of_an_epoch_its_last_records_are_lost() -> None:
    rig = ReaderRig(recovered(UNCERTAIN))
    rig.answer(1, data(at(1), 2), up_to=last_of(1))
    assert rig.delivered == [lsns(1, 2)]
    answer_all(rig)
    assert rig.seen[1:] == [ReadGap(at(3), last_of(1), GapKind.DATALOSS, exact=False)]


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_loss_is_exact_as_far_as_the_sequencer_said_that_it_acknowledged(
    is_finished: bool,
) -> None:
    """Too few nodes were left in recovery, which found a batch that was in flight at 5."""
    known = replace(end(1, 5, exact=False), lng=0, found=((1, OFFSET_MAX),))
    rig = ReaderRig(recovered(finished(known, 3) if is_finished else known))
    answer_all(rig, data(at(5)))
    lost, kind = [gap for gap in rig.seen if isinstance(gap, ReadGap)], GapKind.DATALOSS
    if is_finished:
        assert lost == [
            ReadGap(at(1), at(3), kind),
            ReadGap(at(4), at(4), kind, exact=False),
            ReadGap(at(6), last_of(1), GapKind.BRIDGE),
        ]
    else:
        assert lost == [
            ReadGap(at(1), at(4), kind, exact=False),
            ReadGap(at(6), last_of(1), kind, exact=False),
        ]


def answer_all(rig: ReaderRig, *records: Record) -> None:
    """Let all nodes answer for all of epoch 1, as often as they are asked."""
    while asked := [node for node in rig.asks if rig.request(node).first <= last_of(1)]:
        first = rig.request(asked[0]).first
        rig.answer(asked[0], *(r for r in records if r.last >= first), up_to=last_of(1))
        rig.pass_grace()


@pytest.mark.parametrize("first", range(1, 7))
def test_what_is_back_behind_an_unknown_end_is_read_from_wherever_a_reader_starts(
    first: int,
) -> None:
    """Newer copies of the disks may have been put back since."""
    rig = ReaderRig(recovered(UNCERTAIN), first=at(first))
    answer_all(rig, data(at(1), 2), data(at(3)), data(at(5)))
    expected = {1, 2, 3, 5}.intersection(range(first, 6))
    assert {lsn for lsns in rig.delivered for lsn in lsns} == {at(offset) for offset in expected}
    gaps = [(at(4), at(4)), (at(6), last_of(1))]
    assert rig.gaps == [
        (max(begin, at(first)), last, GapKind.DATALOSS) for begin, last in gaps if last >= at(first)
    ]
    assert not any(gap.exact for gap in rig.seen if isinstance(gap, ReadGap))


def test_nothing_is_lost_behind_an_unknown_end_before_all_have_answered() -> None:
    rig = ReaderRig(recovered(UNCERTAIN), first=at(3))
    assert not rig.seen
    for _ in range(9):
        for node in {1, 2}.intersection(rig.asks):
            rig.answer(node, up_to=last_of(1), lost_through=1)
        rig.pass_grace()
    assert not rig.seen  # node 3 may have it
    rig.answer(3, data(at(3)), up_to=last_of(1))
    assert rig.delivered == [lsns(3, 3)]


def test_a_node_counts_for_epochs_that_began_after_it_lost_its_disk() -> None:
    source = ReadSource(1, START, lost_through=1)
    assert [source.counts_at(lsn) for lsn in (at(9), make(2, 1))] == [False, True]
    assert [source.may_miss_records(lsn) for lsn in (at(9), make(2, 1))] == [True, False]


def test_where_reading_ends_inside_an_epoch_its_end_is_no_loss() -> None:
    rig = all_send_all(state(metadata(1, 2, 3), epoch=2), until=at(8))
    assert rig.request(1).until == last_of(1)  # farther than wanted, to see which it is
    for node in (1, 2, 3):
        rig.answer(node, up_to=last_of(1))
    rig.tell(recovered())
    assert rig.gaps == [(at(1), at(8), GapKind.BRIDGE)]
    assert rig.finished


def test_when_all_nodes_of_an_epoch_are_gone_it_is_a_loss() -> None:
    known = recovered(end(1, 9))
    rig = ReaderRig(known)
    gone = dict.fromkeys((1, 2, 3), Authority.EMPTY)
    rig.do(rig.reader.learn_authorities(gone, rig.now))
    for _ in range(3):
        rig.pass_grace()
    assert rig.gaps[0] == (at(1), at(9), GapKind.DATALOSS)


@pytest.mark.parametrize("is_told_by_metadata", [False, True])
def test_what_is_trimmed_is_passed_at_once(is_told_by_metadata: bool) -> None:
    rig = ReaderRig(THREE)
    if is_told_by_metadata:
        rig.tell(state(metadata(1, 2, 3), trimmed=at(5)))
    else:
        rig.answer(2, up_to=at(5), trimmed=at(5))
    assert rig.gaps == [(at(1), at(5), GapKind.TRIM)]
    assert rig.reader.head == at(6)


def test_what_is_here_is_delivered_though_it_is_trimmed_meanwhile() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, data(at(2)), up_to=4)
    rig.answer(2, data(at(1)), up_to=9, trimmed=at(4))
    assert rig.delivered == [lsns(1, 1), lsns(2, 2)]
    assert rig.gaps == [(at(3), at(4), GapKind.TRIM)]


def test_a_gap_is_split_at_the_trim_point() -> None:
    rig = all_send_all()
    for node in (1, 2, 3):
        rig.answer(node, data(at(9)), up_to=9, trimmed=at(4))
    assert rig.gaps[0] == (at(1), at(4), GapKind.TRIM)
    for node in (1, 2, 3):
        if node in rig.asks and not rig.delivered:
            rig.answer(node, data(at(9)), up_to=9)
    assert rig.gaps[1:] == [(at(5), at(8), GapKind.DATALOSS)]


def test_nothing_is_concluded_from_answers_from_before_records_were_copied_again() -> None:
    rig = all_send_all()
    for node in (1, 2):
        rig.answer(node, up_to=3, lost_through=1 if node == 1 else 0)
    rig.do(rig.reader.learn_authorities({1: Authority.EMPTY}, rig.now))
    assert rig.request(2).first == START
    rig.answer(2, data(at(1), 3), up_to=3)
    assert rig.delivered == [lsns(1, 3)]


def waiting_for(node: int, known: LogState) -> ReaderRig:
    """A reader to which all others have said twice, long ago, that they have nothing."""
    rig = ReaderRig(known)
    for _ in range(20):
        for other in [*rig.asks]:
            if other == node:
                rig.fail(node)
            else:
                rig.answer(other, up_to=3)
        rig.pass_grace()
    assert rig.reader.is_doubtful
    assert not rig.gaps
    return rig


def is_told_by_itself(rig: ReaderRig) -> None:
    rig.pass_time(10)
    rig.answer(3, up_to=3, lost_through=1)


def is_told_by_the_metadata(rig: ReaderRig) -> None:
    rig.do(rig.reader.learn_losses({3: 1}, rig.now))


def cannot_read_it(rig: ReaderRig) -> None:
    rig.pass_time(10)
    rig.answer(3, up_to=3, damaged=((at(1), at(3)),))


@pytest.mark.parametrize("loss", [is_told_by_itself, is_told_by_the_metadata, cannot_read_it])
@pytest.mark.parametrize("holder", [2, 4], ids=["on another node", "on a node that joined"])
def test_a_copy_that_was_made_again_before_the_last_one_was_lost_is_found(
    loss: Callable[[ReaderRig], None], holder: int
) -> None:
    """A shard that is drained, for example, loses its disk afterwards."""
    rig = waiting_for(3, state(metadata(1, 2, 3, replication=1)))
    rig.known = state(metadata(*sorted({1, 2, 3, holder}), replication=1))
    loss(rig)
    for _ in range(20):
        for node in [*rig.asks]:
            if node == 3:
                rig.fail(node)
            elif not rig.delivered:
                records = (data(at(1), 3),) if node == holder else ()
                rig.answer(node, *records, up_to=3)
        rig.pass_grace()
    assert not rig.gaps
    assert rig.delivered == [lsns(1, 3)]


def test_a_loss_is_believed_only_with_the_newest_state_of_the_log() -> None:
    """Records of recovered epochs may have moved to a node that joined their nodeset."""
    rig = ReaderRig(state(metadata(1, 2), epoch=2, last_clean=1, ends=(end(1, 9),)))
    rig.known = state(metadata(1, 2, 3), epoch=2, last_clean=1, ends=(end(1, 9),))
    for _ in range(9):
        for node in [*rig.asks]:
            records = (data(at(1), 9),) if node == 3 else ()
            rig.answer(node, *records, up_to=9)
        rig.pass_grace()
    assert rig.delivered == [lsns(1, 9)]
    assert [kind for _, _, kind in rig.gaps] == [GapKind.BRIDGE]


# ---- recoveries that did not wait for all nodes


ABSENT = replace(end(1, 1), found=((1, 1),), absent=(3,))  # of epoch 1


def test_a_mark_counts_only_if_no_absent_node_knew_better_until_now() -> None:
    """A client may know the log from before the loss was recorded."""
    rig = ReaderRig(recovered(ABSENT))
    rig.answer(1, data(at(1)), bridge(at(2)), up_to=last_of(1))
    assert (rig.delivered, rig.gaps, rig.wanted) == ([lsns(1, 1)], [], [1, 1])
    rig.tell(recovered(ABSENT))
    assert rig.gaps == [(at(2), last_of(1), GapKind.BRIDGE)]


def test_a_loss_that_an_absent_node_knew_of_is_told_whatever_nodes_have_there() -> None:
    rig = ReaderRig(recovered(ABSENT))
    rig.answer(1, data(at(1)), bridge(at(2)), up_to=last_of(1))
    rig.tell(recovered(with_loss(ABSENT, 3)))
    assert rig.seen[1:] == [
        ReadGap(at(2), at(3), GapKind.DATALOSS),
        ReadGap(at(4), last_of(1), GapKind.DATALOSS, exact=False),
    ]


def test_a_loss_inside_an_epoch_is_told_and_what_stands_behind_it_is_read() -> None:
    known = with_loss(replace(end(1, 5), lng=0, found=((1, 1), (4, 5)), absent=(3,)), 3)
    rig = ReaderRig(recovered(known))
    rig.answer(1, data(at(1)), hole(at(2), at(3)), data(at(4), 2), up_to=last_of(1))
    rig.tell(recovered(known))
    assert rig.delivered == [lsns(1, 1), lsns(4, 5)]
    assert rig.gaps[0] == (at(2), at(3), GapKind.DATALOSS)


def test_a_loss_that_is_trimmed_is_told_as_trimmed() -> None:
    known = replace(recovered(with_loss(ABSENT, 3)), trimmed=at(3))
    rig = ReaderRig(known)
    assert rig.gaps[0] == (at(1), at(3), GapKind.TRIM)


# ---- nodes that crashed after an epoch ended


def test_a_node_that_crashed_after_the_end_of_an_epoch_may_have_forgotten_its_records() -> None:
    """Readers wait for a node that is away and may have them."""
    lives = tuple(Life(1, node, 1) for node in (1, 2, 3))
    rig = ReaderRig(replace(recovered(end(1, 5)), witnesses=lives))
    for _ in range(2):
        for node in (1, 2):
            if node in rig.asks:
                rig.answer(node, up_to=make(2, 1), life=2)
        rig.pass_grace()
    rig.fail(3)
    rig.pass_time(100)
    assert rig.gaps == []


def test_what_a_node_was_checked_for_since_it_crashed_it_vouches_for() -> None:
    lives = (Life(1, 1, 1), Life(1, 2, 2), Life(1, 3, 1))
    known = Knowledge()
    known.learn_state(replace(recovered(end(1, 5)), witnesses=lives))
    assert known.crashed_in(1, {1: 2, 2: 2, 3: 1}) == {1}
    assert known.crashed_in(1, {1: 1}) == set()


# ---- the position 0 of an epoch, which is no LSN


@pytest.mark.parametrize(("until", "found"), [(make(2, 0), []), (make(2, 1), [make(2, 1)])])
def test_a_segment_may_begin_at_a_position_that_is_no_lsn(until: int, found: list[int]) -> None:
    """If the one before ends with a whole epoch, readers still pass every position."""
    rig = ReaderRig(state(metadata(1, 2, 3), epoch=2), first=make(2, 0), until=until)
    for node in (1, 2, 3) if found else ():
        shown = [data(make(2, 1))] if node == 1 else []
        rig.answer(node, *shown, up_to=make(2, 1))
    assert rig.gaps == [(make(2, 0), make(2, 0), GapKind.BRIDGE)]
    assert [first for first, _ in rig.delivered] == found
    assert rig.finished


def test_of_a_trimmed_start_only_the_trim_is_seen() -> None:
    trimmed = replace(state(metadata(1, 2, 3), epoch=2), trimmed=make(2, 5))
    rig = ReaderRig(trimmed, first=make(2, 0))
    assert rig.gaps == [(make(2, 1), make(2, 5), GapKind.TRIM)]
