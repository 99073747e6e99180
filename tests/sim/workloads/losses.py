"""Nodes lose their disks, or come back with older copies of them: as many as there are replicas, or
more. Then every entry that was acknowledged is read, or said to be lost; with fewer, all are read.

    append, copy the disks of some nodes, append, stop all nodes,
    empty some disks, put older copies in the place of others, start all, read

Disks that forget are others: they confirm writes that they did not make, and show it when the power
fails. They go back by less than a node can notice. As long as they are fewer than the replicas that
an append needs, other disks have everything, so all of it is read and nothing is said to be lost.
(An append needs all replicas, or fewer while nodes are away: some do not reconnect in time.)

    append, note what the disks of some nodes really have, append, power fails everywhere, start all

The same must hold if some of them are killed and started again soon after: that they were killed
last does not mean that they have forgotten nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Final

from sim_cluster import VOLUME, Shape, SimCluster

from loomlog.client.cluster import Cluster
from loomlog.errors import LoomError
from loomlog.testing.history import History
from loomlog.testing.sim.disk import DiskImage
from loomlog.testing.sim.faults import FaultPlan
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Gap, Glsn, SyncMode
from workloads.cluster import finish

LOG: Final = "log"
PROTOCOLS: Final = ("ordered", "chained", "copyset")
APPENDS_MAX: Final = 8
WITHIN_S: Final = 60.0
READ_S: Final = 15.0


def losses(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module, without other faults."""
    random = sim.world.random
    drawn = Shape.draw(random, power_losses=True)
    shape = replace(drawn, storage=replace(drawn.storage, sync=SyncMode.ALWAYS))
    return Losses(sim, SimCluster(sim, shape)).run()


def forgetful(sim: Simulation, plan: FaultPlan) -> History:
    """Run the second workload of this module, without other faults."""
    return _forgetful(sim, ForgetfulDisks)


def forgetful_killed(sim: Simulation, plan: FaultPlan) -> History:
    """Run the third workload of this module, without other faults."""
    return _forgetful(sim, _KilledAfterwards)


def _forgetful(sim: Simulation, kind: type[ForgetfulDisks]) -> History:
    random = sim.world.random
    drawn = Shape.draw(random, power_losses=True)
    storage = replace(drawn.storage, sync=SyncMode.ALWAYS)
    replicas = max(2, drawn.replicas)
    least = Random(f"{sim.world.seed} min_replicas").choice((None, replicas))
    shape = replace(drawn, replicas=replicas, min_replicas=least, storage=storage)
    return kind(sim, SimCluster(sim, shape)).run()


class Losses:
    def __init__(self, sim: Simulation, servers: SimCluster) -> None:
        self._sim = sim
        self._servers = servers
        self._random = sim.world.random
        self._protocol = self._random.choice(PROTOCOLS)
        self._appended: dict[Glsn, bytes] = {}
        self._hit: list[str] = []
        self._wiped: list[str] = []

    def run(self) -> History:
        self._servers.start()
        self._do(lambda cluster: self._servers.create_log(cluster, LOG, self._protocol))
        self._do(self._append)
        images = {name: self._copy(name) for name in self._some_nodes()}
        self._do(self._append)
        self._harm(images)
        self._do(self._replace_wiped)
        for name in self._servers.node_names:
            self._start(name)
        self._do(self._read)
        return History()

    def _do(self, work: Callable[[Cluster], Awaitable[None]]) -> None:
        async def main(process: Process) -> None:
            await work(await self._servers.connect(process))

        finish(self._sim, [self._sim.host("client").start(main)], WITHIN_S)

    # ---- disks

    def _some_nodes(self) -> list[str]:
        names = self._servers.node_names
        return self._random.sample(names, self._random.randint(0, len(names)))

    def _copy(self, name: str) -> DiskImage:
        self._sim.host(name).kill()
        image = self._sim.host(name).disk.copy()
        self._start(name)
        return image

    def _start(self, name: str) -> None:
        self._sim.host(name).start(self._servers.servers[name])

    def _harm(self, images: dict[str, DiskImage]) -> None:
        for name in self._servers.node_names:
            self._sim.host(name).kill()
        self._hit = self._some_nodes()
        for name in self._hit:
            disk = self._sim.host(name).disk
            if name in images and self._random.random() < 0.5:
                disk.restore(images[name])
                self._sim.world.note(name, "older copy of its disk")
            else:
                self._wiped.append(name)
                disk.restore(None)
                files = disk.mount()
                files.make_directory(VOLUME)
                files.sync_directory("/")
                self._sim.world.note(name, "empty disk")

    # ---- what clients do

    async def _append(self, cluster: Cluster) -> None:
        log = cluster.log(LOG)
        for _ in range(self._random.randint(1, APPENDS_MAX)):
            value = b"%d" % len(self._appended)
            place = await log.append(value)
            self._appended[place.position] = value

    async def _replace_wiped(self, cluster: Cluster) -> None:
        for name in self._wiped:
            node = int(name.removeprefix("vsn-"))
            while any(  # noqa: ASYNC110 - nobody tells
                n.alive for n in (await cluster.status()).nodes if n.id == node
            ):
                await asyncio.sleep(0.05)
            # It may never have registered.
            if any(n.id == node for n in (await cluster.status()).nodes):
                await cluster.replace_node(node)

    async def _read(self, cluster: Cluster) -> None:
        found: dict[Glsn, bytes] = {}
        lost: list[Gap] = []
        log, last = cluster.log(LOG), max(self._appended)
        async with asyncio.timeout(READ_S):
            async for item in log.subscribe(1, last, gaps=True):
                if not isinstance(item, Gap):
                    found[item.position] = item.value
                elif item.kind == "dataloss":
                    lost.append(item)
        self._judge(found, lost)

    # ---- the judge

    @property
    def _may_lose(self) -> bool:
        return len(self._hit) >= self._servers.shape.replicas

    def _judge(self, found: dict[Glsn, bytes], lost: list[Gap]) -> None:
        if lost and not self._may_lose:
            raise AssertionError(f"{lost} is said to be lost; only {self._hit} lost anything")
        for position, value in self._appended.items():
            is_lost = any(gap.first <= position <= gap.last for gap in lost)
            if found.get(position) != value and not is_lost:
                raise AssertionError(
                    f"{position} was acknowledged, is not lost, and reads {found.get(position)!r}"
                )
            if position in found and is_lost:
                raise AssertionError(f"{position} is read, and said to be lost")


class ForgetfulDisks(Losses):
    def run(self) -> History:
        self._servers.start()
        self._sim.excused.update(self._servers.metadata_names)  # they log what disks forgot
        self._do(lambda cluster: self._servers.create_log(cluster, LOG, self._protocol))
        for _ in range(self._random.randint(1, 2)):
            self._do(self._append)
            names = self._servers.node_names
            count = self._random.randint(1, self._servers.shape.replicas_least - 1)
            really = {name: self._sim.host(name).disk.copy() for name in sorted(names)}
            self._do(self._append)
            self._hit = self._random.sample(names, count)
            self._lose_power({name: really[name] for name in self._hit})
            self._sim.host("reader").start(self._read_on)
            self._sim.host("writer").start(self._append_on)
            finish(self._sim, [self._sim.host("operator").start(self._start_all)], WITHIN_S)
            self._sim.host("reader").kill()
            self._sim.host("writer").kill()
        self._do(self._read)
        return History()

    def _lose_power(self, really: dict[str, DiskImage]) -> None:
        servers = [*self._servers.node_names]
        if self._random.random() < 0.3:
            servers += self._servers.metadata_names
        for name in servers:
            self._sim.host(name).crash()
        for name, image in really.items():
            disk = self._sim.host(name).disk
            disk.restore(image)
            disk.crash()
            self._sim.world.note(name, "its disk has forgotten writes")

    async def _start_all(self, process: Process) -> None:
        """Start all servers in some order, within the time that they are waited for."""
        down = [n for n in self._servers.servers if self._sim.host(n).process is None]
        self._random.shuffle(down)
        for name in down:
            await self._bring_up(name)
            await asyncio.sleep(self._random.choice((0.0, 0.1, 2.0, 5.0)))

    async def _bring_up(self, name: str) -> None:
        self._start(name)

    async def _read_on(self, process: Process) -> None:
        """Read from the first servers on that serve: a reader fills what it takes for a hole."""
        cluster = await self._servers.connect(process)
        while True:
            with suppress(LoomError):
                async for _ in cluster.log(LOG).subscribe(1, gaps=True):
                    pass
            await asyncio.sleep(0.1)

    async def _append_on(self, process: Process) -> None:
        cluster = await self._servers.connect(process)
        while True:
            with suppress(LoomError):
                await self._append(cluster)
            await asyncio.sleep(0.1)


class _KilledAfterwards(ForgetfulDisks):
    async def _bring_up(self, name: str) -> None:
        self._start(name)
        while name in self._servers.node_names and self._random.random() < 0.5:
            await asyncio.sleep(self._random.choice((0.0, 0.02, 0.1, 0.5)))
            self._sim.host(name).kill()
            self._start(name)
