"""The cluster workload with three metadata repositories, whose leader is hit again and again.

Beside the faults of the plan: the leader is killed, loses power, is stopped and woken, is cut off
from some or all, also when it has hardly begun; and the store that they share is slow or away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from sim_cluster import Shape, SimCluster

from loomlog.errors import LoomError
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Host, Process
from loomlog.testing.sim.simulation import Simulation
from workloads.cluster import SLOWNESS, Run, run_cluster

METADATA = 3
NODES = 3  # few, and few clients: the metadata repositories are what this is about
CLIENTS_MAX = 2
TROUBLE_S = 2.5
CHANGING = 0.3  # of the runs: members change, too
CHANGE_PAUSE_MAX_S = 0.8
EVERY_S = (0.1, 0.4, 1.5)  # on average
LASTS_S = 2.0  # at most
STORE_SLOWNESS_MAX = 200.0


def takeovers(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module."""
    random = sim.world.random
    shape = replace(
        Shape.draw(random, power_losses="crash" in plan.kinds),
        nodes=NODES,
        streams=random.randint(1, 2),
        replicas=random.choice((1, 2, 2, 3)),
        metadata=METADATA,
        spare_metadata=1,
        leader_silence_s=random.choice((0.3, 0.8, 2.0)),
    )
    servers = SimCluster(sim, shape)
    servers.slow_down(random.choice(SLOWNESS), random.choice(SLOWNESS))
    nemesis = Nemesis(sim, plan, servers.servers, nodes=servers.node_names)
    with shape.bounds.in_force():
        return run_cluster(
            sim,
            servers,
            LeaderNemesis(servers),
            nemesis,
            clients_max=CLIENTS_MAX,
            trouble_s=TROUBLE_S,
            beside={"members": change_members} if random.random() < CHANGING else None,
        )


async def change_members(run: Run, process: Process) -> None:
    """Add and remove metadata repositories; at least two are left."""
    cluster = await run.connect(process)
    servers, random = run.servers, run.random
    (spare,) = servers.metadata_names[METADATA:]
    if not servers.sim.host(spare).running:
        servers.sim.host(spare).start(servers.servers[spare])
    while not run.calm:
        await asyncio.sleep(random.random() * CHANGE_PAUSE_MAX_S)
        try:
            members = {member.id for member in (await cluster.status()).members}
            number = random.randint(1, len(servers.metadata_names))
            if number not in members:
                await cluster.add_metadata(number, servers.metadata_addresses[number - 1])
            elif len(members) > 2:
                await cluster.remove_metadata(number)
        except LoomError:
            pass  # refused, or nobody knows: both are fine


class LeaderNemesis:
    """Disturbs the leader, and what leaders need."""

    def __init__(self, servers: SimCluster) -> None:
        self._servers = servers
        self._sim = servers.sim
        self._random = servers.sim.world.random
        self._every_s = self._random.choice(EVERY_S)
        self._active = False
        self._acts: tuple[Callable[[], None], ...] = (
            lambda: self._stop(self._leader(), power_loss=False),
            lambda: self._stop(self._leader(), power_loss=True),
            lambda: self._leader().pause(self._duration_s()),
            lambda: self._leader().pause(self._duration_s()),
            lambda: self._cut(self._leader().name, *self._others(self._leader().name)),
            lambda: self._cut(self._leader().name, self._random.choice(self._all())),
            self._isolate,
            lambda: self._stop(self._member(), power_loss=True),
            lambda: self._member().pause(self._duration_s()),
            self._store_leaves,
            self._store_is_slow,
        )

    def start(self) -> None:
        self._active = True
        self._next()

    def stop(self) -> None:
        """Do nothing: the other nemesis repairs processes and the network."""
        self._active = False
        self._servers.store.come_back()

    def _next(self) -> None:
        delay_s = self._random.expovariate(1.0 / self._every_s)
        self._sim.world.after(delay_s, self._act)

    def _act(self) -> None:
        if self._active:
            self._random.choice(self._acts)()
            self._next()

    def _duration_s(self) -> float:
        return self._random.random() * LASTS_S * self._random.choice((0.1, 1.0))

    # ---- whom

    def _all(self) -> list[str]:
        return self._servers.metadata_names

    def _member(self) -> Host:
        return self._sim.host(self._random.choice(self._all()))

    def _leader(self) -> Host:
        leader = self._servers.leader
        return self._sim.host(leader) if leader is not None else self._member()

    def _others(self, name: str) -> list[str]:
        return [other for other in self._all() if other != name]

    # ---- what

    def _stop(self, host: Host, *, power_loss: bool) -> None:
        if host.running:
            if power_loss:
                host.crash()
            else:
                host.kill()
            self._sim.world.after(self._duration_s(), self._restart, host)

    def _restart(self, host: Host) -> None:
        if not host.running:
            host.start(self._servers.servers[host.name])

    def _cut(self, name: str, *others: str) -> None:
        duration_s = self._duration_s()
        for other in others:
            if other != name:
                self._sim.network.partition(name, other)
                self._sim.world.after(duration_s, self._sim.network.heal, name, other)

    def _isolate(self) -> None:
        name = self._leader().name
        self._sim.network.isolate(name)
        self._sim.world.after(self._duration_s(), self._sim.network.heal, name)

    def _store_leaves(self) -> None:
        self._servers.store.leave()
        self._sim.world.after(self._duration_s(), self._servers.store.come_back)

    def _store_is_slow(self) -> None:
        self._servers.store.slow_down(self._random.uniform(2.0, STORE_SLOWNESS_MAX))
        self._sim.world.after(self._duration_s(), self._servers.store.come_back)
