"""Virtual time, its event loop, and the end of a program in a crash."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Coroutine

import pytest

from loomlog.testing.sim import (
    Failed,
    Overdue,
    Process,
    Runaway,
    Simulation,
    SimulationError,
    Stalled,
    World,
)


def test_events_run_in_time_order_and_ties_in_the_order_they_were_made() -> None:
    world, seen = World(1), list[str]()
    world.at(2.0, seen.append, "late")
    world.at(1.0, seen.append, "first")
    world.at(1.0, seen.append, "second")
    world.run(1.5)
    assert (seen, world.now) == (["first", "second"], 1.5)
    world.run(lambda: len(seen) == 3)
    assert (seen[-1], world.now) == ("late", 2.0)


def test_a_world_where_nothing_can_happen_has_stalled() -> None:
    with pytest.raises(Stalled, match="seed 7"):
        World(7).run(lambda: False)


def test_a_world_that_waits_too_long_is_overdue() -> None:
    world = World(1)
    world.at(100.0, print)
    with pytest.raises(Overdue):
        world.run(lambda: False, timeout_s=10.0)


def test_a_world_that_spins_is_stopped() -> None:
    world = World(1)

    def spin() -> None:
        world.after(0.0, spin)

    spin()
    with pytest.raises(Runaway, match="one instant"):
        world.run(1.0)


def test_a_program_that_never_waits_uses_up_its_steps() -> None:
    async def busy(process: Process) -> None:
        def again() -> None:
            process.loop.call_soon(again)

        again()
        await asyncio.Event().wait()

    with Simulation(1) as sim:
        sim.host("a").start(busy)
        with pytest.raises(Runaway):
            sim.run(3600.0, steps_max=1000)


def test_asyncio_works_as_usual_and_hours_take_no_time() -> None:
    async def child(queue: asyncio.Queue[int], number: int) -> int:
        await asyncio.sleep(3600 * number)
        await queue.put(number)
        return number

    async def main(process: Process) -> list[int]:
        assert asyncio.get_running_loop() is process.loop
        began = process.loop.time()
        queue: asyncio.Queue[int] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            for number in (2, 0, 1):
                group.create_task(child(queue, number))
        assert process.loop.time() - began == pytest.approx(7200, abs=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        assert sum(await asyncio.gather(child(queue, 1), child(queue, 1))) == 2
        return [queue.get_nowait() for _ in range(3)]

    with Simulation(1) as sim:
        process = sim.host("a").start(main)
        sim.run(lambda: process.finished, timeout_s=20_000)
        assert process.result == [0, 1, 2]


def test_cancelled_timers_do_not_pile_up() -> None:
    async def main(process: Process) -> int:
        for _ in range(5000):
            async with asyncio.timeout(3600):
                await asyncio.sleep(0)
        return len(process.loop._timers)

    with Simulation(1) as sim:
        process = sim.host("a").start(main)
        sim.run(lambda: process.finished)
        assert process.result < 1000


def test_an_exception_in_a_task_that_nobody_awaits_fails_the_simulation() -> None:
    async def bad() -> None:
        raise ZeroDivisionError("oops")

    async def main(process: Process) -> None:
        asyncio.create_task(bad())  # noqa: RUF006
        await asyncio.sleep(1)

    with Simulation(1) as sim:
        sim.host("a").start(main)
        with pytest.raises(Failed, match="a: Task exception was never retrieved") as caught:
            sim.run(5.0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exception_in_a_callback_or_in_main_fails_the_simulation() -> None:
    async def main(process: Process) -> None:
        process.loop.call_later(1.0, divmod, 1, 0)
        await asyncio.sleep(2)

    async def bad(process: Process) -> None:
        raise KeyError("oops")

    for program in (main, bad):
        with Simulation(1) as sim:
            sim.host("a").start(program)
            with pytest.raises(Failed):
                sim.run(5.0)


def test_an_error_tells_what_every_process_was_waiting_for() -> None:
    async def waits_for_godot(process: Process) -> None:
        await asyncio.Event().wait()

    with Simulation(1) as sim:
        sim.host("a").start(waits_for_godot)
        with pytest.raises(Stalled) as caught:
            sim.run(lambda: False)
    assert "a: waits in " in caught.value.__notes__[0]
    assert "waits_for_godot" in caught.value.__notes__[0]


def test_a_killed_process_never_runs_again_not_even_its_finally() -> None:
    story: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            while True:
                await asyncio.sleep(0.1)
                yield 1
        finally:
            story.append("generator closed")

    async def main(process: Process) -> None:
        process.loop.call_later(2.0, story.append, "timer")
        try:
            async for number in numbers():
                await asyncio.sleep(0)
                story.append(f"number {number}")
        finally:
            story.append("finally")
            await asyncio.sleep(1)  # a dead process may wait as long as it likes
            story.append("cleaned up")

    with Simulation(1) as sim:
        host = sim.host("a")
        host.start(main)
        sim.world.at(0.25, host.kill)
        sim.run(10.0)
        assert story == ["number 1", "number 1"]
    assert "cleaned up" not in story


def test_a_task_that_a_kill_kept_from_beginning_leaves_no_coroutine_behind() -> None:
    """A coroutine left behind would warn when it is collected, in the middle of another test."""
    held: list[Coroutine[None, None, None]] = []

    async def work() -> None:
        raise AssertionError("it never begins")

    async def answer(pending: Coroutine[None, None, None]) -> None:
        await pending

    async def main(process: Process) -> None:
        held.append(work())
        process.loop.create_task(answer(held[0]))
        process.host.kill()
        await asyncio.sleep(1)

    with Simulation(1) as sim:
        sim.host("a").start(main)
        sim.run(1.0)
    assert inspect.getcoroutinestate(held[0]) == inspect.CORO_CLOSED


def test_a_process_can_be_started_again_after_it_was_killed() -> None:
    lives: list[float] = []

    async def main(process: Process) -> None:
        lives.append(process.loop.time())
        await asyncio.Event().wait()

    with Simulation(1) as sim:
        host = sim.host("a")
        host.start(main)
        with pytest.raises(RuntimeError, match="already runs"):
            host.start(main)
        sim.run(1.0)
        host.crash()
        host.start(main)
        sim.run(2.0)
    assert lives[1] - lives[0] == pytest.approx(1.0, abs=0.01)


def test_an_async_generator_left_behind_is_closed_by_its_loop() -> None:
    story: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0.1)
            story.append("closed")

    async def main(process: Process) -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    with Simulation(1) as sim:
        sim.host("a").start(main)
        sim.run(2.0)
    assert story == ["closed"]


def test_a_paused_process_goes_on_later() -> None:
    async def main(process: Process) -> float:
        await asyncio.sleep(1)
        return process.loop.time()

    with Simulation(1) as sim:
        paused, other = sim.host("a").start(main), sim.host("b").start(main)
        sim.world.at(0.5, sim.host("a").pause, 10.0)
        sim.run(lambda: other.finished)
        assert sim.world.now == pytest.approx(1.0, abs=0.01)
        sim.run(lambda: paused.finished)
        assert sim.world.now == pytest.approx(10.5, abs=0.01)


def test_a_clock_that_jumps_makes_timers_due() -> None:
    async def main(process: Process) -> None:
        await asyncio.sleep(60)

    with Simulation(1) as sim:
        process = sim.host("a").start(main)
        sim.world.at(1.0, sim.host("a").jump_clock, 100.0)
        sim.run(lambda: process.finished)
        assert sim.world.now == pytest.approx(1.0, abs=0.01)


def test_clocks_of_hosts_differ() -> None:
    async def main(process: Process) -> tuple[float, float]:
        return time.monotonic(), time.time()

    with Simulation(1) as sim:
        a, b = sim.host("a").start(main), sim.host("b").start(main)
        sim.run(1.0)
        assert abs(a.result[0] - b.result[0]) > 0.1
        assert abs(a.result[1] - b.result[1]) > 0.1


def test_chance_and_clocks_of_the_standard_library_come_from_the_seed() -> None:
    async def main(process: Process) -> list[object]:
        return [time.time_ns(), random.random(), os.urandom(8), uuid.uuid4(), secrets.token_hex()]

    def run(seed: int) -> list[object]:
        with Simulation(seed) as sim:
            process = sim.host("a").start(main)
            sim.run(1.0)
            result: list[object] = process.result
            return result

    real = time.time
    assert run(5) == run(5)
    assert all(a != b for a, b in zip(run(5), run(6), strict=True))
    assert time.time is real


def test_blocking_and_threads_are_refused() -> None:
    async def main(process: Process) -> None:
        with pytest.raises(RuntimeError, match="would block"):
            time.sleep(1)  # noqa: ASYNC251
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)
        with pytest.raises(RuntimeError, match="the simulation runs"):
            process.loop.run_forever()

    with Simulation(1) as sim:
        process = sim.host("a").start(main)
        sim.run(lambda: process.finished)


def test_two_processes_interleave_differently_for_different_seeds() -> None:
    def order(seed: int) -> str:
        story: list[str] = []

        async def main(process: Process) -> None:
            for _ in range(5):
                story.append(process.host.name)
                await asyncio.sleep(0)

        with Simulation(seed) as sim:
            sim.host("a").start(main)
            sim.host("b").start(main)
            sim.run(1.0)
        return "".join(story)

    orders = [order(seed) for seed in range(20)]
    assert orders == [order(seed) for seed in range(20)]
    assert len(set(orders)) > 5


def test_an_error_outside_of_the_processes_is_simply_raised() -> None:
    with pytest.raises(SimulationError), Simulation(1):
        raise SimulationError("by the test")
