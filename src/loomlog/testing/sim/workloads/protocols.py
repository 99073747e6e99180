"""The cluster workload, with a log that begins with any protocol and is switched to others.

Several parties ask for switches at the same time, also for some that cannot be made; servers fail
meanwhile, with one metadata repository or with three whose leader is hit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from loomlog.errors import LoomError
from loomlog.testing.history import History
from loomlog.testing.sim.cluster import Shape, SimCluster
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.testing.sim.workloads.cluster import LOG, SLOWNESS, Run, Troublemaker, run_cluster
from loomlog.testing.sim.workloads.mortals import Mortal
from loomlog.testing.sim.workloads.takeovers import METADATA, LeaderNemesis

CLIENTS_MAX = 2
TROUBLE_S = 2.5
REPLICATED = 0.3  # of the runs: with several metadata repositories
SWITCHED = 0.7  # of the runs
PAUSES_MAX_S = (0.1, 0.4, 1.5)
STREAMS_MAX = 3
SWITCHERS = ("switcher-0", "switcher-1")
SEGMENTS_MAX = 8  # more would only make runs slow
PROTOCOLS = ("chained", "chained", "ordered")
WITH_COPYSET = ("copyset", "copyset", "copyset", "ordered", "chained")


def protocols(sim: Simulation, plan: FaultPlan) -> History:
    """See above."""
    return _run(sim, plan, mortals=0)


def mortals(sim: Simulation, plan: FaultPlan) -> History:
    """Run with clients that die and leave reserved positions unwritten."""
    return _run(sim, plan, mortals=2)


def copysets(sim: Simulation, plan: FaultPlan) -> History:
    """Run mostly `copyset` logs, with clients that sometimes die."""
    return _run(sim, plan, sim.world.random.choice((0, 0, 1)), WITH_COPYSET)


def switches(sim: Simulation, plan: FaultPlan) -> History:
    """Run an `ordered` log that is only ever switched to other numbers of streams and replicas."""
    servers, nemeses = _servers(sim, plan)
    switchers = SWITCHERS[: sim.world.random.randint(1, 2)]
    with servers.shape.bounds.in_force():
        return run_cluster(
            sim,
            servers,
            *nemeses,
            clients_max=CLIENTS_MAX,
            trouble_s=TROUBLE_S,
            beside=dict.fromkeys(switchers, partial(switch, among=())),
        )


def _run(
    sim: Simulation, plan: FaultPlan, mortals: int, among: Sequence[str] = PROTOCOLS
) -> History:
    random = sim.world.random
    servers, nemeses = _servers(sim, plan)
    switched = random.random() < SWITCHED
    switchers = SWITCHERS[: random.randint(1, 2) if switched else 0]
    with servers.shape.bounds.in_force():
        return run_cluster(
            sim,
            servers,
            *nemeses,
            clients_max=CLIENTS_MAX,
            trouble_s=TROUBLE_S,
            beside=dict.fromkeys(switchers, partial(switch, among=among)),
            protocol=random.choice(among),
            mortals=lambda run: [Mortal(sim, run, f"mortal-{i}") for i in range(mortals)],
        )


def _servers(sim: Simulation, plan: FaultPlan) -> tuple[SimCluster, list[Troublemaker]]:
    """Return a cluster, sometimes with several metadata repositories, and what breaks it."""
    random = sim.world.random
    shape = Shape.draw(random, power_losses="crash" in plan.kinds)
    replicated = random.random() < REPLICATED
    if replicated:
        shape = replace(shape, metadata=METADATA, leader_silence_s=random.choice((0.3, 0.8)))
    servers = SimCluster(sim, shape)
    servers.slow_down(random.choice(SLOWNESS), random.choice(SLOWNESS))
    nemesis = Nemesis(sim, plan, servers.servers, nodes=servers.node_names)
    return servers, [LeaderNemesis(servers), nemesis] if replicated else [nemesis]


async def switch(run: Run, process: Process, among: Sequence[str] = PROTOCOLS) -> None:
    """Switch the log again and again, to protocols `among` these if there are any."""
    cluster = await run.connect(process)
    random = run.random
    pause_max_s = random.choice(PAUSES_MAX_S)
    while not run.calm:
        await asyncio.sleep(random.random() * pause_max_s)
        protocol = random.choice(among) if among else None
        streams, replicas = random.randint(1, STREAMS_MAX), random.choice((1, 2, 3))
        if protocol == "copyset":
            streams = 1
        try:
            if len((await cluster.log(LOG).describe()).segments) < SEGMENTS_MAX:
                await cluster.switch_log(LOG, protocol=protocol, streams=streams, replicas=replicas)
        except LoomError:
            pass  # refused, or nobody knows: both are fine
