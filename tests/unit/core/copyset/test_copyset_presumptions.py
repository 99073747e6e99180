"""A recovery that does without a node, and dies: its marks prove nothing to the next one, to which
the node may be back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace

import pytest
from copyset_recovery_rig import LOG, NOW_US, Hook, RecoveryRig, let_through

from loomlog.core.copyset.evidence import loss_at, recovered
from loomlog.core.copyset.log_state import presume, set_clean, uncertain
from loomlog.core.copyset.messages import (
    Clean,
    EpochEnd,
    Life,
    LogState,
    Release,
    SetClean,
    Store,
)
from loomlog.core.copyset.nodeset import Authority
from loomlog.core.copyset.presumption import Presume, Presumption
from loomlog.core.copyset.procedures import Answer, CopysetAsk, purge
from loomlog.core.copyset.record import OFFSET_MAX, Kind, make
from loomlog.core.copyset.recovery import CRASHED_ATTEMPTS, Recovered, Recovery
from loomlog.core.copyset.storage import epoch_to_purge
from loomlog.core.requests import Lost


def forgetful_rig(*, lng: int = 2, has: Sequence[int] = (2, 3)) -> RecoveryRig:
    """Return three nodes that crashed. Two of them forgot all but the first record; the third,
    which is down, has more, and knows an LNG."""
    rig = RecoveryRig(count=3, replication=2, epoch=2)
    rig.state = replace(rig.state, lives=tuple(Life(1, node, 1) for node in rig.nodes))
    rig.lives = dict.fromkeys(rig.nodes, 2)
    rig.write(1, 1, 2, 3)
    for offset in has:
        rig.write(offset, 3, lng=lng if offset == 3 else 0, copyset=(1, 3))
    rig.down = {3}
    return rig


def end_of(rig: RecoveryRig) -> EpochEnd:
    end = rig.state.end_of(1)
    assert end is not None
    return end


def impatient(rig: RecoveryRig) -> Recovery:
    """Return a recovery that does not wait any more for nodes that are down."""
    recovery = Recovery(LOG, rig.state.epoch)
    for _ in range(CRASHED_ATTEMPTS):
        rig.drive(recovery.attempt({}, NOW_US))
    return recovery


def lose(kind: type[object]) -> Hook:
    """Let no request of a kind arrive."""

    def hook(ask: CopysetAsk) -> Answer | None:
        return Lost() if isinstance(ask.request, kind) else None

    return hook


def die(rig: RecoveryRig, before: type[object]) -> None:
    """Let a recovery without the third node write its marks and die before such a request."""
    rig.drive(impatient(rig).attempt({}, NOW_US), lose(before))
    assert rig.state.last_clean == 0
    assert rig.pieces(1)[-1] == (2, OFFSET_MAX, Kind.BRIDGE)
    rig.down = set()
    rig.next_sequencer()


@pytest.mark.parametrize("before", [Clean, SetClean])
def test_what_only_the_absent_node_has_is_kept_if_it_is_back_for_the_next_one(
    before: type[object],
) -> None:
    rig = forgetful_rig()
    die(rig, before)
    assert isinstance(rig.recover(), Recovered)
    end = end_of(rig)
    assert (end.last, end.exact, end.lost) == (3, True, ())
    assert all(len(rig.copies(offset)) >= 2 for offset in (2, 3))
    assert {copy.kind for offset in (2, 3) for copy in rig.copies(offset).values()} == {Kind.DATA}


def test_what_it_knows_to_be_acknowledged_and_nobody_has_is_lost() -> None:
    rig = forgetful_rig(lng=2, has=[3])
    die(rig, SetClean)
    assert isinstance(rig.recover(), Recovered)
    end = end_of(rig)
    assert (end.last, end.exact, end.lost) == (3, False, ((2, 2),))
    assert uncertain(rig.state) == [1]


def test_what_was_in_flight_and_nobody_has_is_a_hole() -> None:
    rig = forgetful_rig(lng=1, has=[3])
    die(rig, SetClean)
    assert isinstance(rig.recover(), Recovered)
    end = end_of(rig)
    assert (end.last, end.exact, end.lost) == (3, True, ())
    assert end.found == ((1, 1), (3, 3))


def test_it_is_noted_before_the_first_mark() -> None:
    rig = forgetful_rig()
    ending = rig.drive(impatient(rig).attempt({}, NOW_US), lose(Presume))
    assert not isinstance(ending, Recovered)
    assert not rig.requests(Store)
    assert [kind for _, _, kind in rig.pieces(1)] == [Kind.DATA]


def test_a_recovery_that_needs_nobody_else_notes_nothing() -> None:
    rig = forgetful_rig()
    rig.lives = dict.fromkeys(rig.nodes, 1)
    assert isinstance(rig.recover(), Recovered)
    assert not [ask for ask in rig.asked if isinstance(ask.request, Presume)]


def test_what_was_known_once_is_known_when_the_node_is_gone_again() -> None:
    """The node was there for the second recovery, which died, too; to the third it is absent."""
    rig = forgetful_rig(lng=3)
    die(rig, SetClean)
    rig.recover(lose(Store))
    rig.next_sequencer()
    rig.down = {3}
    assert isinstance(rig.drive(impatient(rig).attempt({}, NOW_US)), Recovered)
    end = end_of(rig)
    assert not end.exact
    assert end.lost == ((2, 3),)


def test_marks_that_nobody_can_confirm_are_lost() -> None:
    """The next recovery lacks disks: it must not leave marks, and those that are there stay."""
    rig = forgetful_rig(lng=1)
    die(rig, SetClean)
    rig.down = {3}
    authority = {3: Authority.UNAVAILABLE, 2: Authority.UNDERREPLICATED}
    recovery = Recovery(LOG, rig.state.epoch)
    for _ in range(CRASHED_ATTEMPTS + 1):
        ending = rig.drive(recovery.attempt(authority, NOW_US))
    assert isinstance(ending, Recovered)
    end = end_of(rig)
    assert not end.exact
    assert end.lost == ((2, OFFSET_MAX),)


def test_an_earlier_attempt_cannot_end_the_epoch_any_more() -> None:
    """The message is late; meanwhile the node is back."""
    rig = forgetful_rig()
    recovery = impatient(rig)
    late: list[SetClean] = []

    def delay(ask: CopysetAsk) -> Answer | None:
        if isinstance(ask.request, SetClean):
            late.append(ask.request)
            return Lost()
        return None

    rig.drive(recovery.attempt({}, NOW_US), delay)
    rig.down = set()
    steps = recovery.attempt({}, NOW_US)
    asked = next(steps)
    while not isinstance(asked.asks[0].request, Clean):
        asked = steps.send(rig.answer(asked, let_through))
    assert set_clean(rig.state, late[0]) == rig.state
    with suppress(StopIteration):
        while True:
            asked = steps.send(rig.answer(asked, let_through))
    end = end_of(rig)
    assert (end.last, end.wave) == (3, CRASHED_ATTEMPTS + 2)


# ---- in the epoch store


def state_of(rig: RecoveryRig) -> LogState:
    return replace(rig.state, epoch=4)


def test_the_epoch_store_keeps_the_newest_attempt_and_the_widest_range() -> None:
    state = presume(state_of(RecoveryRig()), Presume(LOG, 4, 1, wave=3, lng=5, good=6))
    state = presume(state, Presume(LOG, 4, 1, wave=4, lng=7, good=9))
    state = presume(state, Presume(LOG, 4, 1, wave=2, lng=6, good=7))
    assert state.presumed == (Presumption(1, 4, 4, 5, 9),)
    assert state.presumed_in(1) == Presumption(1, 4, 4, 5, 9)
    assert state.presumed_in(2) is None


@pytest.mark.parametrize("request_", [Presume(LOG, 3, 1, 1, 0, 0), Presume(LOG, 4, 4, 1, 0, 0)])
def test_it_ignores_recoveries_of_older_sequencers_and_other_epochs(request_: Presume) -> None:
    state = state_of(RecoveryRig())
    assert presume(state, request_) is state


def test_it_forgets_them_with_the_end_of_the_epoch() -> None:
    state = presume(state_of(RecoveryRig()), Presume(LOG, 4, 1, wave=3, lng=5, good=6))
    late = SetClean(LOG, 4, EpochEnd(1, 0, 5, seal=3, wave=2))
    assert set_clean(state, late) is state
    clean = set_clean(state, SetClean(LOG, 4, EpochEnd(1, 0, 5, seal=3, wave=3)))
    assert (clean.last_clean, clean.presumed) == (1, ())


def test_marks_that_nobody_can_confirm_are_no_certain_losses() -> None:
    """Recovery found something behind them: they are no bridge."""
    end = EpochEnd(1, lng=1, last=9, seal=1, wave=1, exact=False, found=((2, OFFSET_MAX),))
    end = recovered(end, 1, [(4, 5)])
    assert loss_at(end, 4) == (5, False)
    assert loss_at(end, 6) is None


# ---- a recovery that told a node how the epoch ended, and died


def told_rig() -> RecoveryRig:
    """Return three nodes, of which the third was told of an end with the LNG 2. Then the power
    failed, and the others forgot all but the first record."""
    rig = RecoveryRig(count=3, replication=2, epoch=2)
    rig.state = replace(rig.state, lives=tuple(Life(1, node, 1) for node in rig.nodes))
    rig.lives = dict.fromkeys(rig.nodes, 1)
    rig.write(1, 1, 2, 3)
    forgetful = {node: deepcopy(rig.nodes[node]) for node in (1, 2)}
    rig.write(2, 1, 3)
    rig.write(3, 1, 3, lng=2)
    rig.recover(lose(SetClean))
    assert rig.nodes[3].records(LOG).standing.last_clean == 1
    rig.nodes.update(forgetful)
    rig.lives = dict.fromkeys(rig.nodes, 2)
    rig.next_sequencer()
    return rig


def test_what_it_was_told_counts_in_the_next_recovery() -> None:
    rig = told_rig()
    assert isinstance(rig.recover(), Recovered)
    assert end_of(rig).lng == 2


def test_what_it_was_told_counts_when_it_was_absent_from_the_next_one() -> None:
    rig = told_rig()
    rig.down = {3}
    assert isinstance(rig.drive(impatient(rig).attempt({}, NOW_US)), Recovered)
    assert (end_of(rig).last, end_of(rig).absent) == (1, (3,))
    rig.down = set()
    assert not rig.drive(purge(LOG, 1, 3, 2))
    assert end_of(rig).lost == ((2, 2),)
    records = rig.nodes[3].records(LOG)
    assert records.end_of(1) == end_of(rig)
    assert [first for first, *_ in rig.pieces(3)] == [1]
    assert not rig.drive(purge(LOG, 1, 3, 2))  # once more changes nothing
    assert records.end_of(1) == end_of(rig)


def test_a_node_without_copies_compares_what_it_knows_with_the_end() -> None:
    """The node was told of a release, and stored nothing."""
    rig = RecoveryRig(count=3, replication=2, epoch=2)
    node = rig.nodes[3]
    node.answer(Release(LOG, make(1, 4)))
    node.answer(Release(LOG, make(3, 0)))
    assert epoch_to_purge(make(3, 0), node.records(LOG).standing) == 1
