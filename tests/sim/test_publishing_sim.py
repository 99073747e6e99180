"""Publishing under faults, from one seed each; and rules that, broken, must be found."""

from __future__ import annotations

from typing import Any

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.client.publish import publications
from loomlog.client.publish.writer import Writer
from loomlog.node.appends import ProducerTable
from loomlog.staging_logs import staging_name
from loomlog.types import Llsn

CHUNKS = 6
SEEDS_PER_CHUNK = 5


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_every_number_of_a_writer_is_published_once_and_whole(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run_seed(Choice(seed, workload="publishing"))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


@pytest.mark.parametrize("seed", [1146])  # a late process, after a trim and a move
def test_what_went_wrong_once(seed: int) -> None:
    outcome = run_seed(Choice(seed, workload="publishing"))
    assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


# ---- negative controls


def is_found(by: str, seeds: int = 40) -> bool:
    errors = (run_seed(Choice(seed, workload="publishing")).error for seed in range(seeds))
    return any(error is not None and by in error for error in errors)


def test_a_stream_that_does_not_recognise_a_reference_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(self: ProducerTable, producer_id: int, sequence: int) -> Llsn:
        return 0

    async def not_found(self: Writer, intent: Any) -> int:
        return 0

    monkeypatch.setattr(ProducerTable, "find", nothing)
    monkeypatch.setattr(Writer, "_find", not_found)
    assert is_found(by="ONCE")


def test_a_trim_that_takes_what_is_still_needed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def everything(log: Any, registry: Any, now_us: int) -> None:
        staging = registry.parts_of(staging_name(log.name))
        await staging.trim(max(1, await staging.tail()))

    monkeypatch.setattr(publications, "trim_staged", everything)
    assert is_found(by="DataLoss")
