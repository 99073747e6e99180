"""Causes faults at random times. A plan names their kinds; the nemesis causes and ends them.

Every fault ends by itself after a while; `Nemesis.stop` ends all of them, so that a workload can
finish without faults and be checked.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from loomlog.testing.sim.disk import DiskSettings
from loomlog.testing.sim.host import Host, Main
from loomlog.testing.sim.simulation import Simulation

STALLING_DISK = DiskSettings(stall_probability=0.2)
SLOW_FACTOR_MAX = 100.0
CLOCK_JUMP_MAX_S = 5.0
_BAD = (errno.EIO, errno.EROFS)
PACES = (1.0, 1.0, 0.1)  # of faults: how soon after another, and how long
STRIKE_TURNS_MAX = 100  # a process is stopped at once, after some turns of its loop ...
STRIKE_CHANGES_MAX = 12  # ... or after some changes of its disk, in the middle of an operation


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The kinds of faults, how often they occur and how long they last."""

    kinds: tuple[str, ...]
    every_s: float = 0.4  # on average
    lasts_s: float = 1.5  # at most


FAULTS: Mapping[str, FaultPlan] = {
    "none": FaultPlan(()),
    "resets": FaultPlan(("reset", "reset", "reset", "slow"), every_s=0.05),
    "orphans": FaultPlan(("orphan", "orphan", "slow", "reset"), every_s=0.2, lasts_s=2.5),
    "network": FaultPlan(
        ("reset", "partition", "rift", "rift", "one way", "slow", "slow host"),
        every_s=0.3,
        lasts_s=3.0,
    ),
    "kills": FaultPlan(("kill",)),
    "crashes": FaultPlan(("crash", "crash", "crash", "blackout")),
    "pauses": FaultPlan(("pause", "clock", "stall", "slow host")),
    "disks": FaultPlan(("full disk", "bad disk", "hiccup", "hiccup", "stall", "kill", "crash")),
    "all": FaultPlan(
        (
            *("reset", "partition", "rift", "one way", "slow", "slow host"),
            *("kill", "crash", "blackout", "pause", "clock", "stall", "full disk"),
        ),
        every_s=0.25,
    ),
}


class Nemesis:
    """Causes faults: stops `servers` and starts them again with their `Main`, and cuts off hosts of
    the simulation from each other. `nodes` are the servers that also get full disks, or lose the
    connection to all others."""

    def __init__(
        self,
        sim: Simulation,
        plan: FaultPlan,
        servers: Mapping[str, Main],
        nodes: Sequence[str] = (),
    ) -> None:
        self._sim = sim
        self._plan = plan
        self._servers = dict(servers)
        self._nodes = list(nodes)
        self._healthy_disks = {name: sim.host(name).disk.settings for name in servers}
        self._random = sim.world.random
        self._active = False
        self._acts = {
            "reset": sim.network.reset_one,
            "partition": self._partition,
            "rift": self._partition_servers,
            "orphan": self._orphan,
            "one way": self._partition_one_way,
            "slow": self._slow,
            "slow host": self._slow_host,
            "kill": lambda: self._stop_soon(self._victim(), power_loss=False),
            "crash": lambda: self._stop_soon(self._victim(), power_loss=True),
            "blackout": self._blackout,
            "pause": lambda: self._victim().pause(self._duration_s()),
            "clock": lambda: self._victim().jump_clock(self._random.uniform(0, CLOCK_JUMP_MAX_S)),
            "stall": self._stall,
            "full disk": lambda: self._break_disk(errno.ENOSPC),
            "bad disk": lambda: self._break_disk(self._random.choice(_BAD)),
            "hiccup": self._hiccup,
        }

    def start(self) -> None:
        if self._plan.kinds:
            self._active = True
            self._next()

    def stop(self) -> None:
        """Stop faults: repair everything, and start the servers that are down."""
        self._active = False
        self._sim.network.heal()
        for a, b in self._pairs():
            self._sim.network.slow(a, b)
        for name in self._servers:
            self._sim.host(name).strike_after(None)
            self._mend_disk(name)
            self._restart(name)

    def _next(self) -> None:
        # Sometimes a fault follows closely, while the cluster reacts to the previous one.
        delay = self._random.expovariate(1.0 / self._plan.every_s) * self._random.choice(PACES)
        self._sim.world.after(delay, self._act)

    def _act(self) -> None:
        if self._active:
            self._acts[self._random.choice(self._plan.kinds)]()
            self._next()

    def _duration_s(self) -> float:
        return self._random.random() * self._plan.lasts_s * self._random.choice(PACES)

    def _victim(self) -> Host:
        return self._sim.host(self._random.choice(list(self._servers)))

    def _pairs(self) -> list[tuple[str, str]]:
        return _pairs_of(self._sim.hosts)

    def _partition(self) -> None:
        if self._random.random() < 0.5:
            host = self._victim().name
            self._sim.network.isolate(host)
            self._sim.world.after(self._duration_s(), self._sim.network.heal, host)
        else:
            self._cut(*self._random.choice(self._pairs()), one_way=False)

    def _partition_servers(self) -> None:
        """Cut two servers off from each other only."""
        if len(self._servers) > 1:
            self._cut(*self._random.sample(list(self._servers), 2), one_way=False)

    def _orphan(self) -> None:
        """Cut a storage node off from the metadata repository; clients and peers still reach it."""
        if self._nodes:
            node = self._random.choice(self._nodes)
            for ruler in [name for name in self._servers if name not in self._nodes]:
                self._cut(node, ruler, one_way=False)

    def _partition_one_way(self) -> None:
        pair = self._random.choice(self._pairs())
        self._cut(*self._random.sample(pair, 2), one_way=True)

    def _cut(self, a: str, b: str, *, one_way: bool) -> None:
        self._sim.network.partition(a, b, one_way=one_way)
        self._sim.world.after(self._duration_s(), self._sim.network.heal, a, b)

    def _slow(self) -> None:
        among = self._random.choice((self._sim.hosts, self._servers))
        a, b = self._random.choice(_pairs_of(among) or self._pairs())
        self._sim.network.slow(a, b, self._random.uniform(2.0, SLOW_FACTOR_MAX))
        self._sim.world.after(self._duration_s(), self._sim.network.slow, a, b)

    def _slow_host(self) -> None:
        host, factor = self._victim().name, self._random.uniform(2.0, SLOW_FACTOR_MAX)
        duration_s = self._duration_s()
        for other in self._sim.hosts:
            if other != host:
                self._sim.network.slow(host, other, factor)
                self._sim.world.after(duration_s, self._sim.network.slow, host, other)

    def _stop_soon(self, host: Host, *, power_loss: bool) -> None:
        stop = partial(self._stop, host, power_loss=power_loss)
        match self._random.choice(("now", "turns", "changes")):
            case "turns":
                host.strike_after(stop, turns=self._random.randint(1, STRIKE_TURNS_MAX))
            case "changes":
                host.strike_after(stop, changes=self._random.randint(1, STRIKE_CHANGES_MAX))
            case _:
                stop()

    def _stop(self, host: Host, *, power_loss: bool) -> None:
        if host.running:
            if power_loss:
                host.crash()
            else:
                host.kill()
            self._sim.world.after(self._duration_s(), self._restart, host.name)

    def _blackout(self) -> None:
        """Let all servers lose power at once, so that all unsynced data is lost."""
        for name in self._servers:
            self._stop(self._sim.host(name), power_loss=True)

    def _restart(self, name: str) -> None:
        host = self._sim.host(name)
        if not host.running:
            host.start(self._servers[name])

    def _stall(self) -> None:
        host = self._victim()
        host.disk.settings = STALLING_DISK
        self._sim.world.after(self._duration_s(), self._mend_disk, host.name)

    def _hiccup(self) -> None:
        """Let a single change of a disk fail."""
        if self._nodes:
            disk = self._sim.host(self._random.choice(self._nodes)).disk
            number = self._random.choice((errno.ENOSPC, *_BAD))
            disk.fail_after(self._random.randint(1, STRIKE_CHANGES_MAX), number)

    def _break_disk(self, number: int) -> None:
        """Break one disk at a time: another host has to take over."""
        disks = [self._sim.host(name).disk for name in self._nodes]
        if disks and not any(disk.settings.error for disk in disks):
            name = self._random.choice(self._nodes)
            healthy = self._healthy_disks[name]
            self._sim.host(name).disk.settings = replace(healthy, error=number)
            self._sim.world.note(name, "disk broken", number)
            self._sim.world.after(self._duration_s(), self._empty_disk, name)

    def _empty_disk(self, name: str) -> None:
        self._mend_disk(name)
        self._restart(name)

    def _mend_disk(self, name: str) -> None:
        self._sim.host(name).disk.settings = self._healthy_disks[name]


def _pairs_of(hosts: Iterable[str]) -> list[tuple[str, str]]:
    return list(combinations(hosts, 2))
