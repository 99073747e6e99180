"""Work beside requests ends with the server, also if it never began."""

from __future__ import annotations

from loomlog.metadata.background import Background
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
