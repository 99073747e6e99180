"""Disks that forget more than others can make up for at once.

absent      the power fails everywhere. All disks but one forget the last writes, and the node with
            that one comes back when it is not waited for any more: what it alone had is said to
            be lost. If no disk forgot anything, nothing is.
reported    the same, but that node is given up, or its disk forgets, too. The writer lives on: it
            says what is lost, although no node knows.
in turn     one node after the other loses power and forgets the same writes, as soon as no
            condition is left: nothing is lost, since the copies were made again.

The first one is for `copyset` and `chained` logs, the second one for `copyset` logs. What the first
node of a chain alone has may have been in flight when the power failed. So its writer tells it what
was acknowledged, within a second of its last block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final
from unittest.mock import patch

from sim_cluster import Shape, SimCluster

from loomlog.client.cluster import Cluster
from loomlog.client.loglets.copyset import acknowledged
from loomlog.core.backoff import Backoff
from loomlog.core.chained import reconfigure
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.errors import InvalidArgument, LoomError
from loomlog.metadata.catalog.records import decode
from loomlog.metadata.chained.records import PREFIX
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Gap, Glsn, NodeId, SyncMode
from workloads.cluster import finish
from workloads.losses import LOG, WITHIN_S, ForgetfulDisks

LOOK_S: Final = 0.2
RECOVERY_S: Final = 45.0
TOLD_S: Final = 1.2  # until a writer of a chain has told what was acknowledged
HANDED_OUT_MAX: Final = 1 << 33  # in life more: a reader has to fill it, a part at a time
UNIMPORTANT: Final = {"clock-skew", "node-avoided"}


def absent(sim: Simulation, plan: FaultPlan) -> History:
    """Run the first workload of this module, without other faults."""
    return _Absent(sim, SimCluster(sim, _shape(sim, nodes=3))).run()


def absent_chained(sim: Simulation, plan: FaultPlan) -> History:
    """Run the first workload of this module for `chained` logs, without other faults."""
    with patch.object(reconfigure, "HANDED_OUT_MAX", HANDED_OUT_MAX):
        return _AbsentOfChain(sim, SimCluster(sim, _shape(sim, nodes=3))).run()


def reported(sim: Simulation, plan: FaultPlan) -> History:
    """Run the second workload of this module, without other faults."""
    with patch.object(acknowledged, "LOOK", Backoff(1.0, 4.0)):
        return _Reported(sim, SimCluster(sim, _shape(sim, nodes=3))).run()


def in_turn(sim: Simulation, plan: FaultPlan) -> History:
    """Run the third workload of this module, without other faults."""
    return _InTurn(sim, SimCluster(sim, _shape(sim, nodes=sim.world.random.choice((3, 4))))).run()


def _shape(sim: Simulation, *, nodes: int) -> Shape:
    drawn = Shape.draw(sim.world.random, power_losses=True)
    storage = replace(drawn.storage, sync=SyncMode.ALWAYS)
    return replace(drawn, nodes=nodes, replicas=3, replace_after_s=None, storage=storage)


class _CopysetDisks(ForgetfulDisks):
    def __init__(self, sim: Simulation, servers: SimCluster) -> None:
        super().__init__(sim, servers)
        self._protocol = "copyset"
        self._sim.excused.update([*servers.metadata_names, *servers.node_names])

    def _begin(self) -> None:
        self._servers.start()
        self._do(lambda cluster: self._servers.create_log(cluster, LOG, self._protocol))

    async def _settled(self, cluster: Cluster) -> Collection[str]:
        """Wait until nothing is under way; return the conditions that are left."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                status = await cluster.status()
                kinds = {each.kind for each in status.conditions} - UNIMPORTANT
                if kinds <= {"data-lost"} and all(node.alive for node in status.nodes):
                    return kinds
                await asyncio.sleep(LOOK_S)

    async def _wait(self, cluster: Cluster) -> None:
        await self._settled(cluster)


class _Absent(_CopysetDisks):
    def run(self) -> History:
        self._begin()
        self._do(self._append)
        absent = self._random.choice(self._servers.node_names)
        others = [name for name in self._servers.node_names if name != absent]
        is_honest = self._random.random() < 0.3
        self._hit = [] if is_honest else [*self._servers.node_names]  # enough to lose something
        really = {} if is_honest else {name: self._sim.host(name).disk.copy() for name in others}
        for _ in range(2):  # a node learns with the next one that an entry was acknowledged
            self._do(self._append)
        if is_honest:
            self._sim.host("writer").start(self._append_on)
            finish(self._sim, [self._sim.host("operator").start(self._pause)], WITHIN_S)
        self._lose_power(really)
        self._sim.host("writer").kill()
        for name in self._servers.servers:
            if name != absent and self._sim.host(name).process is None:
                self._start(name)
        self._do(self._recover)
        self._start(absent)
        self._do(self._append)
        self._do(self._check)
        self._do(self._read)
        return History()

    async def _pause(self, process: Process) -> None:
        await asyncio.sleep(self._random.uniform(0.0, 0.1))

    async def _recover(self, cluster: Cluster) -> None:
        """Read until the absent node is not waited for any more. If it is known that entries were
        acknowledged that nobody else has, readers wait for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RECOVERY_S):
                async for _ in cluster.log(LOG).subscribe(1, max(self._appended), gaps=True):
                    pass

    async def _check(self, cluster: Cluster) -> None:
        kinds = await self._settled(cluster)
        if kinds and not self._hit:
            raise AssertionError(f"no disk forgot anything: {kinds}")


class _AbsentOfChain(_Absent):
    """The log is also used while the node is away, or nobody looks at what the others forgot
    before it is back."""

    def __init__(self, sim: Simulation, servers: SimCluster) -> None:
        super().__init__(sim, servers)
        self._protocol = "chained"
        self._kinds: Collection[str] = ()  # of the conditions when all is settled

    async def _append(self, cluster: Cluster) -> None:
        await super()._append(cluster)
        await asyncio.sleep(TOLD_S)

    def _records(self) -> list[ChainedRecord]:
        kept = self._servers.store.look(PREFIX).items()
        return [decode(ChainedRecord, key, value) for key, value in kept]

    async def _recover(self, cluster: Cluster) -> None:
        if self._random.random() < 0.5:
            await super()._recover(cluster)
        while self._random.random() < 0.7:
            with suppress(LoomError):
                await self._append(cluster)

    async def _check(self, cluster: Cluster) -> None:
        await super()._check(cluster)
        self._kinds = await self._settled(cluster)
        [record] = self._records()
        if record.unheard:
            raise AssertionError(f"{record.unheard} was not compared")

    def _judge(self, found: dict[Glsn, bytes], lost: list[Gap]) -> None:
        if bool(lost) != ("data-lost" in self._kinds):
            raise AssertionError(f"{lost} is lost, and the conditions are {self._kinds}")
        super()._judge(found, lost)


class _Reported(_CopysetDisks):
    def __init__(self, sim: Simulation, servers: SimCluster) -> None:
        super().__init__(sim, servers)
        self._parts = 0  # of what the writer appends, up to now
        self._wanted = 1

    def run(self) -> History:
        self._begin()
        self._sim.host("writer").start(self._write)
        self._do(self._written)
        names = [*self._servers.node_names]
        absent = self._random.choice([None, *names])
        forgetful = [] if self._random.random() < 0.3 else [n for n in names if n != absent]
        really = {name: self._sim.host(name).disk.copy() for name in forgetful}
        self._hit = names if forgetful else []
        self._wanted = 2
        self._do(self._written)
        self._lose_power(really)
        for name in self._servers.servers:
            is_gone = forgetful and name == absent
            if not is_gone and self._sim.host(name).process is None:
                self._start(name)
        if forgetful and absent is not None:
            node = int(absent.removeprefix("vsn-"))
            self._do(lambda cluster: self._give_up(cluster, node))
        self._do(self._check)
        self._do(self._append)
        self._do(self._read)
        return History()

    async def _write(self, process: Process) -> None:
        """Append twice, and live on."""
        cluster = await self._servers.connect(process)
        while True:
            while self._parts == self._wanted:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            await self._append(cluster)
            self._parts += 1

    async def _written(self, cluster: Cluster) -> None:
        while self._parts < self._wanted:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)

    async def _give_up(self, cluster: Cluster, node: NodeId) -> None:
        while True:
            with suppress(InvalidArgument):  # it is not missed yet
                await cluster.mark_unrecoverable(node)
                return
            await asyncio.sleep(LOOK_S)

    async def _check(self, cluster: Cluster) -> None:
        """Wait until the loss is known; if there is none, for as long as that would take."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RECOVERY_S):
                while not await self._is_known(cluster):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(LOOK_S)
        if await self._is_known(cluster) and not self._hit:
            raise AssertionError("no disk forgot anything")

    async def _is_known(self, cluster: Cluster) -> bool:
        return any(each.kind == "data-lost" for each in (await cluster.status()).conditions)


class _InTurn(_CopysetDisks):
    def run(self) -> History:
        self._begin()
        self._do(self._append)
        names = self._random.sample(self._servers.node_names, len(self._servers.node_names))
        really = {name: self._sim.host(name).disk.copy() for name in sorted(names)}
        self._do(self._append)
        for name in names:
            host = self._sim.host(name)
            host.crash()
            host.disk.restore(really[name])
            host.disk.crash()
            self._do(self._miss)  # or it would seem to be well when it is started
            self._start(name)
            self._do(self._wait)
        self._do(self._read)
        return History()

    async def _miss(self, cluster: Cluster) -> None:
        """Wait until the metadata repository misses the node that crashed."""
        async with asyncio.timeout(WITHIN_S):
            while all(  # noqa: ASYNC110 - nobody tells
                node.alive for node in (await cluster.status()).nodes
            ):
                await asyncio.sleep(LOOK_S)
