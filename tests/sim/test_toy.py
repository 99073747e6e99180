"""The simulator on a program small enough to know what must come out."""

from __future__ import annotations

import functools

import pytest
from other_process import fingerprints
from run_seeds import Choice, run_seed
from workloads.toy import toy

from loomlog.testing.sim import FAULTS

SEEDS_PER_PLAN = 8


@pytest.mark.parametrize("faults", FAULTS)
def test_the_toy_keeps_its_promise_under_all_faults(faults: str) -> None:
    for seed in range(SEEDS_PER_PLAN):
        outcome = run_seed(Choice(seed, "toy", faults))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_the_same_seed_is_the_same_run_and_another_seed_is_another() -> None:
    first = [run_seed(Choice(seed, "toy", "all")) for seed in range(5)]
    assert first == [run_seed(Choice(seed, "toy", "all")) for seed in range(5)]
    assert len({outcome.fingerprint for outcome in first}) == 5


def test_a_run_does_not_depend_on_hash_randomisation() -> None:
    first = fingerprints("toy", range(3), hash_seed=1)
    assert first == fingerprints("toy", range(3), hash_seed=2)


def test_acknowledging_before_the_sync_is_found_by_crashes_only() -> None:
    careless = {"toy": functools.partial(toy, sync=False)}
    found = [run_seed(Choice(seed, faults="crashes"), careless).error for seed in range(10)]
    assert any(error is not None and "violations" in error for error in found)
    kept = [run_seed(Choice(seed, faults="kills"), careless).error for seed in range(10)]
    assert kept == [None] * 10
