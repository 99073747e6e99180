"""Run many seeds: each is one workload (the cluster) under a plan of faults chosen by the seed.

    export PYTHONPATH=tests/rigs
    python tests/sim/run_seeds.py --seed 1 --runs 500 [--workload W] [--faults F] [--certificates]
    python tests/sim/run_seeds.py --seed 1 --minutes 60    (0: until Ctrl-C)

A failing seed prints why and the one line that replays it; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import certificates
from workloads import WORKLOADS, Workload

from loomlog.testing.history import History, check
from loomlog.testing.sim.faults import FAULTS
from loomlog.testing.sim.simulation import Simulation
from loomlog.testing.sim.world import Trace

if TYPE_CHECKING:
    from rich.progress import Progress

VIOLATIONS_SHOWN_MAX = 10
PROGRESS_EVERY_S = 5.0  # when nobody watches a progress bar
SOAK_SEEDS = 40  # between two looks at the clock


@dataclass(frozen=True, slots=True)
class Choice:
    """A seed, and the choices that are not left to it."""

    seed: int
    workload: str | None = None
    faults: str | None = None
    trace: bool = False
    certificates: bool = False

    @property
    def replay(self) -> str:
        options = [("--workload", self.workload), ("--faults", self.faults)]
        words = [f"{option} {value}" for option, value in options if value is not None]
        given = " ".join([*words, *(["--certificates"] if self.certificates else [])])
        return f"make sim SEED={self.seed} RUNS=1" + (f' ARGS="{given}"' if given else "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one seed."""

    choice: Choice
    workload: str
    faults: str
    error: str | None  # None: it held
    fingerprint: str
    steps: int
    virtual_s: float


def run_seed(choice: Choice, known: Mapping[str, Workload] | None = None) -> Outcome:
    """Run one seed. Whatever goes wrong in it is in the outcome."""
    known = WORKLOADS if known is None else known
    workload = choice.workload or next(iter(known))
    faults = choice.faults or Random(f"{choice.seed} choice").choice(list(FAULTS))
    trace: Trace | None = print if choice.trace else None
    sim = Simulation(choice.seed, trace=trace)
    error = None
    try:
        with sim, certificates.in_force(sim) if choice.certificates else nullcontext():
            history = known[workload](sim, FAULTS[faults])
        error = _judge(history)
    except Exception:
        error = traceback.format_exc().rstrip()
    world = sim.world
    return Outcome(
        choice, workload, faults, error, world.fingerprint, world.steps, round(world.now, 6)
    )


def _judge(history: History) -> str | None:
    violations = check(history)
    if not violations:
        return None
    shown = [str(violation) for violation in violations[:VIOLATIONS_SHOWN_MAX]]
    return "\n".join([f"{len(violations)} violations", *shown])


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    began = time.perf_counter()
    done = failed = steps = 0
    with _Progress(options.runs if options.minutes is None else None) as progress:
        try:
            for outcome in _outcomes(_chunks(options), options.jobs):
                done += 1
                steps += outcome.steps
                if outcome.error is not None:
                    failed += 1
                    progress.say(_story(outcome))
                progress.advance(failed)
        except KeyboardInterrupt:
            pass  # how a soak is stopped; what was run counts
    took = max(time.perf_counter() - began, 1e-9)
    print(
        f"{done} seeds, {failed} failed, {done / took:.1f} seeds/s, {60 * done / took:.0f} seeds/"
        f"minute, {steps / took / 1000:.0f}k steps/s, {took:.1f} s"
    )
    return 1 if failed else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=100, help="how many seeds from there on")
    parser.add_argument("--minutes", type=float, help="instead of --runs; 0: until stopped")
    parser.add_argument("--workload", choices=list(WORKLOADS), help="default: the first")
    parser.add_argument("--faults", choices=list(FAULTS), help="default: by the seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run seeds in")
    parser.add_argument("--certificates", action="store_true", help="as if all used TLS")
    parser.add_argument("--trace", action="store_true", help="print every event")
    return parser.parse_args(arguments)


def _chunks(options: argparse.Namespace) -> Iterator[list[Choice]]:
    """Yield all seeds at once; or some at a time, at least once, until the time is over."""

    def choices(first: int, count: int) -> list[Choice]:
        return [
            Choice(seed, options.workload, options.faults, options.trace, options.certificates)
            for seed in range(first, first + count)
        ]

    if options.minutes is None:
        yield choices(options.seed, options.runs)
        return
    end = time.perf_counter() + 60 * options.minutes if options.minutes else float("inf")
    first = options.seed
    while first == options.seed or time.perf_counter() < end:
        yield choices(first, SOAK_SEEDS)
        first += SOAK_SEEDS


def _outcomes(chunks: Iterator[list[Choice]], jobs: int) -> Iterator[Outcome]:
    if jobs <= 1:
        _spare_what_stays()
        for chunk in chunks:
            yield from map(run_seed, chunk)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _begin_worker) as pool:
        for chunk in chunks:
            yield from pool.imap_unordered(run_seed, chunk, chunksize=4)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    _spare_what_stays()


def _spare_what_stays() -> None:
    """Exempt modules from the garbage collection at the end of every run: they are most of it."""
    gc.collect()
    gc.freeze()


def _story(outcome: Outcome) -> str:
    head = f"seed {outcome.choice.seed} ({outcome.workload} under {outcome.faults}) FAILED:"
    return f"{head}\n{outcome.error}\nreplay: {outcome.choice.replay}\n"


class _Progress:
    """A progress bar for people, a line now and then for logs."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._done = 0
        self._told_at = time.perf_counter()
        self._bar = _bar() if sys.stderr.isatty() else None

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("seeds", total=self._total)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def advance(self, failed: int) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=f"seeds, {failed} failed")
        elif time.perf_counter() - self._told_at >= PROGRESS_EVERY_S:
            self._told_at = time.perf_counter()
            of = "" if self._total is None else f" of {self._total}"
            print(f"{self._done}{of} seeds, {failed} failed", flush=True)


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*Progress.get_default_columns(), console=Console(stderr=True))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") is None:
        # A program that iterates over a set of strings must at least do the same in a replay.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main(sys.argv[1:]))
