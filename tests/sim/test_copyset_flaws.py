"""Negative controls: the copyset protocol with one rule left out, which the judge must notice.

Writes and readers have their own: test_copyset_writes_flaws.py, test_copyset_reader_flaws.py."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import pytest
from copyset_parties import Node
from copyset_world import CopysetWorld
from violation import finds

from loomlog.core.copyset import recovery, sequencer, settlement, storage
from loomlog.core.copyset.messages import Acknowledged, EpochEnd, LogState, Preempted, SealedAt
from loomlog.core.copyset.nodeset import EpochMetadata
from loomlog.core.copyset.procedures import Steps
from loomlog.core.copyset.record import OFFSET_MAX, Epoch, Lsn, Offset, make
from loomlog.core.copyset.recovery import Basis, EpochRecovery, Failed
from loomlog.core.copyset.settlement import Digests, Settled, settle
from loomlog.core.copyset.storage import LogStanding, Records
from loomlog.types import NodeId

SEEDS = 300
Patch = pytest.MonkeyPatch


def notices(complaint: str, *, disaster: bool = False, first: int = 0) -> bool:
    """Return whether the judge complains in these words (a pattern), with a seed from `first` on;
    that one did when the test was written."""
    make = partial(CopysetWorld, disaster=disaster)
    return finds(complaint, make, range(first, first + SEEDS)) is not None


def test_any_node_is_enough_to_recover_from(monkeypatch: Patch) -> None:
    def hasty(self: EpochRecovery, there: Collection[NodeId]) -> Basis | Failed:
        return Basis(frozenset(there), authoritative=True) if there else Failed("nobody is there")

    monkeypatch.setattr(EpochRecovery, "_basis", hasty)
    assert notices("was acknowledged and is shown as|shows .* and Void")


def test_a_node_that_lost_its_disk_counts_as_before(monkeypatch: Patch) -> None:
    lose_disk = Node.lose_disk

    def unnoticed(self: Node, newest: Epoch) -> None:
        lose_disk(self, newest)
        self.lost_through = 0

    monkeypatch.setattr(Node, "lose_disk", unnoticed)
    assert notices("is said to be lost|shows .* and Void", first=17)


def test_a_node_with_an_older_copy_of_its_disk_counts_as_before(monkeypatch: Patch) -> None:
    roll_back = Node.roll_back

    def unnoticed(self: Node, newest: Epoch) -> None:
        roll_back(self, newest)
        self.lost_through = 0

    monkeypatch.setattr(Node, "roll_back", unnoticed)
    assert notices("is said to be lost|shows .* and Void", first=141)


def test_a_node_that_lost_its_disk_is_never_believed_again(monkeypatch: Patch) -> None:
    lose_disk = Node.lose_disk

    def for_good(self: Node, newest: Epoch) -> None:
        lose_disk(self, newest)
        self.lost_through = newest + 1

    monkeypatch.setattr(Node, "lose_disk", for_good)
    monkeypatch.setattr(Node, "counts_in", lambda self, epoch: epoch >= self.lost_through)
    assert notices("is said to be lost, and was not", disaster=True)


def test_an_epoch_is_thought_to_end_with_the_last_record_that_was_found(
    monkeypatch: Patch,
) -> None:
    def confident(digests: Digests, after: Offset, **known: Any) -> Settled:
        return settle(digests, after, **known)._replace(exact=True)

    monkeypatch.setattr(recovery, "settle", confident)
    assert notices("was lost and is shown as bridge", disaster=True)


def test_what_a_sequencer_told_last_is_not_listened_to(monkeypatch: Patch) -> None:
    nothing = Acknowledged(0, last=0, final=False)
    monkeypatch.setattr(LogState, "acknowledged_in", lambda self, epoch: nothing)
    assert notices("is said to be lost, and was not", disaster=True)


def test_nodes_take_records_of_sealed_epochs(monkeypatch: Patch) -> None:
    monkeypatch.setattr(storage, "_check_seals", lambda *_: None)
    assert notices("which was sealed")


def test_what_the_last_copies_say_is_taken_for_fully_stored(monkeypatch: Patch) -> None:
    def bold(self: EpochRecovery, answers: Collection[SealedAt]) -> Offset:
        states = [state for answer in answers for state in answer.epochs]
        lasts = [state.last for state in states if state.epoch == self._epoch]
        return max((last for last in lasts if last < OFFSET_MAX), default=0)

    monkeypatch.setattr(EpochRecovery, "_last_known_good", bold)
    assert notices("is said to be lost|is only on")


def test_no_marks_are_left_where_nothing_was(monkeypatch: Patch) -> None:
    def sparing(digests: Digests, after: Offset, **_: object) -> Settled:
        return settle(digests, after, authoritative=False)

    monkeypatch.setattr(recovery, "settle", sparing)
    assert notices("is said to be lost")


def test_marks_are_left_although_too_few_nodes_are_there(monkeypatch: Patch) -> None:
    def sure(digests: Digests, after: Offset, **_: object) -> Settled:
        return settle(digests, after, authoritative=True)

    monkeypatch.setattr(recovery, "settle", sure)
    assert notices("shows .* and Void", disaster=True)


def test_records_are_not_completed(monkeypatch: Patch) -> None:
    def content(
        touched: Collection[NodeId],
        writable: Collection[NodeId],
        metadata: EpochMetadata,
        lsn: Lsn,
    ) -> tuple[NodeId, ...]:
        return tuple(sorted(touched)) or (min(writable),)

    monkeypatch.setattr(settlement, "completed", content)
    assert notices("is only on")


def test_nodes_do_not_learn_that_an_epoch_is_clean(monkeypatch: Patch) -> None:
    """Such nodes delete their copies as leftovers."""
    clean = EpochRecovery._clean

    def only_one(
        self: EpochRecovery, basis: Basis, end: EpochEnd
    ) -> Steps[EpochEnd | Failed | Preempted]:
        told = basis._replace(writable=frozenset([min(basis.writable)]))
        return (yield from clean(self, told, end))

    monkeypatch.setattr(EpochRecovery, "_clean", only_one)
    assert notices("is said to be lost|is only on")


def test_nodes_that_were_away_show_what_they_have(monkeypatch: Patch) -> None:
    def careless(epoch: Epoch, standing: LogStanding, records: Records) -> Epoch:
        return max(standing.last_clean, epoch - 1)

    monkeypatch.setattr(storage, "_clean_before", careless)
    assert notices("over an unclean epoch")


def test_an_epoch_is_released_before_the_ones_before_it_are_clean(monkeypatch: Patch) -> None:
    released = property(lambda self: make(self.epoch, self.lng))
    monkeypatch.setattr(sequencer.EpochSequencer, "released", released)
    assert notices("is released before recovery")
