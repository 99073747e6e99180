"""A log that is switched while servers fail. The negative controls break one rule each."""

from __future__ import annotations

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.segments import Segment
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.ordered import repair_steps
from loomlog.metadata.ordered.keeper import OrderedKeeper
from loomlog.metadata.ordered.records import StreamRecords
from loomlog.types import Glsn

CHUNKS = 6
SEEDS_PER_CHUNK = 4


def run(seed: int) -> str | None:
    outcome = run_seed(Choice(seed, workload="switches"))
    return f"{outcome.choice.replay}\n{outcome.error}" if outcome.error is not None else None


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_a_log_is_switched_under_faults(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        error = run(seed)
        assert error is None, error


@pytest.mark.parametrize(
    "seed",
    [
        1074,  # an operator sealed a stream of the next segment, and it stayed sealed
        2103,  # a trim took streams away while others were being made
    ],
)
def test_what_went_wrong_once(seed: int) -> None:
    error = run(seed)
    assert error is None, error


def is_found(first: int = 0, seeds: int = 40) -> bool:
    return any(run(seed) is not None for seed in range(first, first + seeds))


def test_a_tail_that_is_read_while_a_round_is_under_way_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hasty(self: OrderedKeeper, log: LogRecord, segment: Segment) -> Glsn:
        return self.committer.logs[log.log_id].high_watermark

    monkeypatch.setattr(OrderedKeeper, "seal", hasty)
    assert is_found(first=16)


def test_streams_that_go_on_after_the_end_of_their_segment_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adopt = repair_steps.adopt_wishes

    def leave_open(stream: StreamRounds, records: StreamRecords) -> None:
        adopt(stream, records)
        stream.closed = False

    for user in ("repair_loop", "repair_steps", "streams"):
        monkeypatch.setattr(f"loomlog.metadata.ordered.{user}.adopt_wishes", leave_open)
    assert is_found(first=245, seeds=150)
