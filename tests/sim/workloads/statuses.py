"""Nodes stop, come back, lose their disks and are replaced, and the metadata repository restarts,
while a log is appended to. Whenever the status shows no condition, every acknowledged entry has all
its copies; and in the end, if that can be, there is no condition.

With operators, nodes are also drained, and the log is trimmed and switched to other protocols.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from copies_judge import CopiesJudge
from sim_cluster import METADATA, VOLUME, Shape, SimCluster

from loomlog.client.cluster import Cluster
from loomlog.errors import LoomError
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Glsn, NodeId, SyncMode
from loomlog.wire.conditions import ConditionInfo
from loomlog.wire.info import ClusterStatus
from workloads.cluster import finish

LOG: Final = "log"
PROTOCOLS: Final = ("ordered", "chained", "copyset")
LOOK_S: Final = 0.02
WITHIN_S: Final = 120.0
APPEND_S: Final = 3.0  # then it is left undecided
HEALTHY_S: Final = 60.0
ILL_S: Final = 4.0  # the same, if it cannot become healthy
ACTS_MAX: Final = 4
STOP_WITHIN_S: Final = 0.2
ENTRIES_MAX: Final = 6
PAUSES_MAX_S: Final = (0.05, 1.0, 4.0)


def statuses(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module; it has its own faults."""
    return _run(sim, _Statuses)


def statuses_operated(sim: Simulation, plan: FaultPlan) -> History:
    """Run it with operators."""
    return _run(sim, _OperatedStatuses)


def _run(sim: Simulation, kind: type[_Statuses]) -> History:
    random = sim.world.random
    drawn = Shape.draw(random, power_losses=True)
    shape = replace(drawn, storage=replace(drawn.storage, sync=SyncMode.ALWAYS))
    with shape.bounds.in_force():
        return kind(sim, SimCluster(sim, shape)).run()


class _Statuses:
    def __init__(self, sim: Simulation, servers: SimCluster) -> None:
        self._sim = sim
        self._servers = servers
        self._random = sim.world.random
        self._protocol = self._random.choice(PROTOCOLS)
        self._judge = CopiesJudge(servers, servers.shape.replicas)
        self._written = 0
        self._positions: dict[bytes, Glsn] = {}  # of acknowledged entries
        self._may_stay_ill = False
        self._is_over = False

    def run(self) -> History:
        self._servers.start()
        self._do(lambda cluster: self._servers.create_log(cluster, LOG, self._protocol))
        self._look_now_and_then()
        for _ in range(self._random.randint(1, ACTS_MAX)):
            self._do(self._append)
            self._operate()
            self._sim.world.after(self._random.random() * STOP_WITHIN_S, self._stop_one)
            self._do(self._append)
            self._do(self._pause)
            self._start_all()
            if self._random.random() < 0.5:
                self._do(self._append)
            if self._random.random() < 0.3:
                self._restart_metadata()
            self._calm_down()
            self._do(self._become_healthy)
        self._is_over = True
        if self._judge.verdict:
            raise AssertionError(self._judge.verdict)
        return History()

    def _operate(self) -> None:
        """Hook: called before a node is stopped."""

    def _calm_down(self) -> None:
        """Hook: called before all must become well."""

    def _do(self, work: Callable[[Cluster], Awaitable[None]]) -> None:
        async def main(process: Process) -> None:
            await work(await self._servers.connect(process))

        finish(self._sim, [self._sim.host("client").start(main)], WITHIN_S)

    def _look_now_and_then(self) -> None:
        if not self._is_over:
            self._judge.look()
            self._sim.world.after(LOOK_S, self._look_now_and_then)

    # ---- servers

    def _stop_one(self) -> None:
        name = self._random.choice(self._servers.node_names)
        host = self._sim.host(name)
        if not host.running:
            return
        self._judge.node_stops(name)
        host.kill()
        if self._random.random() < 0.5:
            self._wipe(name)

    def _wipe(self, name: str) -> None:
        disk = self._sim.host(name).disk
        disk.restore(None)
        files = disk.mount()
        files.make_directory(VOLUME)
        files.sync_directory("/")
        self._sim.world.note(name, "empty disk")
        self._may_stay_ill |= self._servers.shape.replicas == 1  # what only this node had is lost

    def _start_all(self) -> None:
        for name, main in self._servers.servers.items():
            if not self._sim.host(name).running:
                self._sim.host(name).start(main)

    def _restart_metadata(self) -> None:
        self._sim.host(METADATA).kill()
        self._start_all()

    # ---- what clients and operators do

    async def _append(self, cluster: Cluster) -> None:
        log = cluster.log(LOG)
        for _ in range(self._random.randint(1, ENTRIES_MAX)):
            self._written += 1
            entry = b"<entry %06d>" % self._written
            try:
                async with asyncio.timeout(APPEND_S):
                    place = await log.append(entry)
            except (LoomError, TimeoutError):
                continue
            self._judge.acknowledged.append(entry)
            self._positions[entry] = place.position

    async def _pause(self, cluster: Cluster) -> None:
        longest_s = self._random.choice(PAUSES_MAX_S)
        await asyncio.sleep(STOP_WITHIN_S + self._random.random() * longest_s)

    async def _help(self, cluster: Cluster, status: ClusterStatus) -> None:
        """Do what the conditions say: replace nodes that lost their disks, and delete old data
        where it is in the way of new replicas."""
        kinds = {condition.kind for condition in status.conditions}
        for node in (c.node for c in status.conditions if c.kind == "node-replacement"):
            await cluster.replace_node(node or 0)
        if kinds == {"under-replicated", "clock-skew"}:
            for each in (node for node in status.nodes if node.unknown_streams):
                await cluster.cleanup_node(each.id)

    async def _become_healthy(self, cluster: Cluster) -> None:
        """Wait until there is no condition, as an operator who replaces nodes with lost disks."""
        found: tuple[ConditionInfo, ...] = ()
        try:
            async with asyncio.timeout(ILL_S if self._may_stay_ill else HEALTHY_S):
                while True:
                    with suppress(LoomError):
                        status = await cluster.status()
                        found = status.conditions
                        if all(condition.kind == "clock-skew" for condition in found):
                            return
                        await self._help(cluster, status)
                    await asyncio.sleep(0.1)
        except TimeoutError:
            if self._may_stay_ill:
                return
            kinds = [(each.kind, each.sentence) for each in found]
            raise AssertionError(f"still not healthy after {HEALTHY_S:g} s: {kinds}") from None


class _OperatedStatuses(_Statuses):
    """Operators begin their work before nodes stop, so that it meets their absence."""

    _drained: NodeId = 0

    def _operate(self) -> None:
        for work in (self._drain, self._trim, self._switch):
            if self._random.random() < 0.4:
                self._do(work)

    def _calm_down(self) -> None:
        self._do(self._undrain)

    async def _drain(self, cluster: Cluster) -> None:
        self._drained = self._random.randint(1, self._servers.shape.nodes)
        await self._ask(lambda: cluster.drain_node(self._drained))
        if self._random.random() < 0.5:
            await self._pause(cluster)

    async def _undrain(self, cluster: Cluster) -> None:
        while self._drained:
            if await self._ask(lambda: cluster.undrain_node(self._drained)):
                self._drained = 0

    async def _trim(self, cluster: Cluster) -> None:
        if not self._positions:
            return
        last = self._random.choice(list(self._positions.values()))
        self._judge.acknowledged = [
            entry for entry in self._judge.acknowledged if self._positions[entry] > last
        ]
        await self._ask(lambda: cluster.log(LOG).trim(last))

    async def _switch(self, cluster: Cluster) -> None:
        protocol = self._random.choice(PROTOCOLS)
        streams = 1 if protocol == "copyset" else self._servers.shape.streams
        await self._ask(lambda: cluster.switch_log(LOG, protocol=protocol, streams=streams))

    async def _ask(self, request: Callable[[], Awaitable[object]]) -> bool:
        """Return whether it was answered in time."""
        try:
            async with asyncio.timeout(APPEND_S):
                await request()
        except (LoomError, TimeoutError):
            return False
        return True
