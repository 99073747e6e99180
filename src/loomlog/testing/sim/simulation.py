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

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from loomlog.testing.sim.determinism import deterministic, silence
from loomlog.testing.sim.host import Host
from loomlog.testing.sim.logs import watched_logs
from loomlog.testing.sim.net import Network
from loomlog.testing.sim.world import STEPS_MAX, SimulationError, Trace, World


class Simulation:
    """The world, network and hosts of a run. Use it as a context manager."""

    def __init__(self, seed: int, *, trace: Trace | None = None) -> None:
        self.world = World(seed, trace=trace)
        self.network = Network(self.world)
        self.hosts: dict[str, Host] = {}
        self._cleanup = ExitStack()
        self.excused: set[str] = set()  # hosts that have reason to log errors

    def host(self, name: str) -> Host:
        """The host of that name; made when first asked for."""
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
        self._cleanup.enter_context(watched_logs(self.world, self._may_complain))
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
                gc.collect(0)  # exceptions that nobody retrieved speak up now
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
            gc.collect()  # it is off during runs: what one leaves would stay


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
