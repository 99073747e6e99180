"""A simulation: hosts, a network and a clock, from one seed.

    async def server(process):
        ...                                  # ordinary asyncio code

    with Simulation(seed=7) as sim:
        host = sim.host("a")
        host.start(server)
        client = sim.host("b").start(client_main)
        sim.world.after(0.5, host.crash)     # power loss at t = 0.5 s
        sim.world.after(0.9, host.start, server)
        sim.run(until=lambda: client.finished)

The same seed gives the same run, event by event: compare `sim.world.fingerprint`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from types import TracebackType
from typing import Any, Final

from loomlog.testing.sim.determinism import deterministic, silence
from loomlog.testing.sim.host import Host
from loomlog.testing.sim.loop import SimLoop
from loomlog.testing.sim.net import Network
from loomlog.testing.sim.world import STEPS_MAX, SimulationError, Trace, World

LOOK_AT_ALL_EVERY: Final = 20  # runs

_runs = count(1)


class Simulation:
    """The world, network and hosts of a run. Use it as a context manager."""

    def __init__(self, seed: int, *, trace: Trace | None = None) -> None:
        self.world = World(seed, trace=trace)
        self.network = Network(self.world)
        self.hosts: dict[str, Host] = {}
        self._cleanup = ExitStack()
        self.excused: set[str] = set()  # hosts that have reason to log errors

    def host(self, name: str) -> Host:
        """Return the host of that name; create it if it is new."""
        if name not in self.hosts:
            self.hosts[name] = Host(self.world, self.network, name)
        return self.hosts[name]

    def run(
        self,
        until: float | Callable[[], bool],
        *,
        timeout_s: float = 3600.0,
        steps_max: int = STEPS_MAX,
    ) -> None:
        """See `World.run`. Errors come with a note of what each process was waiting for."""
        try:
            self.world.run(until, timeout_s=timeout_s, steps_max=steps_max)
        except SimulationError as error:
            error.add_note(self.describe())
            raise

    def describe(self) -> str:
        """Return what every process is doing."""
        return "\n".join(line for host in self.hosts.values() for line in _doing(host))

    def __enter__(self) -> Simulation:
        self._cleanup.enter_context(deterministic(self.world))
        self._cleanup.enter_context(_watched_logs(self.world, self._may_complain))
        return self

    def _may_complain(self, host: str) -> bool:
        has_bad_disk = host in self.hosts and self.hosts[host].disk.failed
        return has_bad_disk or host in self.excused

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        story: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                gc.collect(0)  # reports exceptions that were never retrieved
                self.world.raise_failure(again=False)
        finally:
            self._dispose()
            self._cleanup.close()

    def _dispose(self) -> None:
        lives = [life for host in self.hosts.values() for life in host.lives]
        with silence():
            for host in self.hosts.values():
                host.disk.unmount()
            for life in lives:
                life.loop.kill()
                self.network.end_process(life.loop, power_loss=False)
            for life in lives:
                life.loop.bury()
            self.world.clear()
            for host in self.hosts.values():
                host.forget_lives()
            _collect_garbage()


def _collect_garbage() -> None:
    """Collect the garbage of a run, during which the collector is off. Its objects are young. Only
    rarely collect old ones, too, which takes longer than many runs in a large process."""
    gc.collect(2 if next(_runs) % LOOK_AT_ALL_EVERY == 0 else 1)


def _doing(host: Host) -> list[str]:
    if host.process is None:
        return [f"{host.name}: not running"]
    stands = (" > ".join(_waits(task.get_coro())) for task in host.process.loop.tasks())
    return [f"{host.name}: waits in {where}" for where in sorted(stands)]


def _waits(awaited: Any) -> Iterator[str]:
    """Yield the frames of a coroutine, outermost first."""
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        yield f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        awaited = awaited.cr_await


class _ToWorld(logging.Handler):
    def __init__(self, world: World, excused: Callable[[str], bool]) -> None:
        super().__init__()
        self._world = world
        self._excused = excused

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        if isinstance(loop, SimLoop) and loop.killed:
            return
        who = loop.host if isinstance(loop, SimLoop) else "?"
        self._world.tell(who, f"{record.levelname}: {record.getMessage()}")
        if record.levelno >= logging.ERROR and not self._excused(who):
            cause = record.exc_info[1] if record.exc_info else None
            self._world.fail(who, f"logged: {record.getMessage()}", cause)


@contextmanager
def _watched_logs(world: World, excused: Callable[[str], bool]) -> Iterator[None]:
    """Copy log lines of simulated servers to the trace; an error fails the simulation.

    Servers answer an unexpected exception with an error frame and log it; a test that only checked
    answers would miss such a bug. Only `excused` hosts, e.g. those whose disk failed, may log
    errors.
    """
    logger = logging.getLogger("loomlog")
    before = logger.level, logger.propagate
    handler = _ToWorld(world, excused)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if world.traced else logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
