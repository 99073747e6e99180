"""The faults of an attack on a cluster. Each fault is an async context: it begins, lasts while
others may come, and is undone.

Anything may happen at the same time, with one exception: a disk is lost only while all copies are
complete, and fewer disks than an entry has copies.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias

from attacked_servers import AttackedServers
from damage import Damage

from loomlog.client.cluster import Cluster
from loomlog.errors import LoomError

Fault: TypeAlias = Callable[[AttackedServers, random.Random], AbstractAsyncContextManager[str]]

PATIENCE_S: Final = 60.0
JUMPS_S: Final = (-86_400.0, -3_600.0, -5.0, 5.0, 3_600.0, 86_400.0)
DAMAGE_RATE: Final = 0.02


@asynccontextmanager
async def killed(servers: AttackedServers, rng: random.Random) -> AsyncIterator[str]:
    """Kill one server with -9."""
    victim = rng.choice(servers.servers)
    await victim.kill()
    yield f"kill {victim.name}"
    if not victim.running:
        await victim.launch()


@asynccontextmanager
async def all_killed(servers: AttackedServers, rng: random.Random) -> AsyncIterator[str]:
    """Kill all servers at once, like a power loss that spares the page cache."""
    for server in servers.servers:
        await server.kill()
    yield "kill everything"
    stopped = [server for server in servers.servers if not server.running]
    rng.shuffle(stopped)
    for server in stopped:
        await server.launch()


@asynccontextmanager
async def stopped(servers: AttackedServers, rng: random.Random) -> AsyncIterator[str]:
    """Stop a server with SIGSTOP, and continue it with SIGCONT."""
    victim = rng.choice(servers.servers)
    if not victim.running:
        yield ""
        return
    victim.freeze()
    process = victim.process
    try:
        yield f"stop {victim.name}"
    finally:
        if victim.process is process and victim.running:  # nobody killed it meanwhile
            victim.thaw()


@asynccontextmanager
async def cut_off(servers: AttackedServers, rng: random.Random) -> AsyncIterator[str]:
    """Cut what others send to a node; it still reaches them."""
    node = rng.choice(list(servers.nodes))
    servers.cut(node)
    yield f"cut vsn-{node}"
    servers.heal(node)


@asynccontextmanager
async def damaged_links(servers: AttackedServers, rng: random.Random) -> AsyncIterator[str]:
    """Damage bytes on every link."""
    kinds = tuple(rng.sample(list(Damage), rng.randint(1, len(Damage))))
    servers.damager.kinds, servers.damager.rate = kinds, DAMAGE_RATE
    yield f"damage {'+'.join(kinds)}"
    servers.damager.rate = 0.0


@asynccontextmanager
async def clock_jumped(servers: AttackedServers, rng: random.Random) -> AsyncIterator[str]:
    """Set the clock of a machine wrong, and then right again."""
    victim, offset_s = rng.choice(servers.servers), rng.choice(JUMPS_S)
    servers.set_clock(victim.name, offset_s)
    yield f"clock of {victim.name} {offset_s:+g} s"
    servers.set_clock(victim.name, 0)


@asynccontextmanager
async def disk_full(servers: AttackedServers, rng: random.Random) -> AsyncIterator[str]:
    """Fill the file system (ENOSPC) where that is possible; otherwise files cannot grow (EFBIG)."""
    if servers.small:
        ballast = servers.volume(servers.small) / "ballast"
        await asyncio.to_thread(_fill, ballast)
        yield f"fill the disk of vsn-{servers.small}"
        ballast.unlink(missing_ok=True)
        return
    victim = rng.choice([server for server in servers.nodes.values() if server.running] or [None])
    if victim is None:
        yield ""
        return
    process = victim.process
    victim.fill_disk()
    yield f"no growing files on {victim.name}"
    if victim.process is process and victim.running:
        victim.free_disk()


def _fill(ballast: object) -> None:
    with open(str(ballast), "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 20)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


FAULTS: Final[tuple[tuple[Fault, int], ...]] = (  # with how often each is chosen
    (killed, 8),
    (stopped, 4),
    (damaged_links, 3),
    (clock_jumped, 3),
    (cut_off, 2),
    (disk_full, 2),
    (all_killed, 1),
)


def choose(rng: random.Random) -> Fault:
    faults, weights = zip(*FAULTS, strict=True)
    fault: Fault = rng.choices(faults, weights)[0]
    return fault


async def lose_disk(servers: AttackedServers, cluster: Cluster, node: int) -> None:
    """Wipe a node that no other fault affects; an operator lets it come back empty."""
    await servers.nodes[node].kill()
    servers.wipe(node)
    await _replace(cluster, node)
    await servers.nodes[node].start()


async def _replace(cluster: Cluster, node: int) -> None:
    """Run `loom node replace` until the node is missed and the command succeeds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await cluster.replace_node(node)
            except LoomError:
                await asyncio.sleep(0.1)
            else:
                return
