"""Nodes lose their disks one after the other, or come back with older copies of them, while others
come and go. Whenever a reader gets DataLoss, the status says that entries are lost, until they are
trimmed.

    append; again and again: copy a disk, append, stop some nodes, harm one, start some, append
    start all, read, wait, read again, trim what is lost
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Final

from sim_cluster import VOLUME, Shape, SimCluster

from loomlog.client.cluster import Cluster
from loomlog.errors import LoomError
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Gap, Glsn, SyncMode
from workloads.losses import LOG, Losses

TURNS_MAX: Final = 5
APPEND_S: Final = 3.0  # then it is left undecided
PAUSES_S: Final = (0.0, 0.1, 0.5, 2.0, 8.0)
LATER_S: Final = 10.0  # in which what can be restored is
SHOWN_S: Final = 5.0  # after a trim


def lost_in_turn(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module, without other faults."""
    return _run(sim, ORDERED)


def lost_in_turn_chained(sim: Simulation, plan: FaultPlan) -> History:
    """Run it with a `chained` log."""
    return _run(sim, CHAINED)


def lost_in_turn_copyset(sim: Simulation, plan: FaultPlan) -> History:
    """Run it with a `copyset` log."""
    return _run(sim, COPYSET)


def _run(sim: Simulation, protocol: str) -> History:
    random = sim.world.random
    drawn = Shape.draw(random, power_losses=True)
    shape = replace(
        drawn,
        storage=replace(drawn.storage, sync=SyncMode.ALWAYS),
        rebuild_after_s=random.choice((0.3, 3.0, 1000.0)),
    )
    return LostInTurn(sim, SimCluster(sim, shape), protocol).run()


class LostInTurn(Losses):
    def __init__(self, sim: Simulation, servers: SimCluster, protocol: str) -> None:
        super().__init__(sim, servers)
        self._protocol = protocol
        self._down: set[str] = set()

    def run(self) -> History:
        self._servers.start()
        self._do(lambda cluster: self._servers.create_log(cluster, LOG, self._protocol))
        self._do(self._append)
        for _ in range(self._random.randint(2, TURNS_MAX)):
            for name in self._some_nodes():
                if self._random.random() < 0.3:
                    self._sim.host(name).kill()
                    self._down.add(name)
            self._strike(self._random.choice(self._servers.node_names))
            self._do(self._replace_wiped)
            for name in sorted(self._down):
                if name == self._hit[-1] or self._random.random() < 0.5:
                    self._start(name)
                    self._down.discard(name)
            self._wiped.clear()
            self._do(self._append_some)
        for name in sorted(self._down):
            self._start(name)
        self._do(self._read)
        self._do(self._read_later)
        return History()

    def _strike(self, name: str) -> None:
        host = self._sim.host(name)
        is_older = name not in self._down and self._random.random() < 0.3
        image = self._copy(name) if is_older else None
        if is_older:
            self._do(self._append_some)
        self._down.add(name)
        self._hit.append(name)
        if image is None:
            self._empty(name)
            return
        host.kill()
        host.disk.restore(image)
        self._sim.world.note(name, "older copy of its disk")

    def _empty(self, name: str) -> None:
        self._sim.host(name).kill()
        disk = self._sim.host(name).disk
        disk.restore(None)
        files = disk.mount()
        files.make_directory(VOLUME)
        files.sync_directory("/")
        self._sim.world.note(name, "empty disk")
        self._wiped.append(name)

    async def _append_some(self, cluster: Cluster) -> None:
        if self._random.random() < 0.7:
            with suppress(LoomError, TimeoutError):
                async with asyncio.timeout(APPEND_S):
                    await self._append(cluster)
        await asyncio.sleep(self._random.choice(PAUSES_S))

    # ---- the judge

    @property
    def _may_lose(self) -> bool:
        return True  # whether an emptied node was filled again in time is its own affair

    async def _read(self, cluster: Cluster) -> None:
        self._lost: list[Gap] = []
        await super()._read(cluster)
        if self._lost and not await self._says_lost(cluster):
            raise AssertionError(f"readers get {self._lost}, and the status does not say so")

    async def _read_later(self, cluster: Cluster) -> None:
        await asyncio.sleep(LATER_S)
        await self._read(cluster)
        if not self._lost:
            return
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SHOWN_S
        while texts := await self._says_lost(cluster):
            # Epochs without a known end may be recovered meanwhile.
            await cluster.log(LOG).trim(await cluster.log(LOG).tail())
            if loop.time() > until_s:
                raise AssertionError(f"all is trimmed, and the status still says {texts}")
            await asyncio.sleep(0.1)

    async def _says_lost(self, cluster: Cluster) -> list[str]:
        return [c.text for c in (await cluster.status()).conditions if c.kind == "data-lost"]

    def _judge(self, found: dict[Glsn, bytes], lost: list[Gap]) -> None:
        super()._judge(found, lost)
        self._lost = lost
