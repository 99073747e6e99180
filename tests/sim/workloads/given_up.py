"""An operator gives up nodes whose disks are lost, and others that come back with their data.

    append, copy the disks of some nodes, append, stop all nodes,
    empty some disks, put older copies in the place of others, start all but some,
    mark or remove those, read, start the marked ones that have their data, read

Every entry that was acknowledged is read, or said to be lost; with fewer nodes than replicas hit or
given up, all are read. Nodes that come back take nothing away that could be read without them.
Without any node, readers of `ordered` logs learn what is lost, and others wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from sim_cluster import Shape, SimCluster

from loomlog.client.cluster import Cluster
from loomlog.errors import InvalidArgument, NotFound
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Gap, Glsn, NodeId, SyncMode
from workloads.losses import LOG, Losses

RETURN_S: Final = 10.0  # in which nodes that come back are used, or not


def given_up(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module, without other faults."""
    return _run(sim, ORDERED)


def given_up_chained(sim: Simulation, plan: FaultPlan) -> History:
    """Run it with a `chained` log."""
    return _run(sim, CHAINED)


def given_up_copyset(sim: Simulation, plan: FaultPlan) -> History:
    """Run it with a `copyset` log."""
    return _run(sim, COPYSET)


def _run(sim: Simulation, protocol: str) -> History:
    drawn = Shape.draw(sim.world.random, power_losses=True)
    shape = replace(drawn, storage=replace(drawn.storage, sync=SyncMode.ALWAYS))
    return GivenUpNodes(sim, SimCluster(sim, shape), protocol).run()


class GivenUpNodes(Losses):
    def __init__(self, sim: Simulation, servers: SimCluster, protocol: str) -> None:
        super().__init__(sim, servers)
        self._protocol = protocol
        self._absent: list[str] = []  # have their data, and are marked all the same
        self._found: set[Glsn] = set()

    def run(self) -> History:
        self._servers.start()
        self._do(lambda cluster: self._servers.create_log(cluster, LOG, self._protocol))
        self._do(self._append)
        images = {name: self._copy(name) for name in self._some_nodes()}
        self._do(self._append)
        self._harm(images)
        there = [name for name in self._servers.node_names if name not in self._wiped]
        self._absent = self._random.sample(there, self._random.randint(0, len(there)))
        for name in there:
            if name not in self._absent:
                self._start(name)
        self._do(self._give_up)
        if self._protocol == ORDERED or len(self._absent) < len(there):
            self._do(self._read)
        for name in self._absent:
            self._start(name)
        if self._protocol == ORDERED or there:
            self._do(self._read_again)
        return History()

    @property
    def _may_lose(self) -> bool:
        return len({*self._hit, *self._absent}) >= self._servers.shape.replicas

    async def _give_up(self, cluster: Cluster) -> None:
        gone = [*self._wiped, *self._absent]
        self._random.shuffle(gone)
        for name in gone:
            node = int(name.removeprefix("vsn-"))
            is_removed = name in self._wiped and self._random.random() < 0.5
            self._sim.world.note(name, "removed" if is_removed else "marked")
            while not await self._is_said(  # noqa: ASYNC110 - nobody tells
                cluster, node, is_removed=is_removed
            ):
                await asyncio.sleep(0.05)
            await asyncio.sleep(self._random.choice((0.0, 0.0, 0.5, 5.0)))

    async def _is_said(self, cluster: Cluster, node: NodeId, *, is_removed: bool) -> bool:
        """Give a node up. Return False while it counts as alive."""
        try:
            if is_removed:
                await cluster.remove_node(node, force=True)
            else:
                await cluster.mark_unrecoverable(node)
        except NotFound:  # it never registered
            return True
        except InvalidArgument as refused:
            if "has the only replica" in str(refused):
                return await self._is_said(cluster, node, is_removed=False)
            if "is alive" in str(refused):
                return False
            if "nothing waits" not in str(refused):
                raise
        return True

    async def _read_again(self, cluster: Cluster) -> None:
        before = self._found
        await asyncio.sleep(RETURN_S)
        await self._read(cluster)
        if taken := before.difference(self._found):
            raise AssertionError(f"{taken} was read before nodes came back, and is not any more")

    def _judge(self, found: dict[Glsn, bytes], lost: list[Gap]) -> None:
        super()._judge(found, lost)
        self._found = set(found)
