"""A client whose loop does not sleep while one batch alone is under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from loomlog.client.append.spin import Spinner, usable_cpus

SPIN_S = 0.002


class Turns:
    """A loop whose turns are counted, on a clock of their own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ready: list[Any] = []

    def call_soon(self, callback: Any) -> None:
        self.ready.append(callback)

    def turn(self) -> bool:
        """Return whether there was anything to do."""
        ready, self.ready = self.ready, []
        assert len(ready) < 2, "it spins twice"
        for callback in ready:
            callback()
        self.now_s += 0.0001
        return bool(ready)


@pytest.fixture
def turns() -> Turns:
    return Turns()


def spinning(turns: Turns, spin_s: float = SPIN_S) -> Spinner:
    return Spinner(cast(asyncio.AbstractEventLoop, turns), spin_s, lambda: turns.now_s)


def one_batch(spins: Spinner, turns: Turns, took_s: float) -> bool:
    """Return whether the loop was awake all the time."""
    spins.began()
    end_s = turns.now_s + took_s
    awake = True
    while turns.now_s < end_s:
        awake &= turns.turn()
    spins.ended()
    return awake


def test_the_loop_is_awake_until_the_answer_comes(turns: Turns) -> None:
    spins = spinning(turns)
    assert one_batch(spins, turns, 0.001)
    turns.turn()
    assert not turns.ready
    assert one_batch(spins, turns, 0.001)


def test_a_batch_that_follows_at_once_does_not_spin_twice(turns: Turns) -> None:
    spins = spinning(turns)
    for _ in range(3):
        assert one_batch(spins, turns, 0.0005)


def test_two_batches_are_not_waited_for(turns: Turns) -> None:
    spins = spinning(turns)
    spins.began()
    assert turns.turn()
    spins.began()
    turns.turn()
    assert not turns.ready
    spins.ended()
    turns.turn()
    assert not turns.ready, "the one that is left is not new"


def test_it_ends_after_a_while_and_begins_again_when_batches_are_quick_again(turns: Turns) -> None:
    spins = spinning(turns)
    assert not one_batch(spins, turns, 2 * SPIN_S)
    assert not turns.ready
    spins.began()
    assert not turns.ready, "the last one was slow"
    turns.turn()
    spins.ended()
    assert one_batch(spins, turns, 0.001)


def test_it_can_be_turned_off(turns: Turns) -> None:
    spins = spinning(turns, 0.0)
    for _ in range(2):
        spins.began()
        assert not turns.ready
        spins.ended()


def test_a_quota_of_cpus_counts(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    unlimited = usable_cpus(quota)
    assert unlimited >= 1
    quota.write_text("max 100000\n")
    assert usable_cpus(quota) == unlimited
    quota.write_text("50000 100000\n")
    assert usable_cpus(quota) == 0.5
