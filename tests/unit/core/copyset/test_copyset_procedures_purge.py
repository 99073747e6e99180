"""A node that was away while an epoch was recovered deletes its leftovers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from copyset_recovery_rig import LOG, NOW_US, RecoveryRig

from loomlog.core.copyset.messages import Clean, Delivered, Purge, Read, Release, SetClean
from loomlog.core.copyset.procedures import Steps, purge
from loomlog.core.copyset.record import make
from loomlog.core.copyset.recovery import Recovered, Recovery
from loomlog.core.copyset.storage import epoch_to_purge

FAR = 1 << 62


def away_during_recovery() -> RecoveryRig:
    """Node 4 has a record at 2 that nobody else has, and was away."""
    rig = RecoveryRig()
    rig.write(1, 2, 3, 4)
    rig.write(2, 4, copyset=(2, 3, 4), lng=1)
    rig.write(2, 4, epoch=2)
    rig.down = {4}
    assert isinstance(rig.recover(), Recovered)
    rig.down = set()
    return rig


def shown(rig: RecoveryRig, node: int) -> list[int]:
    answer = rig.nodes[node].answer(Read(LOG, 1, FAR, 1 << 20, everything=True))
    assert isinstance(answer, Delivered)
    return [record.first for record in answer.records]


def purged(rig: RecoveryRig, node: int) -> Steps[str]:
    return purge(LOG, 1, node, rig.nodes[node].records(LOG).standing.released_in(1))


def firsts(rig: RecoveryRig, node: int) -> list[int]:
    """Return the offsets of the copies of epoch 1."""
    return [first for first, *_ in rig.pieces(node)]


def test_nothing_of_later_epochs_is_shown_before_leftovers_are_gone() -> None:
    rig = away_during_recovery()
    release = Release(LOG, make(2, 2))
    rig.nodes[4].answer(release)
    assert shown(rig, 4) == []
    assert epoch_to_purge(release.lsn, rig.nodes[4].records(LOG).standing) == 1
    assert not rig.drive(purged(rig, 4))
    assert firsts(rig, 4) == [1]
    rig.nodes[4].answer(release)
    assert epoch_to_purge(release.lsn, rig.nodes[4].records(LOG).standing) is None
    assert shown(rig, 4) == [make(1, 1), make(2, 2)]


def test_what_was_known_as_fully_stored_stays() -> None:
    rig = RecoveryRig()
    rig.write(1, 2, 3, 4)
    rig.write(2, 4, copyset=(2, 3, 4), lng=1)
    rig.write(3, 3, copyset=(2, 3, 4), lng=1)
    rig.down = {4}
    assert isinstance(rig.recover(), Recovered)
    rig.down = set()
    assert not rig.drive(purged(rig, 4))
    assert firsts(rig, 4) == [1]


def test_a_record_stays_whose_other_copies_are_gone() -> None:
    """Recovery found it above the LNG; then all disks were replaced by copies from before."""
    rig = RecoveryRig()
    rig.write(1, 2, 3, 4)
    rig.write(3, 2, 3, 4)
    copies = {node: deepcopy(rig.nodes[node]) for node in rig.nodes}
    assert isinstance(rig.recover(), Recovered)
    assert rig.state.ends[-1].found == ((1, 1), (3, 3))
    rig.nodes.update(copies)
    for node in (2, 3, 4):
        assert not rig.drive(purged(rig, node))
        assert firsts(rig, node) == [1, 3]


def test_an_epoch_that_is_not_recovered_is_not_purged() -> None:
    rig = RecoveryRig()
    rig.write(1, 4)
    assert "not recovered" in rig.drive(purged(rig, 4))


def test_the_last_of_several_recoveries_counts() -> None:
    """The first one knew less of what was fully stored: by its word a copy would go that counts.
    Nobody repeats what is believed to be stored on R nodes."""
    rig = RecoveryRig(count=5)
    rig.write(1, 1, 2, 3)
    rig.write(2, 4, copyset=(4, 5, 1), lng=1)
    rig.down = {3, 4}
    steps = Recovery(LOG, 2).attempt({}, NOW_US)
    asked = next(steps)
    while not isinstance(asked.asks[0].request, SetClean):
        asked = steps.send(rig.answer(asked))
    assert [request.end.lng for request in rig.requests(Clean)] == [0, 0, 0]
    rig.next_sequencer()
    rig.down = {1, 3}
    assert isinstance(rig.recover(), Recovered)
    rig.down = {2, 5}
    assert not rig.drive(purged(rig, 3))
    assert [request.end.lng for request in rig.requests(Purge)] == [1]
    assert 3 in rig.copies(1)


def test_nobody_else_has_to_be_there() -> None:
    """The epoch store says how an epoch ended, even if disks were lost since."""
    rig = away_during_recovery()
    for node in (1, 2, 3):
        rig.lose_disk(node)
    rig.down = {1, 2, 3}
    assert not rig.drive(purged(rig, 4))
    assert firsts(rig, 4) == [1]


def test_of_an_epoch_that_is_trimmed_nothing_is_left_whoever_was_there() -> None:
    """The nodes that could tell how the epoch ended are forgotten with it."""
    rig = away_during_recovery()
    later = rig.metadata._replace(since=2)
    rig.state = replace(rig.state, history=(later,), trimmed=make(2, 1))
    assert not rig.drive(purged(rig, 4))
    standing = rig.nodes[4].records(LOG).standing
    assert (standing.last_clean, standing.trimmed) == (1, make(2, 1))
    rig.nodes[4].answer(Release(LOG, make(2, 2)))
    assert shown(rig, 4) == [make(2, 2)]


def test_a_purge_that_dies_is_repeated() -> None:
    rig = away_during_recovery()
    steps = purged(rig, 4)
    steps.send(rig.answer(next(steps)))
    steps.close()
    for _ in range(2):
        assert not rig.drive(purged(rig, 4))
    assert firsts(rig, 4) == [1]


def test_what_is_left_stays_where_nobody_knows_the_end() -> None:
    rig = away_during_recovery()
    [end] = rig.state.ends
    rig.state = replace(rig.state, ends=(replace(end, exact=False),))
    before = rig.pieces(4)
    assert not rig.drive(purged(rig, 4))
    assert rig.pieces(4) == before
    assert rig.nodes[4].records(LOG).standing.last_clean == 1
