"""Negative controls: the reader of `copyset` without one rule, which the judge must notice."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import pytest
from copyset_reading import Dangers, ReadingWorld, Violation

from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.epoch_metadata import EpochMetadata
from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.messages import Delivered
from loomlog.core.copyset.reader import Reader
from loomlog.core.copyset.reader_knowledge import Knowledge
from loomlog.core.copyset.reader_source import Source
from loomlog.core.copyset.reader_sources import Sources
from loomlog.core.copyset.reader_window import Window
from loomlog.types import NodeId

SEEDS = 600
Patch = pytest.MonkeyPatch


def notices(complaint: str, dangers: Dangers | None = None) -> bool:
    """Whether the judge complains in these words (a pattern), with some seed."""
    for seed in range(SEEDS):
        try:
            ReadingWorld(seed, dangers).run()
        except Violation as violation:
            if re.match(complaint, str(violation)):
                return True
    return False


def test_what_single_copy_delivery_does_not_bring_is_thought_lost(monkeypatch: Patch) -> None:
    def hasty(reader: Reader, now: float) -> bool:
        return reader._is_decided() and reader._conclude(is_grace_over=True)

    monkeypatch.setattr(Reader, "_unblock", hasty)
    assert notices("dataloss")


def test_others_are_not_asked_again_for_what_a_node_that_failed_should_send(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(Sources, "must_rewind", lambda self: False)
    assert notices("dataloss|stands still")


def test_a_node_that_lost_its_disk_counts_as_one_that_never_had_anything(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(Source, "counts_at", lambda self, lsn: True)
    assert notices("dataloss")


def test_a_damaged_copy_counts_as_none(monkeypatch: Patch) -> None:
    def counts_at(source: Source, _lsn: Lsn) -> bool:
        trusted = source.authority in (Authority.FULL, Authority.UNAVAILABLE)
        return trusted and not source.underreplicated

    monkeypatch.setattr(Source, "counts_at", counts_at)
    assert notices("dataloss")


def test_nobody_waits_for_a_node_that_is_unavailable(monkeypatch: Patch) -> None:
    counts_at = Source.counts_at
    monkeypatch.setattr(
        Source,
        "counts_at",
        lambda self, lsn: counts_at(self, lsn) and self.authority is Authority.FULL,
    )
    assert notices("dataloss")


def test_a_simple_majority_is_thought_to_be_enough(monkeypatch: Patch) -> None:
    def is_majority(
        metadata: EpochMetadata, nodes: Collection[NodeId], _empty: Collection[NodeId]
    ) -> bool:
        return 2 * len(nodes) > len(metadata.nodeset)

    monkeypatch.setattr(EpochMetadata, "is_f_majority", is_majority)
    assert notices("dataloss")


def test_answers_from_before_records_were_copied_again_are_believed(monkeypatch: Patch) -> None:
    told_authorities = Sources.told_authorities

    def told(sources: Sources, authorities: dict[NodeId, Authority]) -> None:
        told_authorities(sources, authorities)
        sources._answers_are_stale = False

    monkeypatch.setattr(Sources, "told_authorities", told)
    assert notices("dataloss")


def test_answers_to_older_questions_are_taken(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Sources, "asked", lambda self, node, question: self._by_node.get(node))
    assert notices("dataloss|stands still")


def test_ends_of_epochs_are_not_listened_to(monkeypatch: Patch) -> None:
    def learn_answer(known: Knowledge, answer: Delivered) -> None:
        known.trimmed = max(known.trimmed, answer.trimmed)

    monkeypatch.setattr(Knowledge, "learn_answer", learn_answer)
    assert notices("bridge", Dangers(tails=3))


def test_trims_are_not_listened_to(monkeypatch: Patch) -> None:
    never = property(lambda known: 0, lambda known, lsn: None)
    monkeypatch.setattr(Knowledge, "trimmed", never, raising=False)
    assert notices("dataloss")


def test_records_are_delivered_as_they_come(monkeypatch: Patch) -> None:
    pop: Any = Window.pop

    def first_best(window: Window, head: Lsn) -> object:
        return pop(window, window.first if window.first is not None else head)

    monkeypatch.setattr(Window, "pop", first_best)
    assert notices(".* is missing before")


def test_a_node_that_is_late_is_waited_for(monkeypatch: Patch) -> None:
    """Without a grace that ends, a reader stands still while one node is away."""
    monkeypatch.setattr(Reader, "_unblock", lambda self, now: False)
    assert notices("stands still")
