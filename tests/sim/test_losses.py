"""Simulated clusters whose nodes lose their disks, or come back with older copies of them or with
disks that forgot the last writes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from run_seeds import Choice, Outcome, run_seed
from seed_chunks import chunks

from loomlog.client.loglets.copyset import acknowledged
from loomlog.core.chained import comparison, reconfigure
from loomlog.core.chained.append import UnreportedBlocks
from loomlog.core.chained.lost_blocks import Side
from loomlog.core.chained.messages import Steps
from loomlog.core.copyset import log_state, procedures
from loomlog.metadata.catalog.records import NodeRecord
from loomlog.metadata.nodes import registration
from loomlog.metadata.nodes.registration import Registration
from loomlog.testing.sim.disk import SimFiles
from loomlog.types import Glsn

CHUNKS = 4
SEEDS_PER_CHUNK = 5
FORGOTTEN_SEEDS = 5
GIVEN_UP_SEEDS = 6
FORGETFUL_REGRESSIONS = (
    *(53, 1231),  # a reader believed nodes that had forgotten the record
    6075,  # a node was away, so appends went to two of three replicas, and both disks forgot them
)
GIVEN_UP_REGRESSIONS = (
    44,  # nobody was left to say that a stream had no entries
    227,  # a node came back that a newcomer, which had more, was to take the place of
)
REGRESSIONS = (34, 1050)  # a stream that lost its end kept readers of others waiting


def run(seed: int) -> Outcome:
    return run_seed(Choice(seed, "losses", "none"))


def seeds_of(chunk: int, regressions: Sequence[int] = ()) -> Sequence[int]:
    """Return the seeds of a chunk; the first one has those that failed once, too."""
    own = range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)
    return (*own, *regressions) if chunk == 0 else own


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_what_was_acknowledged_is_read_or_said_to_be_lost(chunk: int) -> None:
    for seed in seeds_of(chunk, REGRESSIONS):
        outcome = run(seed)
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_the_judge_notices_older_copies_that_nobody_recognises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Registration, "_older_shards", lambda self, request: ())
    errors = (run(seed).error or "" for seed in (19, 27, 38, 49, 64, 87))
    assert any("was acknowledged, is not lost" in error for error in errors)


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_the_same_holds_for_nodes_that_an_operator_gives_up(chunk: int) -> None:
    for seed in seeds_of(chunk, GIVEN_UP_REGRESSIONS):
        outcome = run_seed(Choice(seed, "given-up", "none"))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


@pytest.mark.parametrize("workload", ["given-up-chained", "given-up-copyset"])
def test_nodes_of_other_logs_are_given_up_as_well(workload: str) -> None:
    for seed in range(GIVEN_UP_SEEDS):
        outcome = run_workload(workload, seed)
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_the_judge_notices_a_word_that_chains_do_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeRecord, "is_given_up", property(lambda node: node.removing))
    errors = (run_workload("given-up-chained", seed).error or "" for seed in range(GIVEN_UP_SEEDS))
    assert any("TimeoutError" in error for error in errors)


# ---- disks that forget


def run_forgetful(seed: int, workload: str = "forgetful") -> Outcome:
    return run_seed(Choice(seed, workload, "none"))


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_what_some_disks_forgot_is_read_from_others(chunk: int) -> None:
    for seed in seeds_of(chunk, FORGETFUL_REGRESSIONS):
        outcome = run_forgetful(seed)
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_the_same_holds_for_nodes_that_are_killed_after_the_crash(chunk: int) -> None:
    for seed in seeds_of(chunk):
        outcome = run_forgetful(seed, "forgetful-killed")
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_the_judge_notices_nodes_that_are_believed_after_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "life_of", lambda claim, known: 1)
    errors = (run_forgetful(seed).error or "" for seed in range(8, 67))
    assert any("was acknowledged, is not lost" in error for error in errors)


def test_the_judge_notices_power_failures_that_are_taken_for_kills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimFiles, "stamp", lambda self, path: "on the same boot")
    errors = (run_forgetful(seed).error or "" for seed in range(8, 60))
    assert any("was acknowledged, is not lost" in error for error in errors)


# ---- disks that forget more


def run_workload(workload: str, seed: int) -> Outcome:
    return run_seed(Choice(seed, workload, "none"))


@pytest.mark.parametrize("workload", ["absent", "absent-chained", "reported", "in-turn"])
def test_what_disks_forget_is_made_again_or_said_to_be_lost(workload: str) -> None:
    for seed in range(FORGOTTEN_SEEDS):
        outcome = run_workload(workload, seed)
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_the_judge_notices_an_absent_node_that_keeps_a_loss_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(procedures, "knows_of_loss", lambda end, me, lng: False)
    errors = (run_workload("absent", seed).error or "" for seed in range(FORGOTTEN_SEEDS))
    assert any("was acknowledged, is not lost" in error for error in errors)


def test_the_judge_notices_a_writer_that_keeps_a_loss_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acknowledged, "to_report", lambda state, ranges: [])
    errors = (run_workload("reported", seed).error or "" for seed in range(FORGOTTEN_SEEDS))
    assert any("was acknowledged, is not lost" in error for error in errors)


def test_the_judge_notices_an_absent_node_of_a_chain_that_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_nothing(witness: Side, head: Side, decided: Glsn) -> Steps[list[range]]:
        yield from ()
        return []

    monkeypatch.setattr(comparison, "find_forgotten", find_nothing)
    errors = (run_workload("absent-chained", seed).error or "" for seed in range(FORGOTTEN_SEEDS))
    assert any("was acknowledged, is not lost" in error for error in errors)


def test_the_judge_notices_the_first_node_of_a_chain_that_was_told_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(UnreportedBlocks, "add", lambda self, chain, *addresses: None)
    errors = (run_workload("absent-chained", seed).error or "" for seed in (58, 67))
    assert any("was acknowledged, is not lost" in error for error in errors)


def test_the_judge_notices_losses_that_are_recorded_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconfigure, "with_losses", lambda projection, lost, first: projection)
    errors = (run_workload("absent-chained", seed).error or "" for seed in range(FORGOTTEN_SEEDS))
    assert any("was acknowledged, is not lost" in error for error in errors)


def test_the_judge_notices_copies_that_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_state, "unchecked", lambda state, lives: {})
    errors = (run_workload("in-turn", seed).error or "" for seed in range(FORGOTTEN_SEEDS))
    assert any("is said to be lost" in error for error in errors)
