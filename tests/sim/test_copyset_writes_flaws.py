"""Negative controls: writes of `copyset` without one rule, which the judge must notice."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from copyset_world import CopysetWorld
from violation import finds

from loomlog.core.copyset import nodeset, settlement, storage
from loomlog.core.copyset.effects import SequencerEffect
from loomlog.core.copyset.messages import Amend, Stored
from loomlog.core.copyset.nodeset import Member
from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.sequencer import EpochSequencer, Underway
from loomlog.core.copyset.storage import Decision, LogStanding, Records
from loomlog.types import NodeId

SEEDS = 300
Patch = pytest.MonkeyPatch


def notices(complaint: str, shards: int = 1, *, first: int = 0) -> bool:
    """Return whether the judge complains in these words (a pattern), with a seed from `first` on;
    that one did when the test was written."""
    make = partial(CopysetWorld, shards=shards)
    return finds(complaint, make, range(first, first + SEEDS)) is not None


def test_a_copy_less_is_enough(monkeypatch: Patch) -> None:
    def hasty(underway: Underway, node: NodeId, wave: int) -> bool:
        underway.holders.add(node)
        underway.stored.update([node] if wave == underway.wave else [])
        return len(underway.silent) <= 1

    monkeypatch.setattr(Underway, "stored_by", hasty)
    assert notices("not on")


def test_two_copies_on_shards_of_one_node_count(monkeypatch: Patch) -> None:
    for module in (nodeset, settlement):
        monkeypatch.setattr(module, "node_of", lambda shard: shard)
    assert notices("is said to be lost|was acknowledged", shards=2)


def test_copies_of_any_wave_count(monkeypatch: Patch) -> None:
    def generous(underway: Underway, node: NodeId, wave: int) -> bool:
        underway.holders.add(node)
        underway.stored.update(underway.holders)
        return not underway.silent

    monkeypatch.setattr(Underway, "stored_by", generous)
    assert notices("in wave")


def test_an_older_wave_takes_the_place_of_a_newer_one(monkeypatch: Patch) -> None:
    monkeypatch.setattr(storage, "_counts_as_much", lambda copy, record: copy == record)
    assert notices("changed")


def test_what_is_not_here_is_amended(monkeypatch: Patch) -> None:
    def obliging(request: Amend, standing: LogStanding, records: Records) -> Decision:
        return Stored(), []

    monkeypatch.setattr(storage, "_amend", obliging)
    assert notices("not on")


def test_nodes_take_what_is_sealed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(storage, "_check_seals", lambda *arguments: None)
    assert notices("was sealed")


def test_a_sequencer_goes_on_when_it_is_preempted(monkeypatch: Patch) -> None:
    step_down = EpochSequencer._step_down

    def stubborn(sequencer: EpochSequencer, seal: Epoch) -> list[SequencerEffect]:
        state, underway = sequencer.state, dict(sequencer._underway)
        effects = step_down(sequencer, seal)
        sequencer.state = state
        sequencer._underway.update(underway)
        return effects[-1:]

    monkeypatch.setattr(EpochSequencer, "_step_down", stubborn)
    assert notices("after a preemption")


def test_records_are_acknowledged_before_older_sequencers_are_fenced(monkeypatch: Patch) -> None:
    append = EpochSequencer.append

    def eager(sequencer: EpochSequencer, *arguments: object) -> list[SequencerEffect]:
        sequencer._fenced = True
        return append(sequencer, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(EpochSequencer, "append", eager)
    assert notices("began behind")


def test_records_are_released_before_older_epochs_are_recovered(monkeypatch: Patch) -> None:
    append = EpochSequencer.append

    def eager(sequencer: EpochSequencer, *arguments: object) -> list[SequencerEffect]:
        sequencer._recovered = True
        return append(sequencer, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(EpochSequencer, "append", eager)
    assert notices("before recovery")


def test_lng_passes_what_is_under_way(monkeypatch: Patch) -> None:
    finish = Underway.finish

    def all_done(underway: Underway) -> None:
        finish(underway)
        for other in windows[0]:
            other.done = True

    windows: list[Sequence[Underway]] = []
    done = EpochSequencer._done

    def remember(sequencer: EpochSequencer, underway: Underway) -> list[SequencerEffect]:
        windows[:] = [sequencer._window]
        return done(sequencer, underway)

    monkeypatch.setattr(EpochSequencer, "_done", remember)
    monkeypatch.setattr(Underway, "finish", all_done)
    assert notices("not stored")


def test_a_node_shows_what_is_behind_an_unclean_epoch(monkeypatch: Patch) -> None:
    monkeypatch.setattr(storage, "_clean_before", lambda epoch, standing, records: epoch - 1)
    assert notices("over an unclean epoch")


def test_copysets_are_not_spread(monkeypatch: Patch) -> None:
    def at_random(members: Sequence[Member], domains_max: int) -> list[Member]:
        return list(members[:domains_max])

    monkeypatch.setattr(nodeset, "_spread", at_random)
    assert notices("not spread")


def test_nodes_do_not_agree_on_who_sends(monkeypatch: Patch) -> None:
    def by_own_opinion(me: NodeId, copyset: Sequence[NodeId], *arguments: object) -> bool:
        return me == max(copyset)

    monkeypatch.setattr(storage, "is_sender", by_own_opinion)
    assert notices("not sent")


def test_an_lsn_is_given_twice(monkeypatch: Patch) -> None:
    append = EpochSequencer.append

    def forgetful(sequencer: EpochSequencer, *arguments: object) -> list[SequencerEffect]:
        if sequencer._next_offset > 8 and not sequencer._underway:
            sequencer._next_offset = 1
        return append(sequencer, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(EpochSequencer, "append", forgetful)
    assert notices("was given to")
