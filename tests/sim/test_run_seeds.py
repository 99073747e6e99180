"""The runner: a seed chooses, a failure prints the line that replays it."""

from __future__ import annotations

import pytest
import run_seeds
from run_seeds import Choice, main, run_seed

from loomlog.testing.history import History
from loomlog.testing.sim import FaultPlan, Simulation
from loomlog.types import Position


def fine(sim: Simulation, plan: FaultPlan) -> History:
    return History()


def wrong(sim: Simulation, plan: FaultPlan) -> History:
    history = History()
    history.invoke("alice", 1, [b"a"])
    history.ack(1, [Position(1, 1, 1)])
    return history


def raising(sim: Simulation, plan: FaultPlan) -> History:
    sim.run(lambda: False)
    return History()


def test_a_seed_chooses_the_faults_of_the_first_workload() -> None:
    known = {"fine": fine, "other": raising}
    chosen = [run_seed(Choice(seed), known) for seed in range(50)]
    assert {outcome.workload for outcome in chosen} == {"fine"}
    assert len({outcome.faults for outcome in chosen}) > 3
    given = [run_seed(Choice(seed, workload="fine"), known) for seed in range(50)]
    assert [outcome.faults for outcome in given] == [outcome.faults for outcome in chosen]


def test_violations_and_exceptions_are_failures() -> None:
    lost = run_seed(Choice(1), {"wrong": wrong}).error
    assert lost is not None
    assert "ACKED_LOST" in lost
    stalled = run_seed(Choice(1), {"raising": raising}).error
    assert stalled is not None
    assert "Stalled" in stalled


def test_a_failing_seed_prints_the_line_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_seeds, "WORKLOADS", {"wrong": wrong})
    assert main(["--seed", "7", "--runs", "2"]) == 1
    printed = capsys.readouterr().out
    assert "replay: make sim SEED=7 RUNS=1\n" in printed
    assert "replay: make sim SEED=8 RUNS=1\n" in printed
    assert "2 seeds, 2 failed" in printed
    assert main(["--seed", "7", "--runs", "1", "--workload", "wrong", "--faults", "none"]) == 1
    printed = capsys.readouterr().out
    assert 'SEED=7 RUNS=1 ARGS="--workload wrong --faults none"' in printed


def test_seeds_that_hold_exit_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--runs", "2", "--workload", "toy", "--trace"]) == 0
    printed = capsys.readouterr().out
    assert "server     start" in printed
    assert "2 seeds, 0 failed" in printed


def test_a_soak_runs_until_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_seeds, "WORKLOADS", {"fine": fine})
    monkeypatch.setattr(run_seeds, "SOAK_SEEDS", 3)
    assert main(["--minutes", "0.0001"]) == 0
    seeds, _, rest = capsys.readouterr().out.partition(" seeds, 0 failed")
    assert int(seeds) >= 3
    assert int(seeds) % 3 == 0
    assert "seeds/minute" in rest


def test_a_soak_that_is_stopped_says_what_it_did(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = iter(range(5))

    def stopped(sim: Simulation, plan: FaultPlan) -> History:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return History()

    monkeypatch.setattr(run_seeds, "WORKLOADS", {"stopped": stopped})
    assert main(["--minutes", "0"]) == 0
    assert capsys.readouterr().out.startswith("5 seeds, 0 failed")
