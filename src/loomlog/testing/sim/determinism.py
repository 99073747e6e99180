"""Makes the standard library's clocks and randomness follow the seed of an open simulation.

Code under simulation may call `time.time()`, `random.random()`, `os.urandom()` or
`uuid.uuid4()` as usual. Not covered are `datetime.now()`, `random.Random()` without a seed, and
functions bound earlier (`from time import time`, a default argument `clock=time.time`): pass these
in. The cyclic garbage collector is off meanwhile, because it would run finalizers at times that
depend on the rest of the program.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from loomlog.testing.sim.loop import SimLoop
from loomlog.testing.sim.world import World

WALL_CLOCK_START_S = 1_700_000_000.0  # the value of time.time() at virtual time 0


@contextmanager
def deterministic(world: World) -> Iterator[None]:
    """Replace clocks and randomness; restore everything at the end, including loops' hooks."""
    chance = random.getstate()
    collecting = gc.isenabled()
    hooks = sys.get_asyncgen_hooks()
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in _replacements(world)]
    gc.disable()
    random.seed(f"{world.seed} module random")
    for owner, name, replacement in _replacements(world):
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
        random.setstate(chance)
        sys.set_asyncgen_hooks(*hooks)
        if collecting:
            gc.enable()


def _replacements(world: World) -> list[tuple[Any, str, Callable[..., Any]]]:
    entropy = random.Random(f"{world.seed} entropy")

    def monotonic() -> float:
        loop = asyncio._get_running_loop()
        return loop.time() if isinstance(loop, SimLoop) else world.now

    def wall() -> float:
        loop = asyncio._get_running_loop()
        if isinstance(loop, SimLoop) and loop.wall_error_s is not None:
            return WALL_CLOCK_START_S + world.now + loop.wall_error_s
        return WALL_CLOCK_START_S + monotonic()

    return [
        (time, "time", wall),
        (time, "time_ns", lambda: int(wall() * 1e9)),
        (time, "monotonic", monotonic),
        (time, "monotonic_ns", lambda: int(monotonic() * 1e9)),
        (time, "perf_counter", monotonic),
        (time, "perf_counter_ns", lambda: int(monotonic() * 1e9)),
        (time, "sleep", _refuse_to_sleep),
        (os, "urandom", entropy.randbytes),
        (random, "_urandom", entropy.randbytes),
    ]


def _refuse_to_sleep(seconds: float) -> None:
    raise RuntimeError(f"time.sleep({seconds}) would block the event loop of a simulated process")


@contextmanager
def silence() -> Iterator[None]:
    """Suppress warnings while dead processes are disposed of."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
