"""Clients that die: their process is killed in the midst of what it does, or stops for a while and
goes on with what it knew. What they had under way may have happened, and holds nobody up."""

from __future__ import annotations

from functools import partial

from loomlog.errors import LoomError
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.testing.sim.workloads.cluster import Client, Run

LIFE_MAX_S = 0.8
DEATH_MAX_S = 0.3
PAUSE_MAX_S = 1.5
PAUSED = 0.3  # of the lives
STRUCK = 0.5  # of the lives: they end at some turn of their loop, not at some time
STRIKE_TURNS_MAX = 400


class Mortal:
    """One life after the other, each that of a new client."""

    def __init__(self, sim: Simulation, run: Run, name: str) -> None:
        self._world = sim.world
        self._host = sim.host(name)
        self._run = run
        self._active = False
        self._lives = 0

    def start(self) -> None:
        self._active = True
        self._live()

    def stop(self) -> None:
        """The last one dies, too: what it leaves behind is for others to find out."""
        self._active = False
        self._die(self._lives)

    def _live(self) -> None:
        if not self._active:
            return
        random = self._world.random
        self._lives += 1
        die = partial(self._die, self._lives)
        self._host.start(partial(self._work, f"{self._host.name}.{self._lives}"))
        if random.random() < STRUCK:
            self._host.strike_after(die, turns=random.randint(1, STRIKE_TURNS_MAX))
        if random.random() < PAUSED:
            self._host.pause(random.random() * PAUSE_MAX_S)
        self._world.after(random.random() * LIFE_MAX_S, die)

    async def _work(self, name: str, process: Process) -> None:
        try:
            await Client(self._run, name).work(process)
        except LoomError:
            pass  # it did not even reach the cluster

    def _die(self, life: int) -> None:
        if life != self._lives:
            return  # that was another one
        self._lives += 1
        self._host.strike_after(None)
        if self._host.running:
            self._host.kill()
        self._world.after(self._world.random.random() * DEATH_MAX_S, self._live)
