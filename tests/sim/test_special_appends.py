"""Conditional appends and pipelines on logs of every protocol, while servers fail and logs are
switched. The negative controls break one rule each."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.client.append.pipeline import Pipeline
from loomlog.core.chained.messages import Next
from loomlog.core.chained.sequencer import Sequencer
from loomlog.core.copyset.record import make, offset_of
from loomlog.core.copyset.sequencer import EpochSequencer
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.testing.history import Rule
from loomlog.types import Glsn, Llsn

CHUNKS = 6
SEEDS_PER_CHUNK = 5


def run(seed: int, workload: str = "conditional") -> str | None:
    outcome = run_seed(Choice(seed, workload=workload))
    return f"{outcome.choice.replay}\n{outcome.error}" if outcome.error is not None else None


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_conditional_appends_under_faults(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        error = run(seed)
        assert error is None, error


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_pipelines_under_faults(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        error = run(seed, "pipelines")
        assert error is None, error


def test_a_scrub_goes_on_without_the_metadata_repository() -> None:
    assert run(27) is None


def test_commits_that_a_power_loss_left_in_part_are_no_error() -> None:
    assert run(392) is None


def test_a_pipeline_that_does_not_wait_for_its_batches_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_batch = Pipeline._send_batch

    async def hasty(self: Pipeline, batch: Any) -> None:
        tasks.append(asyncio.ensure_future(send_batch(self, batch)))
        await asyncio.sleep(0)

    tasks: list[asyncio.Future[None]] = []
    monkeypatch.setattr(Pipeline, "_send_batch", hasty)
    found = (run(seed, "pipelines") for seed in range(10))
    assert any(error is not None and "stands at" in error for error in found)


def is_found(rule: Rule, first: int) -> bool:
    return any(rule.name in (run(seed) or "") for seed in range(first, first + 30))


def test_a_round_that_ignores_preconditions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_end(self: StreamRounds, tail: Glsn) -> Llsn:
        return self.written_end()

    monkeypatch.setattr(StreamRounds, "next_end", any_end)
    monkeypatch.setattr(LogRounds, "_holder", lambda self: None)
    assert is_found(Rule.EXPECTED, first=7)


def test_a_sequencer_that_counts_acknowledged_records_only_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def acknowledged(self: EpochSequencer) -> int:
        offset = offset_of(self.last_acknowledged)
        return make(self.epoch, offset) if offset else self._recovered_tail

    monkeypatch.setattr(EpochSequencer, "_last", property(acknowledged))
    assert is_found(Rule.EXPECTED, first=0)


def test_a_sequencer_that_forgets_earlier_epochs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_this_epoch(self: EpochSequencer) -> int:
        return self.next_lsn - 1 if self._next_offset > 1 else 0

    monkeypatch.setattr(EpochSequencer, "_last", property(of_this_epoch))
    assert is_found(Rule.EXPECTED, first=22)


def test_a_sequencer_that_gives_any_ticket_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Sequencer.answer

    def any_ticket(self: Sequencer, request: Any) -> Any:
        return answer(
            self, replace(request, expected=None) if isinstance(request, Next) else request
        )

    monkeypatch.setattr(Sequencer, "answer", any_ticket)
    assert is_found(Rule.EXPECTED, first=0)
