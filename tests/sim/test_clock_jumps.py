"""Retention while clocks jump: nothing goes early. And the rules that it had before fail here."""

from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import patch

import pytest
from run_seeds import Choice, run_seed

from loomlog.core.copyset.landmarks import Ages
from loomlog.core.copyset.sequencer import Stamps
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.copyset import keeper
from loomlog.metadata.logs.arrivals import Arrivals
from loomlog.metadata.nodes.clocks import Clocks

SEEDS = 3
TRIED_MAX = 30


def run(workload: str, seed: int) -> str | None:
    outcome = run_seed(Choice(seed, workload=workload))
    return f"{outcome.choice.replay}\n{outcome.error}" if outcome.error is not None else None


@pytest.mark.parametrize("workload", ["clocks", "clocks-chained", "clocks-copyset"])
def test_retention_is_never_early_whatever_the_clocks_do(workload: str) -> None:
    for seed in range(SEEDS):
        error = run(workload, seed)
        assert error is None, error


def test_who_was_taken_for_dead_publishes_nothing_that_is_gone() -> None:
    for seed in range(SEEDS):
        error = run("publishing-clocks", seed)
        assert error is None, error


async def long_ago(arrivals: Arrivals, log: LogRecord, time_us: int) -> int:
    """Replaces the rule that entries are as old as they have been there."""
    return 1 << 62


def is_caught(workload: str, seed: int) -> bool:
    """Return whether this seed, or one of the next, shows the violation."""
    errors = (run(workload, seed + more) for more in range(TRIED_MAX))
    return any(error is not None and "s early" in error for error in errors)


@pytest.mark.parametrize(("workload", "seed"), [("clocks", 4), ("clocks-chained", 4)])
def test_a_metadata_repository_that_believes_its_own_clock_is_caught(
    workload: str, seed: int
) -> None:
    def own_clock_us(clocks: Clocks, retention_s: int) -> int:
        return int((clocks._wall_s() - retention_s) * 1e6)

    with patch.object(Clocks, "oldest_kept_us", own_clock_us):
        assert is_caught(workload, seed)


@pytest.mark.parametrize(("workload", "seed"), [("clocks", 13), ("clocks-chained", 13)])
def test_timestamps_of_clients_that_are_believed_are_caught(workload: str, seed: int) -> None:
    with patch.object(Arrivals, "arrived_by", long_ago):
        assert is_caught(workload, seed)


def test_one_node_that_is_believed_about_all_is_caught() -> None:
    """Times were taken to grow with LSNs, so that the first node that knew was enough (D2)."""

    def first_that_knows(state: object, ages: Mapping[int, Ages], *_: object) -> int:
        return max((each.older for each in ages.values()), default=0)

    def own_clock_us(stamps: Stamps, own_us: int, latest_us: int, now_s: float) -> int:
        return own_us

    with (
        patch.object(keeper, "last_to_go", first_that_knows),
        patch.object(Stamps, "stamp", own_clock_us),
        patch.object(Arrivals, "arrived_by", long_ago),
    ):
        assert is_caught("clocks-copyset", 0)
