"""Negative controls: the reader of `copyset` without one rule, which the judge must notice."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from copyset_copied_world import CopiedWorld
from copyset_world import CopysetWorld
from violation import finds

from loomlog.core.copyset.effects import GapKind
from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.nodeset import Authority, EpochMetadata
from loomlog.core.copyset.reader import CopysetReader
from loomlog.core.copyset.reader_knowledge import Knowledge
from loomlog.core.copyset.reader_sources import Finding, ReadSource, ReadSources
from loomlog.core.copyset.reader_window import ReadWindow
from loomlog.core.copyset.record import OFFSET_MAX, Epoch, Lsn, epoch_of, last_of, make
from loomlog.types import NodeId

SEEDS = 300
LOST = "is said to be lost"
STILL = "not well although"
Patch = pytest.MonkeyPatch


def notices(complaint: str, *, disaster: bool = False, first: int = 0) -> bool:
    """Return whether the judge complains in these words (a pattern), with a seed from `first` on;
    that one did when the test was written."""
    make = partial(CopysetWorld, disaster=disaster)
    return finds(complaint, make, range(first, first + SEEDS)) is not None


def test_what_single_copy_delivery_does_not_bring_is_thought_lost(monkeypatch: Patch) -> None:
    def hasty(reader: CopysetReader, now: float) -> bool:
        return reader._is_decided() and reader._conclude(is_grace_over=True, now=now)

    monkeypatch.setattr(CopysetReader, "_unblock", hasty)
    assert notices(LOST)


def test_others_are_not_asked_again_for_what_a_node_that_failed_should_send(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(ReadSources, "must_rewind", lambda self: False)
    assert notices(f"{LOST}|{STILL}")


def test_a_node_that_lost_its_disk_counts_as_one_that_never_had_anything(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(ReadSource, "counts_at", lambda self, lsn: True)
    assert notices(LOST, first=13)


def test_a_damaged_copy_counts_as_none(monkeypatch: Patch) -> None:
    def counts_at(source: ReadSource, _lsn: Lsn) -> bool:
        trusted = source.authority in (Authority.FULL, Authority.UNAVAILABLE)
        return trusted and not source.lost_through

    monkeypatch.setattr(ReadSource, "counts_at", counts_at)
    assert notices(LOST, first=18)


def test_nobody_waits_for_a_node_that_is_unavailable(monkeypatch: Patch) -> None:
    is_full = property(lambda source: source.authority is Authority.FULL)
    monkeypatch.setattr(ReadSource, "is_expected", is_full)
    assert notices(LOST)


def test_a_simple_majority_is_thought_to_be_enough(monkeypatch: Patch) -> None:
    is_f_majority = EpochMetadata.is_f_majority

    def is_majority(
        metadata: EpochMetadata, nodes: Collection[NodeId], empty: Collection[NodeId] | None = None
    ) -> bool:
        if empty is None:  # it is not a reader who asks
            return is_f_majority(metadata, nodes)
        return 2 * len(nodes) > len(metadata.nodeset)

    monkeypatch.setattr(EpochMetadata, "is_f_majority", is_majority)
    assert notices(LOST)


def test_answers_from_before_records_were_copied_again_are_believed(monkeypatch: Patch) -> None:
    learn_authorities = ReadSources.learn_authorities

    def told(sources: ReadSources, authorities: dict[NodeId, Authority]) -> None:
        learn_authorities(sources, authorities)
        sources._answers_are_stale = False

    with monkeypatch.context() as broken:
        broken.setattr(ReadSources, "learn_authorities", told)
        found = (62, 660, 766, 987, 1247, 1622, 2011, 2053)  # it is rare: any of these will do
        seed = finds("acknowledged and is shown as dataloss", CopiedWorld, found)
    assert seed is not None
    CopiedWorld(seed).run()  # with the rule, nobody complains


def test_answers_to_older_questions_are_taken(monkeypatch: Patch) -> None:
    taken = lambda self, shard, question: self._by_shard.get(shard)  # noqa: E731
    monkeypatch.setattr(ReadSources, "asked", taken)
    assert notices(f"{LOST}|{STILL}", first=7)


def test_ends_that_nobody_knows_are_taken_for_certain(monkeypatch: Patch) -> None:
    end_of = Knowledge.end_of

    def certain(known: Knowledge, epoch: Epoch) -> EpochEnd | None:
        end = end_of(known, epoch)
        return None if end is None else replace(end, exact=True)

    monkeypatch.setattr(Knowledge, "end_of", certain)
    assert notices("was lost and is shown as bridge", disaster=True)


def test_an_epoch_is_thought_to_end_with_the_last_record_that_is_left(monkeypatch: Patch) -> None:
    def hopeful(reader: CopysetReader, finding: Finding) -> Lsn:
        last = finding.last if reader._window.first is None else reader._window.first - 1
        if last >= make(epoch_of(reader.head), OFFSET_MAX):
            reader._gap(last_of(epoch_of(reader.head)), GapKind.BRIDGE)
        return last

    monkeypatch.setattr(CopysetReader, "_last_lost", hopeful)
    assert notices("was lost and is shown as bridge", disaster=True)


def test_trims_are_not_listened_to(monkeypatch: Patch) -> None:
    never = property(lambda known: 0, lambda known, lsn: None)
    monkeypatch.setattr(Knowledge, "trimmed", never, raising=False)
    assert notices(LOST)


def test_records_are_delivered_as_they_come(monkeypatch: Patch) -> None:
    pop: Any = ReadWindow.pop

    def first_best(window: ReadWindow, head: Lsn) -> object:
        return pop(window, window.first if window.first is not None else head)

    monkeypatch.setattr(ReadWindow, "pop", first_best)
    assert notices("comes next, not")


def test_a_node_that_is_late_is_waited_for(monkeypatch: Patch) -> None:
    """Without a grace that ends, a reader stands still while one node is away."""
    monkeypatch.setattr(CopysetReader, "_unblock", lambda self, now: False)
    assert notices(STILL, disaster=True)
