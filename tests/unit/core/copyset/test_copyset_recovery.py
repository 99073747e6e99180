"""A new sequencer recovers the epochs before its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest
from copyset_recovery_rig import LOG, NOW_US, Hook, RecoveryRig

from loomlog.core.copyset.evidence import Marked, marked_at
from loomlog.core.copyset.log_state import finish, note_tail
from loomlog.core.copyset.messages import (
    Amend,
    Clean,
    Digest,
    Finish,
    Life,
    NotHere,
    Preempted,
    Refused,
    Seal,
    SealedAt,
    SetClean,
    Store,
    Trim,
)
from loomlog.core.copyset.nodeset import Authority, EpochMetadata, Member, Trouble
from loomlog.core.copyset.procedures import Answer, CopysetAsk, Exchange, Steps
from loomlog.core.copyset.record import OFFSET_MAX, Kind, Offset, Record, make
from loomlog.core.copyset.recovery import (
    CRASHED_ATTEMPTS,
    EpochRecovery,
    Heads,
    NotRecovered,
    Recovered,
    Recovery,
)
from loomlog.core.copyset.upkeep import losses
from loomlog.core.requests import Lost
from loomlog.types import NodeId

DATA, HOLE, BRIDGE = Kind.DATA, Kind.HOLE, Kind.BRIDGE


def is_recovered(rig: RecoveryRig) -> bool:
    return isinstance(rig.recover(), Recovered) and rig.state.last_clean == rig.state.epoch - 1


def test_records_are_completed_and_what_is_missing_is_marked() -> None:
    rig = RecoveryRig()
    rig.write(1, 1, 2, 3)
    rig.write(2, 2, 3, 4, lng=1)
    rig.write(4, 1, count=2, copyset=(1, 2, 3), lng=1)
    assert is_recovered(rig)
    assert rig.state.tail == make(1, 5)
    for first in (2, 3, 4, 6):
        copies = rig.copies(first)
        assert {copy.copyset for copy in copies.values()} == {tuple(sorted(copies))}
        assert rig.metadata.can_hold_a_copyset(copies)
        assert {copy.precedence for copy in copies.values()} == {(2, 1)}
    assert {copy.batch for copy in rig.copies(4).values()} == {b"batch of 4"}
    assert {copy.kind for copy in rig.copies(3).values()} == {HOLE}
    assert {copy.kind for copy in rig.copies(6).values()} == {BRIDGE}
    assert rig.copies(1)[1].recovered == 0  # it was known as fully stored


def test_only_who_lacks_a_record_gets_its_batch() -> None:
    rig = RecoveryRig(count=3)
    rig.write(1, 1, 2, 3)
    rig.write(2, 1)
    assert is_recovered(rig)
    stored = [r.record.offset for r in rig.requests(Store) if r.record.kind is DATA]
    assert stored == [2, 2]
    assert sorted(r.record.offset for r in rig.requests(Amend)) == [1, 1, 1, 2]
    assert all(not request.batches for request in rig.requests(Digest, [2, 3]))


def test_an_epoch_of_which_nothing_is_there_is_clean_without_a_mark() -> None:
    rig = RecoveryRig(epoch=4)
    assert is_recovered(rig)
    assert rig.state.tail == 0
    assert not rig.requests(Digest)
    assert all(not rig.pieces(node, epoch) for node in rig.nodes for epoch in (1, 2, 3))


def test_epochs_are_recovered_in_order_each_with_its_own_nodes() -> None:
    rig = RecoveryRig(count=5, replication=2, epoch=4)
    later = EpochMetadata(2, tuple(Member(n) for n in (3, 4, 5)), 2)
    rig.state = replace(rig.state, history=(rig.metadata, later))
    rig.write(1, 1)
    rig.write(1, 4, epoch=3)
    assert is_recovered(rig)
    assert [request.end.epoch for request in rig.requests(Clean, [1])] == [1]
    assert [request.end.epoch for request in rig.requests(Clean, [4])] == [1, 2, 3]
    assert rig.state.tail == make(3, 1)
    assert later.can_hold_a_copyset(rig.copies(1, epoch=3))


def test_what_an_f_majority_does_not_have_was_not_complete() -> None:
    rig = RecoveryRig()
    rig.write(1, 1, 2, 3)
    rig.write(2, 4, copyset=(2, 3, 4))
    rig.down = {4}
    assert is_recovered(rig)
    assert rig.state.tail == make(1, 1)
    assert rig.copies(2).keys() >= {1, 2, 3}
    assert {copy.kind for node, copy in rig.copies(2).items() if node != 4} == {BRIDGE}


def test_the_nodes_of_a_location_that_is_lost_are_not_waited_for() -> None:
    rig = RecoveryRig(racks="abcab")
    rig.write(1, 1, 2, 3)
    rig.write(2, 3, copyset=(1, 2, 3))
    rig.write(3, 1, copyset=(1, 3, 5))
    rig.down = {3}
    assert is_recovered(rig)
    assert rig.state.tail == make(1, 3)
    assert {copy.kind for node, copy in rig.copies(2).items() if node != 3} == {HOLE}
    assert rig.metadata.can_hold_a_copyset(rig.copies(3))


def test_what_is_completed_is_in_as_many_locations_as_there_are() -> None:
    rig = RecoveryRig(racks="aaabc")
    rig.write(1, 1, copyset=(1, 4, 5))
    assert is_recovered(rig)
    assert rig.copies(1).keys() == {1, 4, 5}


@pytest.mark.parametrize("down", [{2, 3, 4}, {3, 4}])
def test_too_few_nodes_are_waited_for(down: set[int]) -> None:
    """A single node of four could not know all; two of four would, but cannot hold a copyset."""
    rig = RecoveryRig()
    rig.write(1, 1, 2, 3)
    rig.down = down
    assert isinstance(rig.recover(), NotRecovered)
    assert rig.state.last_clean == 0
    assert not rig.requests(Store)
    rig.down = set()
    assert is_recovered(rig)


def test_when_nobody_else_will_come_loss_stays_visible() -> None:
    rig = RecoveryRig(count=5)
    rig.write(3, 1, copyset=(1, 2, 3), count=2)
    rig.write(6, 2, copyset=(1, 2, 3))
    rig.down = {3, 4, 5}
    gone = dict.fromkeys((3, 4, 5), Authority.UNAVAILABLE)
    ending = rig.drive(Recovery(LOG, 2).attempt(gone, NOW_US))
    assert isinstance(ending, Recovered)
    expected = [(3, 4, DATA), (6, 6, DATA)]
    assert rig.pieces(1) == rig.pieces(2) == expected
    [end] = rig.state.ends
    assert (end.last, end.exact) == (6, False)
    assert rig.state.tail == make(1, OFFSET_MAX)


@pytest.mark.parametrize("told", [0, 4])
def test_an_epoch_whose_nodes_are_all_given_up_is_lost_as_a_whole(told: int) -> None:
    """Recovery asks nobody, and the log continues."""
    rig = RecoveryRig(count=3)
    rig.write(1, 1, 2, 3)
    rig.state = note_tail(rig.state, make(1, told))
    rig.down = {1, 2, 3}
    gone = dict.fromkeys(rig.nodes, Authority.UNAVAILABLE)
    ending = rig.drive(Recovery(LOG, 2).attempt(gone, NOW_US))
    assert isinstance(ending, Recovered)
    [end] = rig.state.ends
    assert (end.lng, end.last, end.exact) == (0, told, False)
    assert rig.state.tail == make(1, OFFSET_MAX)
    assert losses(rig.state, {}) == [
        "how far epoch 1 was acknowledged is not known: its end is lost"
        if told
        else "nothing is left of epoch 1, and whether it had entries is not known"
    ]


def test_an_epoch_whose_nodes_are_all_given_up_may_be_known_to_be_empty() -> None:
    rig = RecoveryRig(count=3)
    rig.state = finish(rig.state, Finish(LOG, 1, 0))
    rig.down = {1, 2, 3}
    gone = dict.fromkeys(rig.nodes, Authority.UNAVAILABLE)
    assert isinstance(rig.drive(Recovery(LOG, 2).attempt(gone, NOW_US)), Recovered)
    assert rig.state.tail == 0
    assert losses(rig.state, {}) == []


def test_one_node_that_may_return_is_waited_for() -> None:
    rig = RecoveryRig(count=3)
    rig.down = {1, 2, 3}
    gone = dict.fromkeys((1, 2), Authority.UNAVAILABLE)
    assert isinstance(rig.drive(Recovery(LOG, 2).attempt(gone, NOW_US)), NotRecovered)


def lost_two_of_three() -> RecoveryRig:
    """Two copies of everything; of what was stored at 1 and 2, one copy is left."""
    rig = RecoveryRig(count=3, replication=2)
    rig.write(1, 1, 2)
    rig.write(2, 1, 3)
    rig.write(3, 1, 3)
    for node in (1, 3):
        rig.lose_disk(node)
    return rig


def have_lost(rig: RecoveryRig, *nodes: int) -> Hook:
    def hook(ask: CopysetAsk) -> Answer | None:
        if ask.target not in nodes or not isinstance(ask.request, Seal):
            return None
        answer = rig.nodes[ask.target].answer(ask.request)
        return replace(answer, lost_through=1) if isinstance(answer, SealedAt) else answer

    return hook


def test_where_too_few_are_left_to_tell_the_end_of_an_epoch_is_not_known() -> None:
    rig = lost_two_of_three()
    assert isinstance(rig.recover(have_lost(rig, 1, 3)), Recovered)
    [end] = rig.state.ends
    assert (end.last, end.exact) == (1, False)
    assert BRIDGE not in {kind for _, _, kind in rig.pieces(2)}


def test_a_sequencer_that_ended_has_told_where_its_epoch_ends() -> None:
    rig = lost_two_of_three()
    rig.state = finish(rig.state, Finish(LOG, 1, 3))
    assert isinstance(rig.recover(have_lost(rig, 1, 3)), Recovered)
    [end] = rig.state.ends
    assert (end.last, end.exact) == (3, True)
    assert marked_at(end, 2) == Marked(is_marked=False, last=3)


def test_what_a_sequencer_told_on_the_way_is_no_end() -> None:
    rig = lost_two_of_three()
    rig.state = note_tail(rig.state, make(1, 2))
    assert isinstance(rig.recover(have_lost(rig, 1, 3)), Recovered)
    [end] = rig.state.ends
    assert (end.last, end.exact) == (2, False)


def test_nodes_that_lack_what_was_acknowledged_are_not_believed_that_nothing_is_lost() -> None:
    rig = lost_two_of_three()
    rig.state = note_tail(rig.state, make(1, 2))
    assert isinstance(rig.recover(), Recovered)
    [end] = rig.state.ends
    assert (end.last, end.exact) == (2, False)


def test_a_bridge_that_is_left_of_an_earlier_recovery_is_the_end() -> None:
    rig = RecoveryRig(count=3, replication=2)
    rig.write(1, 1, 2)
    steps = Recovery(LOG, 2).attempt({}, NOW_US)
    asked = next(steps)
    while not isinstance(asked.asks[0].request, SetClean):
        asked = steps.send(rig.answer(asked))
    rig.next_sequencer()
    keeper, *lost = sorted(rig.copies(2))
    others = [node for node in rig.nodes if node != keeper]
    for node in others:
        rig.lose_disk(node)
    assert lost
    assert isinstance(rig.recover(have_lost(rig, *others)), Recovered)
    [end] = rig.state.ends
    assert (end.last, end.exact) == (1, True)


def test_a_node_counts_for_epochs_that_began_after_it_lost_its_disk() -> None:
    rig = RecoveryRig(count=3, replication=2, epoch=3)
    rig.write(1, 1, 2, epoch=2)
    assert isinstance(rig.recover(have_lost(rig, 1, 3)), Recovered)
    assert [(end.epoch, end.last, end.exact) for end in rig.state.ends] == [
        (1, 0, False),
        (2, 1, True),
    ]


def test_empty_nodes_are_no_loss() -> None:
    rig = RecoveryRig(count=5)
    rig.write(3, 1, copyset=(1, 2, 3))
    rig.down = {4, 5}
    empty = dict.fromkeys((4, 5), Authority.EMPTY)
    assert isinstance(rig.drive(Recovery(LOG, 2).attempt(empty, NOW_US)), Recovered)
    assert rig.pieces(2) == [(1, 2, HOLE), (3, 3, DATA), (4, OFFSET_MAX, BRIDGE)]


def test_a_node_knows_first_that_it_lost_something() -> None:
    rig = RecoveryRig(count=3, replication=2)
    rig.write(1, 1, 2)
    rig.lose_disk(1)

    def hook(ask: CopysetAsk) -> Answer | None:
        if ask.target == 1 and isinstance(ask.request, Seal):
            answer = rig.nodes[1].answer(ask.request)
            assert isinstance(answer, SealedAt)
            return replace(answer, lost_through=1)
        return Lost() if ask.target == 2 else None

    assert isinstance(rig.recover(hook), NotRecovered)


def test_a_disk_that_is_lost_after_the_seal_is_no_evidence() -> None:
    rig = RecoveryRig(count=3, replication=2)
    rig.write(1, 1, 2)

    def hook(ask: CopysetAsk) -> Answer | None:
        if ask.target == 1 and isinstance(ask.request, Digest):
            rig.lose_disk(1)
            rig.nodes[1].answer(Seal(LOG, 1, wave=0))  # as a node does that lost its disk
        return Lost() if ask.target == 2 and not isinstance(ask.request, Seal) else None

    assert isinstance(rig.recover(hook), NotRecovered)
    assert not rig.requests(Store)


# ---- troubles on the way


def test_a_node_that_takes_nothing_is_left_out_the_next_time() -> None:
    rig = RecoveryRig()
    rig.write(1, 1)
    recovery = Recovery(LOG, 2)

    full: list[object] = []

    def hook(ask: CopysetAsk) -> Answer | None:
        if not isinstance(ask.request, Store):
            return None
        full[:] = full or [ask.target]
        return Refused(Trouble.NO_SPACE) if ask.target in full else None

    assert isinstance(rig.drive(recovery.attempt({}, NOW_US), hook), NotRecovered)
    assert isinstance(rig.drive(recovery.attempt({}, NOW_US), hook), Recovered)
    assert {copy.wave for copy in rig.copies(2).values()} == {2}


def test_a_higher_seal_preempts() -> None:
    rig = RecoveryRig()
    rig.write(1, 1)
    rig.nodes[3].answer(Seal(LOG, 5))
    assert rig.recover() == Preempted(5)
    assert not rig.requests(Digest)


def test_a_newer_epoch_in_the_store_preempts() -> None:
    rig = RecoveryRig()
    rig.state = replace(rig.state, epoch=7)
    assert rig.drive(Recovery(LOG, 2).attempt({}, NOW_US)) == Preempted(6)
    assert not rig.requests(Seal)


def test_nothing_is_repeated_when_only_the_last_answer_was_lost() -> None:
    rig = RecoveryRig()
    rig.write(1, 1)
    recovery = Recovery(LOG, 2)

    def unheard(ask: CopysetAsk) -> Answer | None:
        if not isinstance(ask.request, SetClean):
            return None
        rig.answer(Exchange([ask]))
        return Lost()

    assert isinstance(rig.drive(recovery.attempt({}, NOW_US), unheard), NotRecovered)
    asked = len(rig.requests(Seal))
    assert isinstance(rig.drive(recovery.attempt({}, NOW_US)), Recovered)
    assert len(rig.requests(Seal)) == asked


def test_a_late_store_of_an_older_attempt_does_not_count() -> None:
    """The first attempt saw nothing and made a mark; the second one finds a record there."""
    rig = RecoveryRig(count=4, replication=2)
    rig.write(1, 1, copyset=(1, 2))
    rig.write(2, 3, 4)
    late: list[tuple[int, Store]] = []

    def first(ask: CopysetAsk) -> Answer | None:
        if isinstance(ask.request, Store) and isinstance(ask.target, int):
            late.append((ask.target, ask.request))
            return Lost()
        return Lost() if ask.target == 1 else None

    recovery = Recovery(LOG, 2)
    assert isinstance(rig.drive(recovery.attempt({}, NOW_US), first), NotRecovered)
    assert any(request.record.kind is HOLE for _, request in late)
    assert isinstance(rig.drive(recovery.attempt({}, NOW_US)), Recovered)
    for node, request in late:
        assert rig.nodes[node].answer(request) == Preempted(1)
    kinds = {copy.kind for copy in rig.copies(1).values()}
    assert kinds == {DATA}


def story(rig: RecoveryRig) -> list[Record]:
    """Complete at 1 and 2, of which 1 is known; begun at 4 and 7."""
    known = rig.write(1, 1, 2, 3)
    complete = rig.write(2, 2, 3, 4, lng=1)
    rig.write(4, 1, count=2, copyset=(1, 2, 3), lng=1)
    rig.write(7, 4, copyset=(2, 3, 4), lng=1)
    return [known, complete]


@pytest.mark.parametrize("rounds", range(1, 7))
@pytest.mark.parametrize("down", [0, 1, 4])
@pytest.mark.parametrize("down_later", [0, 2, 4])
def test_a_recovery_that_dies_is_repeated_by_the_next(
    rounds: int, down: int, down_later: int
) -> None:
    """Wherever it dies, whoever is away before and after."""
    rig = RecoveryRig()
    acknowledged = story(rig)
    rig.down = {down}
    steps = Recovery(LOG, 2).attempt({}, NOW_US)
    asked = next(steps)
    for _ in range(rounds):
        try:
            asked = steps.send(rig.answer(asked))
        except StopIteration:
            break
    before = {node: rig.pieces(node) for node in rig.nodes} if rig.state.last_clean else {}
    rig.next_sequencer()
    rig.down = {down_later}
    assert isinstance(rig.recover(), Recovered)
    for record in acknowledged:
        copies = rig.copies(record.offset).values()
        assert {copy.batch for copy in copies} == {record.batch}
        assert len(copies) >= 3
    for node, pieces in before.items():
        assert rig.pieces(node) == pieces
    assert agree(rig, set(rig.nodes) - rig.down)


@pytest.mark.parametrize("holder", range(1, 7))
def test_what_a_mark_made_void_is_overwritten_when_it_comes_up_again(holder: int) -> None:
    """The first one did not see the record, left a mark, and died."""
    rig = RecoveryRig(count=6, replication=2)
    rig.write(2, holder, copyset=(holder, 7 - holder))
    rig.write(4, *(node for node in rig.nodes if node != holder))
    rig.down = {holder}
    steps = Recovery(LOG, 2).attempt({}, NOW_US)
    asked = next(steps)
    while not isinstance(asked.asks[0].request, Clean):
        asked = steps.send(rig.answer(asked))
    rig.next_sequencer()
    rig.down = set()
    assert is_recovered(rig)
    assert rig.pieces(holder)[0] == (1, 3, HOLE)
    assert agree(rig, set(rig.nodes))


def agree(rig: RecoveryRig, nodes: set[int]) -> bool:
    """Return whether all that these nodes have is the same, wherever two of them have something."""
    found = {piece for node in nodes for piece in rig.pieces(node)}
    pairs = combinations(sorted(found), 2)
    return all(one[1] < other[0] for one, other in pairs)


def test_a_recovery_repeated_by_a_later_sequencer_comes_to_the_same_end() -> None:
    rig = RecoveryRig()
    story(rig)
    steps = Recovery(LOG, 2).attempt({}, NOW_US)
    asked = next(steps)
    while not isinstance(asked.asks[0].request, SetClean):
        asked = steps.send(rig.answer(asked))
    before = {node: rig.pieces(node) for node in rig.nodes}
    rig.next_sequencer()
    assert is_recovered(rig)
    assert {node: rig.pieces(node) for node in rig.nodes} == before


def test_what_is_trimmed_is_not_recovered() -> None:
    rig = RecoveryRig()
    story(rig)
    for node in (1, 2):
        rig.nodes[node].answer(Trim(LOG, make(1, 4)))
    assert is_recovered(rig)
    assert rig.copies(2).keys() == {3, 4}
    assert {copy.recovered for copy in rig.copies(2).values()} == {0}
    assert rig.state.tail == make(1, 7)


def trimmed_between_seal_and_digest() -> RecoveryRig:
    """Trim up to offset 7, which is where the epoch ends."""
    rig = RecoveryRig()
    story(rig)

    def trim_first(ask: CopysetAsk) -> Answer | None:
        if isinstance(ask.request, Digest) and ask.target == 2:
            for node in (2, 3, 4):
                rig.nodes[node].answer(Trim(LOG, make(1, 7)))
        return None

    assert isinstance(rig.recover(trim_first), Recovered)
    return rig


def firsts_of_marks(rig: RecoveryRig) -> list[int]:
    pieces = [piece for node in rig.nodes for piece in rig.pieces(node)]
    return [first for first, _, kind in pieces if kind is not Kind.DATA]


def test_a_trim_after_the_seal_hides_nothing_that_was_there() -> None:
    rig = trimmed_between_seal_and_digest()
    assert rig.state.tail == make(1, 7)
    assert set(firsts_of_marks(rig)) == {8}, "a mark where there was a record"


def test_a_trim_after_the_seal_hides_records_if_digests_do_not_tell_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The negative control of the test before."""
    digest = EpochRecovery._digest

    def blind(
        self: EpochRecovery, sealed: Mapping[NodeId, SealedAt], after: Offset
    ) -> Steps[Heads | Preempted]:
        found = yield from digest(self, sealed, after)
        return found._replace(trimmed=0) if isinstance(found, Heads) else found

    monkeypatch.setattr(EpochRecovery, "_digest", blind)
    assert min(firsts_of_marks(trimmed_between_seal_and_digest())) <= 7


def test_an_epoch_that_is_trimmed_as_a_whole_is_clean_at_once() -> None:
    rig = RecoveryRig()
    story(rig)
    rig.state = replace(rig.state, trimmed=make(2, 0))
    assert is_recovered(rig)
    assert not rig.requests(Digest)
    assert rig.state.tail == make(1, 1)


def test_a_node_that_forgot_its_seal_is_not_told_that_all_is_clean() -> None:
    rig = RecoveryRig(count=3)
    rig.write(1, 1)
    lost: list[int] = []

    def hook(ask: CopysetAsk) -> Answer | None:
        if isinstance(ask.request, Clean) and not lost:
            lost.append(2)
            rig.lose_disk(2)
        return None

    assert isinstance(rig.recover(hook), NotRecovered)
    assert rig.state.last_clean == 0
    assert rig.nodes[2].answer(Clean(LOG, 1, rig.requests(Clean)[0].end)) == NotHere()


# ---- nodes that crashed


def forgetful_rig(forgot: NodeId) -> RecoveryRig:
    """Return three nodes, of which all crashed, and one forgot the last record."""
    rig = RecoveryRig(count=3, replication=2)
    rig.state = replace(rig.state, lives=tuple(Life(1, node, 1) for node in rig.nodes))
    rig.lives = dict.fromkeys(rig.nodes, 2)
    rig.write(1, 1, 2)
    rig.write(2, *({1, 2} - {forgot}), copyset=(1, 2))
    return rig


def test_what_one_node_forgot_is_found_on_another() -> None:
    rig = forgetful_rig(1)
    rig.down = {2}
    ending = rig.recover()
    assert isinstance(ending, NotRecovered)
    assert ending.reason == (
        "node 1, node 3 crashed, and may have forgotten records of epoch 1 that others have; "
        "missing: node 2"
    )
    rig.down = set()
    assert is_recovered(rig)
    assert rig.state.tail == make(1, 2)
    assert rig.state.ends[-1].crashed == (1, 2, 3)
    assert rig.state.lives == ()


def test_nodes_that_did_not_crash_are_enough() -> None:
    rig = forgetful_rig(1)
    rig.lives |= {2: 1, 3: 1}
    rig.down = {1}
    assert is_recovered(rig)
    assert rig.state.tail == make(1, 2)


def test_only_attempts_that_wait_for_nodes_use_up_the_patience() -> None:
    rig = forgetful_rig(1)
    rig.down = {2, 3}
    recovery = Recovery(LOG, 2)
    for _ in range(CRASHED_ATTEMPTS + 1):
        assert isinstance(rig.drive(recovery.attempt({}, NOW_US)), NotRecovered)
    rig.down = {2}
    assert isinstance(rig.drive(recovery.attempt({}, NOW_US)), NotRecovered)


def test_nodes_that_crashed_are_believed_in_the_end() -> None:
    rig = forgetful_rig(1)
    rig.down = {2}
    recovery = Recovery(LOG, 2)
    endings = [rig.drive(recovery.attempt({}, NOW_US)) for _ in range(CRASHED_ATTEMPTS + 1)]
    assert all(isinstance(ending, NotRecovered) for ending in endings[:-1])
    assert isinstance(endings[-1], Recovered)
    assert rig.state.tail == make(1, 1)
    [end] = rig.state.ends
    assert (end.exact, end.absent) == (True, (2,))


def test_nodes_that_take_long_to_fail_do_not_make_the_wait_longer() -> None:
    rig = forgetful_rig(1)
    rig.down = {2}
    recovery = Recovery(LOG, 2)
    times = (100.0, 110.0, 129.9)
    endings = [rig.drive(recovery.attempt({}, NOW_US, now_s=now_s)) for now_s in times]
    assert all(isinstance(ending, NotRecovered) for ending in endings)
    assert isinstance(rig.drive(recovery.attempt({}, NOW_US, now_s=130.0)), Recovered)


def test_nobody_is_absent_if_enough_nodes_did_not_crash() -> None:
    rig = forgetful_rig(1)
    rig.lives |= {1: 1, 3: 1}
    rig.down = {2}
    assert is_recovered(rig)
    assert [end.absent for end in rig.state.ends] == [()]
