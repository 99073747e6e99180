"""Transactions over cells that are written once: crashes and readers at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from loomlog.core.transactions import AppendParts, Enlist, Reserve, Write, commit

LOGS = ("a", "b", "c")


@dataclass
class World:
    """Logs whose entries name a cell, and the cells: 1 written, 0 filled."""

    logs: dict[str, list[int]] = field(default_factory=lambda: {log: [] for log in LOGS})
    cells: dict[int, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def write(self, cell: int) -> bool:
        return self.cells.setdefault(cell, 1) == 1

    def visible(self, log: str) -> set[int]:
        """Return the transactions that a patient reader sees: it fills what is empty."""
        return {cell for cell in self.logs[log] if self.cells.setdefault(cell, 0) == 1}

    def glance(self, log: str) -> set[int]:
        """Return the entries that a reader sees after waiting for all decisions."""
        return {cell for cell in self.logs[log] if self.cells.get(cell) == 1}


Commit = Callable[[], Any]
Between = Callable[[World, int], None]


def steps(world: World, transaction: Commit, between: Between, crash_at: int) -> dict[str, int]:
    """Run a transaction, part by part; call `between` after each step. Raises Crash."""
    running, number = transaction(), 0
    answer: Any = None

    def step() -> None:
        nonlocal number
        number += 1
        between(world, number)
        if number == crash_at:
            raise CrashError

    while True:
        try:
            question = running.send(answer)
        except StopIteration as end:
            placed: dict[str, int] = end.value
            return placed
        match question:
            case Reserve():
                answer = next(world.numbers)
                step()
            case AppendParts(cell):
                for log in LOGS:
                    world.logs[log].append(cell)
                    step()
                answer = dict.fromkeys(LOGS, cell)
            case Enlist():
                step()
            case Write(cell):
                answer = world.write(cell)
                step()


class CrashError(Exception):
    """The writer died."""


def check(world: World) -> None:
    """Check that transactions which are visible in one log are visible in all."""
    seen = [world.glance(log) for log in LOGS]
    assert seen[0] == seen[1] == seen[2], seen


def always(world: World, number: int) -> None:
    check(world)


STEPS = 7  # without a reader that interferes


@pytest.mark.parametrize("crash_at", range(1, STEPS + 1))
def test_whenever_a_writer_dies_all_parts_are_visible_or_none(crash_at: int) -> None:
    world = World()
    with pytest.raises(CrashError):
        steps(world, commit, always, crash_at)
    check(world)
    after = [world.visible(log) for log in LOGS]
    assert after[0] == after[1] == after[2]
    assert bool(after[0]) == (crash_at == STEPS)
    assert [world.visible(log) for log in LOGS] == after, "it was decided for good"


@pytest.mark.parametrize("fill_at", range(1, 2 * STEPS))
@pytest.mark.parametrize("log", LOGS)
def test_a_reader_that_loses_patience_only_lets_the_writer_begin_again(
    fill_at: int, log: str
) -> None:
    world = World()

    def impatient(world: World, number: int) -> None:
        if number == fill_at:
            world.visible(log)
        check(world)

    placed = steps(world, commit, impatient, crash_at=0)
    [cell] = set(placed.values())
    assert [world.visible(each) for each in LOGS] == [{cell}] * len(LOGS)


def too_early() -> Any:
    while True:
        cell = yield Reserve()
        written = yield Write(cell)
        placed = yield AppendParts(cell)
        if written:
            return placed


def never_again() -> Any:
    cell = yield Reserve()
    placed = yield AppendParts(cell)
    yield Write(cell)
    return placed


def test_a_writer_that_decides_first_is_found() -> None:
    with pytest.raises(AssertionError):
        steps(World(), too_early, always, crash_at=0)


def test_a_writer_that_does_not_look_whether_it_got_its_cell_is_found() -> None:
    world = World()

    def impatient(world: World, number: int) -> None:
        if number == 2:
            world.visible("a")

    placed = steps(world, never_again, impatient, crash_at=0)
    assert not any(placed[log] in world.visible(log) for log in LOGS), "though it returned"
