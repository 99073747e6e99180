"""Stories: what happens to one simulated cluster, told by a coroutine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from loomlog.testing.sim import Process, Simulation, SimulationError

WITHIN_S: Final = 60.0

S = TypeVar("S")


def went_wrong(
    stage: Callable[[Simulation, Process], S],
    story: Callable[[S], Awaitable[None]],
    seed: int,
    host: str = "client",
    within_s: float = WITHIN_S,
) -> str | None:
    """Tell a story on a stage of its own; return what went wrong, if anything did."""
    with Simulation(seed) as sim:

        async def main(process: Process) -> None:
            await story(stage(sim, process))

        process = sim.host(host).start(main)
        try:
            sim.run(lambda: process.finished, timeout_s=within_s)
        except SimulationError as error:
            return str(error.__cause__ or error)
    return None
