"""Whole clusters whose `copyset` logs are rebuilt while nodes stop, lose their disks and return."""

from __future__ import annotations

import pytest
from run_seeds import Choice, Outcome, run_seed

from loomlog.metadata.copyset.keeper import CopysetKeeper
from loomlog.node.copyset.marks import Marks

SEEDS = 3
REGRESSIONS = (
    1006,  # what one log left was forgotten if another one was scanned at the same time
    1063,  # epochs after the loss of a shard, recovered without it, kept too few copies
    5158,  # a repeated append was not recognised in a restored copy, and stood there twice
    5240,  # a copy that was away named a shard that was drained and left the nodeset meanwhile
    30013,  # a reader called an entry lost that moved after its new node had said "not here"
    30591,  # nodes were not told what the first step of a new leader had changed
    30174,  # a nodeset was widened, and nobody looked whether the log needs another epoch
    30286,  # the tail was asked for while a connection of the recovery was half open
    30138,  # no shard was left of an epoch that could be asked what it has of it
    158,  # after a loss, records with too few copies were not completed
    30052,  # a copy that was left behind named shards that its record had left since
)
CHUNKS = 20
SEEDS_PER_CHUNK = 50


def run(seed: int) -> Outcome:
    return run_seed(Choice(seed, "rebuilding"))


@pytest.mark.parametrize("seed", [*range(1, SEEDS + 1), *REGRESSIONS])
def test_nothing_is_lost_and_all_copies_are_made_again(seed: int) -> None:
    outcome = run(seed)
    assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_same_holds_for_many_clusters(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run(seed)
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_the_judge_notices_lost_copies_that_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopysetKeeper, "conditions", lambda self, log: [])
    monkeypatch.setattr(CopysetKeeper, "node_conditions", lambda self, node: [])
    assert any("is only on" in (run(seed).error or "") for seed in range(13, 24))


def test_the_judge_notices_restored_copies_that_are_not_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Marks, "note_restored", lambda self, log, record: None)
    assert any("is certain that it never got" in (run(seed).error or "") for seed in range(7, 12))
