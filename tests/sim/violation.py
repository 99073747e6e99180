"""The error that judges and worlds raise, and runs of worlds that may raise it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from loomlog.errors import LoomError


class Violation(AssertionError):  # noqa: N818 - it says what it is
    """A run broke one of the rules that the protocol must keep."""


class World(Protocol):
    """A small world that is explored from a seed, with a judge."""

    def run(self) -> object: ...


WorldT = TypeVar("WorldT", bound=World)


def run_world(make: Callable[[int], WorldT], seed: int) -> WorldT:
    """Run one world to its end, and return it. What it raises names the seed."""
    world = make(seed)
    try:
        world.run()
    except (Violation, LoomError) as violation:
        violation.add_note(f"seed {seed} of {make}")
        raise
    return world


def finds(complaint: str, make: Callable[[int], World], seeds: Iterable[int]) -> int | None:
    """Return the first seed with which the judge complains in these words (a pattern), if any."""
    for seed in seeds:
        try:
            make(seed).run()
        except (Violation, LoomError) as violation:
            if re.search(complaint, str(violation)):
                return seed
    return None
