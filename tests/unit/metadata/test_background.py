"""Background work ends with its term, also if it never began; steps are retried until done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from loomlog.core.backoff import Backoff
from loomlog.errors import NotFound, Unavailable
from loomlog.metadata import background as background_
from loomlog.metadata.background import Background, Later, RetryLoop, StepResult
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.simulation import Simulation


async def test_work_that_is_stopped_before_it_began_leaves_nothing_behind() -> None:
    background = Background()
    began = []

    async def work() -> None:
        began.append(True)

    background.spawn(work(), "work")
    await background.stop()
    background.spawn(work(), "more work")
    assert began == []


def test_a_process_that_dies_while_it_stops_says_nothing() -> None:
    """A coroutine that was made and never awaited would warn, and warnings are errors here."""
    began = []

    async def work() -> None:
        began.append(True)

    async def die(process: Process) -> None:
        background = Background()
        background.spawn(work(), "work")
        process.loop.call_soon(process.host.kill)  # behind the cancelled work, before its callbacks
        await background.stop()

    with Simulation(seed=1) as simulation:
        process = simulation.host("vmr").start(die)
        simulation.run(until=lambda: not process.alive)
    assert began == []


# ---- steps that are retried


class Work:
    """Steps that a test has written down: what each does, in order."""

    def __init__(self, *script: StepResult | Later | Exception) -> None:
        self._script: Iterator[StepResult | Later | Exception] = iter(script)
        self.done: list[str] = []
        self.changed = asyncio.Event()

    async def step(self, key: str) -> StepResult | Later:
        self.done.append(key)
        self.changed.set()
        result = next(self._script, StepResult.IDLE)
        if isinstance(result, Exception):
            raise result
        return result

    async def steps(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.done) < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def at(work: Work) -> AsyncIterator[RetryLoop[str]]:
    background = Background()
    yield RetryLoop("work", work.step, background)
    await background.stop()


async def test_it_goes_on_until_nothing_is_left_to_do() -> None:
    work = Work(StepResult.DONE, StepResult.DONE, StepResult.IDLE)
    async with at(work) as loop:
        loop.wake("a")
        loop.wake("a")
        await work.steps(3)
    assert work.done == ["a"] * 3


async def test_what_failed_is_tried_again() -> None:
    work = Work(StepResult.FAILED, Unavailable("away"), StepResult.IDLE)
    async with at(work) as loop:
        loop.wake("a")
        await work.steps(2)
        await asyncio.sleep(0)
        assert loop.trouble == {"a": "away"}
        await work.steps(3)
        await asyncio.sleep(0)
        assert loop.trouble == {}


async def test_to_wake_it_cuts_the_wait_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_, "RETRY", Backoff(1000.0, 1000.0))
    work = Work(StepResult.FAILED)
    async with at(work) as loop:
        loop.wake("a")
        await work.steps(1)
        loop.wake("a")
        await work.steps(2)


async def test_what_was_deleted_is_looked_at_once_more() -> None:
    work = Work(NotFound("deleted"), StepResult.IDLE)
    async with at(work) as loop:
        loop.wake("a")
        await work.steps(2)
        assert loop.trouble == {}


async def test_keys_do_not_wait_for_each_other() -> None:
    work = Work(StepResult.FAILED, StepResult.IDLE, StepResult.IDLE)
    async with at(work) as loop:
        loop.wake("a")
        loop.wake("b")
        await work.steps(3)
    assert work.done == ["a", "b", "a"]


async def test_what_nobody_expected_is_logged_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Work(ZeroDivisionError(), StepResult.IDLE)
    async with at(work) as loop:
        loop.wake("a")
        await work.steps(1)
        await asyncio.sleep(0)
        assert loop.trouble == {"a": "internal error: see the log of the metadata repository"}
        await work.steps(2)
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_step_may_choose_its_own_delay() -> None:
    work = Work(Later(1000.0), Later(0.0), StepResult.IDLE)
    async with at(work) as loop:
        loop.wake("a")
        await work.steps(1)
        assert "a" in loop
        loop.wake("a")
        await work.steps(3)
        assert "a" not in loop


async def test_steps_that_achieve_nothing_leave_others_their_turn() -> None:
    """Otherwise a bug in a step would block the whole process."""
    background = Background()
    others = asyncio.get_running_loop().create_future()
    steps = 0

    async def step(key: int) -> StepResult:
        nonlocal steps
        steps += 1
        is_over = others.done() or steps > 2 * background_.STEPS_AT_ONCE
        return StepResult.IDLE if is_over else StepResult.DONE

    loop = RetryLoop("work", step, background)
    loop.wake(1)
    asyncio.get_running_loop().call_soon(others.set_result, None)
    await others
    assert steps <= background_.STEPS_AT_ONCE
    await background.stop()
