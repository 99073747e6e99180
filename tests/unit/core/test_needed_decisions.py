"""Decisions that may go: writers, trims and marks in any order, from a seed each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from loomlog.core.transactions import (
    AppendParts,
    Enlist,
    FindTails,
    Mark,
    Outlast,
    Reserve,
    Settle,
    Write,
    commit,
    make_mark,
)

LOGS = (1, 2, 3)
SEEDS = 2000
STEPS = 160
WRITERS = 4


@dataclass
class World:
    """Logs whose entries name a cell, how far they are trimmed, and the cells."""

    entries: dict[int, list[int]] = field(default_factory=lambda: {log: [] for log in LOGS})
    trimmed: dict[int, int] = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    enlisted: set[int] = field(default_factory=set)
    cells: dict[int, bool] = field(default_factory=dict)  # that are decided
    reserved: int = 0
    appending: dict[int, int] = field(default_factory=dict)  # the cell of each writer at work
    gone: int = 0  # the decisions up to here
    trims: int = 0
    outlasts: bool = True  # writers are outlasted, which takes a clock

    def check(self) -> None:
        """Readers need the decision on every entry, also on one that does not count. No clock
        decides whether those go that count."""
        for log, cells in self.entries.items():
            for cell in cells[self.trimmed[log] :]:
                assert cell > self.gone or not self.cells[cell], f"{cell} counts, and is gone"
                assert cell > self.gone or not self.outlasts, f"nobody can tell that {cell} is void"


Rule = Callable[[], Any]


def writer(world: World, rng: random.Random, rule: Rule, me: int) -> Iterator[None]:
    """Run transactions one after the other, one step at a time; some are given up."""
    while True:
        logs = rng.sample(LOGS, rng.randint(1, len(LOGS)))
        running = rule()
        answer: Any = None
        world.appending.pop(me, None)
        try:
            while rng.random() > 0.02:
                match running.send(answer):
                    case Reserve():
                        world.reserved += 1
                        answer = world.appending[me] = world.reserved
                    case AppendParts(cell):
                        for log in logs:
                            world.entries[log].append(cell)
                            yield
                    case Enlist():
                        world.enlisted.update(logs)
                    case Write(cell):
                        answer = world.cells.setdefault(cell, True) and cell > world.gone
                yield
        except StopIteration:
            yield


def trimmer(world: World, rule: Rule) -> Iterator[None]:
    """Make marks, and trim the decisions when nobody needs them."""
    through = 0
    while True:
        steps = rule()
        answer: Any = None
        try:
            while True:
                match steps.send(answer):
                    case Settle():
                        for cell in range(1, world.reserved + 1):
                            world.cells.setdefault(cell, False)
                        through = answer = world.reserved
                    case Outlast():
                        late = world.appending if world.outlasts else {}
                        while any(cell <= through for cell in late.values()):
                            yield
                    case FindTails():
                        answer = {log: len(world.entries[log]) for log in world.enlisted}
                yield
        except StopIteration as end:
            mark: Mark = end.value
        while mark.is_needed(world.trimmed):
            yield
        world.trims += mark.through > world.gone
        world.gone = max(world.gone, mark.through)
        yield


def retention(world: World, rng: random.Random) -> Iterator[None]:
    while True:
        log = rng.choice(LOGS)
        world.trimmed[log] = rng.randint(world.trimmed[log], len(world.entries[log]))
        yield


def run(seed: int, *, outlasts: bool, write: Rule = commit, mark: Rule = make_mark) -> World:
    rng, world = random.Random(seed), World(outlasts=outlasts)
    writers = [writer(world, rng, write, me) for me in range(WRITERS)]
    parties = [*writers, trimmer(world, mark), retention(world, rng)]
    for _ in range(STEPS):
        next(rng.choice(parties))
        world.check()
    return world


COUNTS = "counts, and is gone"
NOBODY_CAN_TELL = "nobody can tell"


def is_found(message: str, **rules: Rule) -> bool:
    for seed in range(SEEDS):
        try:
            run(seed, outlasts=message == NOBODY_CAN_TELL, **rules)
        except AssertionError as error:
            if message in str(error):
                return True
    return False


@pytest.mark.parametrize("outlasts", [False, True])
def test_no_decision_goes_that_an_entry_needs(outlasts: bool) -> None:
    assert sum(run(seed, outlasts=outlasts).trims for seed in range(SEEDS)) > SEEDS / 2


def test_a_log_that_is_deleted_needs_nothing() -> None:
    mark = Mark(7, {1: 5, 2: 9})
    assert mark.is_needed({1: 5, 2: 8})
    assert not mark.is_needed({1: 5, 2: 9})
    assert not mark.is_needed({1: 5, 3: 0})


# ---- negative controls


def test_tails_that_are_asked_for_before_cells_are_decided_are_found() -> None:
    def tails_first() -> Any:
        tails = yield FindTails()
        through = yield Settle()
        yield Outlast()
        return Mark(through, tails)

    assert is_found(COUNTS, mark=tails_first)


def test_tails_that_are_asked_for_before_late_entries_are_there_are_found() -> None:
    def at_once() -> Any:
        through = yield Settle()
        tails = yield FindTails()
        yield Outlast()
        return Mark(through, tails)

    assert is_found(NOBODY_CAN_TELL, mark=at_once)


def test_a_writer_that_enlists_its_logs_after_its_decision_is_found() -> None:
    def written_first() -> Any:
        while True:
            cell = yield Reserve()
            placed = yield AppendParts(cell)
            written = yield Write(cell)
            yield Enlist(cell)
            if written:
                return placed

    assert is_found(COUNTS, write=written_first)


def test_a_writer_that_enlists_its_logs_after_its_entries_is_found() -> None:
    def appended_first() -> Any:
        while True:
            cell = yield Reserve()
            placed = yield AppendParts(cell)
            yield Enlist(cell)
            if (yield Write(cell)):
                return placed

    assert is_found(NOBODY_CAN_TELL, write=appended_first)
