"""A node that was absent from a recovery knows of records that all others have forgotten."""

from __future__ import annotations

from dataclasses import replace

from copyset_recovery_rig import LOG, NOW_US, RecoveryRig

from loomlog.core.copyset.evidence import finished, knows_of_loss, marked_at, with_loss
from loomlog.core.copyset.late_losses import miss
from loomlog.core.copyset.log_state import trim, uncertain
from loomlog.core.copyset.messages import (
    Delivered,
    EpochEnd,
    Life,
    Miss,
    NotHere,
    Purge,
    Read,
    Release,
    Restore,
    Stored,
)
from loomlog.core.copyset.procedures import Nowhere, Unresolved, purge, resolve
from loomlog.core.copyset.rebuild.restore import RestoreAnswer, decide
from loomlog.core.copyset.record import OFFSET_MAX, Kind, make
from loomlog.core.copyset.recovery import CRASHED_ATTEMPTS, NotRecovered, Recovered, Recovery
from loomlog.core.copyset.settlement import UNMARKED_MAX, Span, unmarked

END = EpochEnd(1, lng=0, last=5, seal=1, wave=9, found=((1, 1), (4, 5)), absent=(3,))


def test_what_recovery_marked_up_to_an_lng_is_lost_and_so_is_the_end() -> None:
    assert knows_of_loss(END, 3, 2)
    changed = with_loss(END, 2)
    assert (changed.last, changed.exact, changed.lost) == (5, False, ((2, 2),))
    assert with_loss(END, 9).lost == ((2, 3), (6, 9))
    assert with_loss(END, 9).last == 9


def test_copies_behind_the_lng_prove_nothing() -> None:
    """Appends that were in flight look the same."""
    assert not knows_of_loss(END, 3, 1)
    assert not knows_of_loss(replace(END, found=((1, 5),)), 3, 5)


def test_only_a_node_that_was_absent_knows_better() -> None:
    assert not knows_of_loss(END, 2, 5)
    assert not knows_of_loss(replace(END, absent=()), 3, 5)


def test_a_loss_is_reported_once_and_may_grow() -> None:
    changed = with_loss(END, 2)
    assert not knows_of_loss(changed, 3, 2)
    assert with_loss(changed, 9).lost == ((2, 3), (6, 9))
    assert with_loss(with_loss(END, 9), 2) == with_loss(END, 9)


def test_an_epoch_of_which_nothing_was_found_is_lost_from_its_beginning() -> None:
    nothing = EpochEnd(1, 0, 0, 1, 9, found=((1, OFFSET_MAX),), absent=(3,))
    changed = with_loss(nothing, 4)
    assert (changed.last, changed.exact, changed.lost) == (4, False, ((1, 4),))


def test_what_is_missing_up_to_where_a_sequencer_ended_was_acknowledged() -> None:
    """Behind that, a batch that was in flight may be the last one that was found."""
    unknown = replace(END, last=8, exact=False, found=((1, 1), (4, OFFSET_MAX)))
    changed = finished(unknown, 6)
    assert (changed.last, changed.exact) == (8, True)
    assert [marked_at(changed, offset).last for offset in (1, 4, 7)] == [1, 6, OFFSET_MAX]
    assert finished(unknown, 9).last == 9
    assert finished(unknown, 3).found == unknown.found
    assert finished(END, 5) == END


def test_of_very_many_holes_none_hides_a_loss() -> None:
    """The last ones count as lost, and no record as a hole."""
    holes = range(2, 4 * UNMARKED_MAX, 2)
    marks = [Span(offset, offset, Kind.HOLE) for offset in holes]
    last = holes[-1] + 1
    found = unmarked([*marks, Span(last + 1, OFFSET_MAX, Kind.BRIDGE)], 0)
    assert len(found) == UNMARKED_MAX
    end = EpochEnd(1, 0, last, 1, 9, found=found, absent=(3,))
    assert [marked_at(end, record).is_marked for record in range(1, last + 1, 2)] == [False] * (
        len(holes) + 1
    )
    known = [hole for hole in holes if marked_at(end, hole).is_marked]
    assert known == list(holes[: UNMARKED_MAX - 1])
    assert all(marked_at(end, hole).is_marked is False for hole in holes[len(known) :])
    changed = with_loss(end, last + 10)
    assert changed.lost == (*((hole, hole) for hole in known), (last + 1, last + 10))
    assert with_loss(changed, last + 10) == changed


# ---- a node that comes back


def forgetful_rig(replication: int = 2) -> RecoveryRig:
    """Return three nodes. All crashed, two of them forgot the last two records, and the third comes
    back when it is not waited for any more."""
    rig = RecoveryRig(count=3, replication=replication, epoch=2)
    rig.state = replace(rig.state, lives=tuple(Life(1, node, 1) for node in rig.nodes))
    rig.lives = dict.fromkeys(rig.nodes, 2)
    rig.write(1, 1, 2, 3)
    rig.write(2, 3, lng=1, copyset=(1, 2, 3))
    rig.write(3, 3, lng=2, copyset=(1, 2, 3))
    rig.down = {3}
    recovery = Recovery(LOG, 2)
    for _ in range(CRASHED_ATTEMPTS + 1):
        ending = rig.drive(recovery.attempt({}, NOW_US))
    assert isinstance(ending, Recovered)
    assert rig.state.tail == make(1, 1)
    rig.down = set()
    return rig


def test_a_wait_that_others_interrupted_begins_anew() -> None:
    """The nodes that crashed were away as well for hours. The third one is back soon after them."""
    rig = RecoveryRig(count=3, replication=2, epoch=2)
    rig.state = replace(rig.state, lives=tuple(Life(1, node, 1) for node in rig.nodes))
    rig.lives = dict.fromkeys(rig.nodes, 2)
    rig.write(1, 1, 2, 3)
    rig.write(2, 3, lng=1, copyset=(1, 2, 3))
    recovery = Recovery(LOG, 2)

    def attempt(now_s: float, *down: int) -> object:
        rig.down = {*down}
        return rig.drive(recovery.attempt({}, NOW_US, now_s=now_s))

    for second in range(CRASHED_ATTEMPTS - 1):
        assert isinstance(attempt(100.0 + second / 3, 3), NotRecovered)
    for second in range(0, 3600, 5):
        assert isinstance(attempt(130.0 + second, 2, 3), NotRecovered)
    assert isinstance(attempt(4000.0, 3), NotRecovered)
    assert isinstance(attempt(4005.0, 3), NotRecovered)
    assert isinstance(attempt(4010.0), Recovered)
    assert rig.state.tail == make(1, 2)


def purged(rig: RecoveryRig) -> str:
    lng = rig.nodes[3].records(LOG).standing.released_in(1)
    return rig.drive(purge(LOG, 1, 3, lng))


def test_what_it_knows_is_recorded_before_its_copies_go() -> None:
    rig = forgetful_rig()
    assert not purged(rig)
    [end] = rig.state.ends
    assert (end.last, end.exact, end.lost) == (2, False, ((2, 2),))
    assert uncertain(rig.state) == [1]
    assert rig.state.tail == make(1, OFFSET_MAX)
    requests = [type(ask.request) for ask in rig.asked]
    assert requests.index(Miss) < requests.index(Purge)
    rig.nodes[3].answer(Release(LOG, make(2, 0)))
    read = Read(LOG, 1, make(1, OFFSET_MAX), 1 << 20, everything=True)
    answer = rig.nodes[3].answer(read)
    assert isinstance(answer, Delivered)
    assert [record.offset for record in answer.records] == [1]
    assert uncertain(trim(rig.state, make(2, 0))) == []


def test_nothing_goes_while_it_cannot_be_recorded() -> None:
    rig = forgetful_rig()
    before, state = rig.pieces(3), rig.state
    problem = rig.drive(
        purge(LOG, 1, 3, 2), lambda ask: state if isinstance(ask.request, Miss) else None
    )
    assert problem == "the epoch store does not note a loss"
    assert rig.pieces(3) == before


def test_a_donor_does_not_make_it_forget_what_it_knows() -> None:
    rig = forgetful_rig()
    before = rig.pieces(3)

    def restored() -> RestoreAnswer:
        records, [end] = rig.nodes[3].records(LOG), rig.state.ends
        request = Restore(LOG, rig.copies(1)[1], end, 0)
        return decide(request, records.standing, records, 3, version=0)[0]

    assert restored() == NotHere()
    assert rig.pieces(3) == before
    assert not purged(rig)
    assert restored() == Stored()


def test_an_append_that_was_in_flight_when_the_power_failed_is_no_loss() -> None:
    rig = forgetful_rig()
    rig.nodes[3].records(LOG).standing = rig.nodes[3].records(LOG).standing._replace(lngs=())
    before = rig.state
    assert not purged(rig)
    assert rig.state == before
    assert [first for first, *_ in rig.pieces(3)] == [1]


def test_what_was_trimmed_before_the_power_failed_is_no_loss() -> None:
    """Recovery does not look for it, so it has no marks there."""
    rig = RecoveryRig(count=3, replication=2, epoch=2)
    rig.state = replace(
        rig.state, lives=tuple(Life(1, node, 1) for node in rig.nodes), trimmed=make(1, 2)
    )
    rig.lives = dict.fromkeys(rig.nodes, 2)
    for offset in (1, 2, 3):
        rig.write(offset, 1, 2, 3)
    rig.nodes[3].answer(Release(LOG, make(1, 3)))
    rig.down = {3}
    recovery = Recovery(LOG, 2)
    for _ in range(CRASHED_ATTEMPTS + 1):
        ending = rig.drive(recovery.attempt({}, NOW_US))
    assert isinstance(ending, Recovered)
    rig.down = set()
    assert rig.nodes[3].records(LOG).standing.released_in(1) == 3
    before = rig.state
    assert not purged(rig)
    assert rig.state == before
    assert uncertain(rig.state) == []


def test_the_outcome_of_a_lost_append_is_not_known() -> None:
    rig = forgetful_rig()
    for node in (1, 2):
        rig.nodes[node].answer(Release(LOG, make(2, 0)))
    assert isinstance(rig.drive(resolve(LOG, make(1, 2))), Nowhere)
    assert not purged(rig)
    for lost in (2, 3):
        outcome = rig.drive(resolve(LOG, make(1, lost)))
        assert isinstance(outcome, Unresolved)
        assert outcome.for_good


def test_an_epoch_that_was_taken_for_empty_is_remembered() -> None:
    rig = RecoveryRig(count=3, replication=2)
    nothing = EpochEnd(1, 0, 0, 1, 9, found=((1, OFFSET_MAX),), absent=(3,))
    state = replace(rig.state, last_clean=1, ends=(nothing,))
    changed = miss(state, Miss(LOG, 1, 4))
    assert [(end.last, end.exact) for end in changed.ends] == [(4, False)]


def test_the_end_of_a_closed_log_stays_where_it_is() -> None:
    rig = forgetful_rig()
    closed = replace(rig.state, closed=True)
    changed = miss(closed, Miss(LOG, 1, 3))
    assert changed.tail == closed.tail
    assert uncertain(changed) == [1]
