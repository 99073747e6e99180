"""The cluster workload, with a log that begins with any protocol and is switched to others.

Several parties ask for switches at the same time, also for some that cannot be made; servers fail
meanwhile, with one metadata repository or with three whose leader is hit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from sim_cluster import Shape, SimCluster

from loomlog.errors import LoomError
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.simulation import Simulation
from workloads.chooser import choose_primaries
from workloads.cluster import LOG, SLOWNESS, Client, Run, Troublemaker, Work, run_cluster
from workloads.comparer import compare_and_append
from workloads.piper import pipe
from workloads.takeovers import METADATA, LeaderNemesis

CLIENTS_MAX = 2
TROUBLE_S = 2.5
REPLICATED = 0.3  # of the runs: with several metadata repositories
SWITCHED = 0.7  # of the runs
PAUSES_MAX_S = (0.1, 0.4, 1.5)
STREAMS_MAX = 3
SWITCHERS = ("switcher-0", "switcher-1")
SEGMENTS_MAX = 8  # more would only make runs slow
PROTOCOLS = ("chained", "chained", "ordered")
COMPARERS = ("comparer-0", "comparer-1", "comparer-2")
PIPERS = ("piper-0", "piper-1")
ALL = ("ordered", "chained", "copyset")
WITH_COPYSET = ("copyset", "copyset", "copyset", "ordered", "chained")

LIFE_MAX_S = 0.8
DEATH_MAX_S = 0.3
PAUSE_MAX_S = 1.5
PAUSED = 0.3  # of the lives
STRUCK = 0.5  # of the lives: they end at some turn of their loop, not at some time
STRIKE_TURNS_MAX = 400


def protocols(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module."""
    return run_protocols(sim, plan, mortals=0)


def mortals(sim: Simulation, plan: FaultPlan) -> History:
    """Run with clients that die and leave reserved positions unwritten."""
    return run_protocols(sim, plan, mortals=2)


def copysets(sim: Simulation, plan: FaultPlan) -> History:
    """Run mostly `copyset` logs, with clients that sometimes die."""
    return run_protocols(sim, plan, sim.world.random.choice((0, 0, 1)), WITH_COPYSET)


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


def conditional(sim: Simulation, plan: FaultPlan) -> History:
    """Run logs of all protocols, also with clients that append behind an expected tail only."""
    mortals = sim.world.random.choice((0, 1))
    return run_protocols(sim, plan, mortals, ALL, dict.fromkeys(COMPARERS, compare_and_append))


def pipelines(sim: Simulation, plan: FaultPlan) -> History:
    """Run logs of all protocols, also with clients that append through pipelines."""
    return run_protocols(sim, plan, 0, ALL, dict.fromkeys(PIPERS, pipe))


def chosen(sim: Simulation, plan: FaultPlan) -> History:
    """Run logs of all protocols, with an operator who chooses where appends go first."""
    return run_protocols(sim, plan, 0, ALL, {"chooser": choose_primaries})


def run_protocols(
    sim: Simulation,
    plan: FaultPlan,
    mortals: int,
    among: Sequence[str] = PROTOCOLS,
    others: Mapping[str, Work] | None = None,
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
            beside={**dict.fromkeys(switchers, partial(switch, among=among)), **(others or {})},
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


class Mortal:
    """A client that dies repeatedly: its process is killed while it works, or stops for a while and
    continues with what it knew. What it had in flight may have happened, and delays no other
    client. Each life is a new client."""

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
        """Kill the last client, too: others find out what it left behind."""
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
