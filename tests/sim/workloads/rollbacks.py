"""The cluster workload with a metadata repository whose store is put back to an older copy.

It must do nothing with that, whatever it is asked for. After a while the store is as new as before
again, and all that was acknowledged must be there: whatever had been done with the older one would
be found by then. Logs begin with any protocol; a register and a lease are used, too.
"""

from __future__ import annotations

import asyncio

from shared_store import Copy
from sim_cluster import Shape, SimCluster

from loomlog.core.history import enough
from loomlog.errors import Conflict, Retryable, RolledBack, SwapUnknown
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.simulation import Simulation
from workloads.cluster import SLOWNESS, Run, run_cluster

CLIENTS_MAX = 2
TROUBLE_S = 3.0
EVERY_S = 0.5  # on average
LASTS_S = 1.0  # at most
COUNT_PAUSE_MAX_S = 0.1
PROTOCOLS = ("ordered", "chained", "copyset")


def rollbacks(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module."""
    random = sim.world.random
    shape = Shape.draw(random, power_losses="crash" in plan.kinds)
    servers = SimCluster(sim, shape)
    servers.slow_down(random.choice(SLOWNESS), random.choice(SLOWNESS))
    nemesis = Nemesis(sim, plan, {n: servers.servers[n] for n in servers.node_names})
    with shape.bounds.in_force():
        return run_cluster(
            sim,
            servers,
            RollbackNemesis(servers),
            nemesis,
            clients_max=CLIENTS_MAX,
            trouble_s=TROUBLE_S,
            beside={"counter": count},
            protocol=random.choice(PROTOCOLS),
        )


async def count(run: Run, process: Process) -> None:
    """Count in a register and acquire a lease: neither ever goes back."""
    cluster = await run.connect(process)
    register, counted, epoch = cluster.register("count"), 0, 0
    while not run.calm:
        await asyncio.sleep(run.random.random() * COUNT_PAUSE_MAX_S)
        try:
            found = await register.get()
            value, version = (int(found.value), found.version) if found else (0, 0)
            assert value >= counted, f"the register is at {value}, and was at {counted}"
            await register.swap(str(value + 1).encode(), expected=version)
            counted = value + 1
            lease = await cluster.acquire_lease("counter", holder="counter", ttl_s=1.0)
            assert lease is not None
            assert lease.epoch > epoch, f"the lease has epoch {lease.epoch}, and had {epoch}"
            epoch = lease.epoch
        except (Retryable, RolledBack, SwapUnknown, Conflict):
            pass


class RollbackNemesis:
    """Makes copies of the store, and puts them back between two lives of the vmr."""

    def __init__(self, servers: SimCluster) -> None:
        self._servers = servers
        self._sim = servers.sim
        self._random = servers.sim.world.random
        self._host = self._sim.host(servers.metadata_names[0])
        self._copy = servers.store.copy()
        self._newest: Copy | None = None  # while an older one is there
        self._active = False

    def start(self) -> None:
        self._copy = self._servers.store.copy()
        self._active = True
        self._next()

    def stop(self) -> None:
        self._active = False
        self._put_back()

    def _next(self) -> None:
        self._sim.world.after(self._random.expovariate(1.0 / EVERY_S), self._act)

    def _act(self) -> None:
        if self._active:
            if self._newest is None and self._is_noticed():
                self._roll_back()
            elif self._newest is None and self._random.random() < 0.3:
                self._copy = self._servers.store.copy()
            self._next()

    def _is_noticed(self) -> bool:
        """Return whether enough nodes know of later changes that every group includes one."""
        nodes = self._servers.nodes.values()
        seen = [node._disks.known_run._seen for node in nodes]
        knowing = [each for each in seen if each.revision > self._copy.version]
        return len(knowing) > self._servers.shape.nodes - enough(self._servers.shape.nodes)

    def _roll_back(self) -> None:
        self._host.kill()
        self._sim.excused.add(self._host.name)
        self._newest = self._servers.store.copy()
        self._servers.store.restore(self._copy)
        self._restart()
        self._sim.world.after(self._random.random() * LASTS_S, self._put_back)

    def _put_back(self) -> None:
        if self._newest is not None:
            self._host.kill()
            self._sim.excused.discard(self._host.name)
            self._servers.store.restore(self._newest)
            self._newest = None
            self._restart()

    def _restart(self) -> None:
        self._host.start(self._servers.servers[self._host.name])
