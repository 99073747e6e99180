"""A simulated machine: a name on the network, a disk that stays, and one process at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from loomlog.testing.sim.disk import SimDisk, SimFiles, SimWorker
from loomlog.testing.sim.loop import SimLoop
from loomlog.testing.sim.net import Network
from loomlog.testing.sim.world import World

CLOCK_OFFSET_MAX_S = 100.0  # the largest difference between clocks of different hosts

Main = Callable[["Process"], Awaitable[Any]]


class Process:
    """One life of a program on a host, from `start` to its end, `kill` or `crash`."""

    def __init__(self, host: Host, loop: SimLoop, main: Main) -> None:
        self.host = host
        self.loop = loop
        self.files: SimFiles = host.disk.mount()
        self.result: Any = None
        self.finished = False  # `main` has returned
        self._main = main
        self._task: asyncio.Task[Any] | None = None
        loop.call_soon(self._begin)

    @property
    def alive(self) -> bool:
        return not self.loop.killed

    def worker(self) -> SimWorker:
        """Return a worker, in place of a thread for blocking work."""
        return SimWorker(self.loop, self.host.disk)

    def _begin(self) -> None:
        self._task = self.loop.create_task(_run(self._main, self))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self.finished = True
            self.result = task.result()
            self.host.exit()
        else:
            self.loop.call_exception_handler({"message": "the process failed", "exception": error})


async def _run(main: Main, process: Process) -> Any:
    return await main(process)


class Host:
    """A machine."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        self.name = name
        self.world = world
        self.network = network
        self.disk = SimDisk(world, name)
        self.process: Process | None = None
        self.lives: list[Process] = []
        self._clock_offset_s = world.random.uniform(0.0, CLOCK_OFFSET_MAX_S)
        self._wall_error_s: float | None = None
        network.set_up(name, True)

    @property
    def running(self) -> bool:
        return self.process is not None

    def start(self, main: Main) -> Process:
        """Start a process that runs `main(process)`; it ends when that returns."""
        if self.process is not None:
            raise RuntimeError(f"{self.name} already runs a process")
        self.world.note(self.name, "start")
        self.network.set_up(self.name, True)
        loop = SimLoop(self.world, self.network, self.name, self._clock_offset_s)  # type: ignore[abstract]
        loop.wall_error_s = self._wall_error_s
        self.process = Process(self, loop, main)
        self.lives.append(self.process)
        return self.process

    def exit(self) -> None:
        """End the process, as if it had exited by itself."""
        self._end("exit", power_loss=False)

    def kill(self) -> None:
        """End the process as with `kill -9`; its writes stay in the page cache."""
        self._end("kill", power_loss=False)

    def crash(self) -> None:
        """Lose power: unsynced writes are lost or torn, and the host is down until `start`."""
        self._end("crash", power_loss=True)
        self.network.set_up(self.name, False)
        self.disk.crash()

    def _end(self, how: str, *, power_loss: bool) -> None:
        self.world.note(self.name, how)
        process, self.process = self.process, None
        if process is not None:
            self._clock_offset_s = process.loop.clock_offset_s
            process.loop.kill()
            self.network.end_process(process.loop, power_loss=power_loss)
        self.disk.unmount()

    def forget_lives(self) -> None:
        """Release the resources of all processes at the end of the simulation."""
        self.process = None
        self.lives.clear()

    def strike_after(
        self, strike: Callable[[], None] | None, *, turns: int = 0, changes: int = 0
    ) -> None:
        """Call `strike` after this number of turns of the process's loop, or changes of its disk;
        None: never."""
        self.disk.strike_after(changes, strike if changes else None)
        if self.process is not None:
            self.process.loop.strike_after(turns, strike if turns else None)

    def pause(self, seconds: float) -> None:
        """Suspend the process for a while, as with SIGSTOP or a stalled machine."""
        self.world.note(self.name, "pause", seconds)
        if self.process is not None:
            self.process.loop.pause(seconds)

    def set_wall_clock(self, error_s: float) -> None:
        """Set how far time.time() is ahead on this host (negative: behind), also after a restart.
        The monotonic clock does not change."""
        self.world.note(self.name, "wall clock", error_s)
        self._wall_error_s = error_s
        if self.process is not None:
            self.process.loop.wall_error_s = error_s

    def jump_clock(self, seconds: float) -> None:
        self.world.note(self.name, "clock jumps", seconds)
        if self.process is not None:
            self.process.loop.jump_clock(seconds)
