"""`make attack`: process kills, stops, disk faults, lost disks, clock jumps and damaged frames on
real processes, in episodes: each has a protocol, one or three metadata repositories, and a seed.

What clients were told and what readers saw is judged by loomlog.testing.history, which knows
nothing of servers. The data of an episode that fails is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from attack_faults import choose, lose_disk
from attacked_servers import AttackedServers
from running_workload import REPLICAS, Workload

from loomlog.errors import LoomError

PROTOCOLS: Final = ("ordered", "chained", "copyset")
NODES: Final = 5
LASTS_S: Final = 1.5  # at most, while appends go on
RETENTION: Final = "30m"  # nothing may be trimmed: no attack lasts so long
HEAL_S: Final = 90.0


@dataclass
class Episode:
    """One cluster under attack; `waves` times some faults at once, then all is undone."""

    protocol: str
    metadata: int
    seed: int
    waves: int = 8
    losses: int = 2  # of disks, altogether: fewer than an entry has copies
    faults: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    unknown: int = 0

    def __str__(self) -> str:
        return f"{self.protocol}, {self.metadata} vmr, seed {self.seed}"

    async def run(self, directory: Path) -> None:
        rng = random.Random(f"{self.protocol}/{self.metadata}/{self.seed}")
        servers = AttackedServers(directory, rng, nodes=NODES, metadata=self.metadata)
        streams = 1 if self.protocol == "copyset" else 2
        async with servers:
            workload = Workload(
                servers.address, protocol=self.protocol, streams=streams, retention=RETENTION
            )
            try:
                async with workload as work:
                    await self._attack(servers, work, rng)
            finally:
                self.unknown = workload.unknown
                self.acked = len([a for a in workload.history.appends.values() if a.positions])
                (directory / "history").write_text(workload.history.dump())

    async def _attack(self, servers: AttackedServers, work: Workload, rng: random.Random) -> None:
        losses = sorted(rng.sample(range(self.waves), min(self.losses, self.waves, REPLICAS - 1)))
        for wave in range(self.waves):
            await work.acked(20)
            await self._wave(servers, work, rng)
            await self._healed(servers, work)
            if wave in losses:
                node = rng.choice(list(servers.nodes))
                await lose_disk(servers, work.cluster, node)
                self._note(f"lose the disk of vsn-{node}")
                await self._healed(servers, work)

    async def _wave(self, servers: AttackedServers, work: Workload, rng: random.Random) -> None:
        async with AsyncExitStack() as undone:
            for _ in range(rng.randint(1, 3)):
                self._note(await undone.enter_async_context(choose(rng)(servers, rng)))
                try:
                    async with asyncio.timeout(rng.uniform(0.2, LASTS_S)):
                        await work.acked(30)
                except TimeoutError:
                    pass  # nothing need go on while this lasts

    async def _healed(self, servers: AttackedServers, work: Workload) -> None:
        """Wait until everything runs again, by itself, with all its copies."""
        async with asyncio.timeout(HEAL_S):
            await asyncio.gather(*(server.ready() for server in servers.servers))
            down = [server.name for server in servers.servers if not server.running]
            assert not down, f"{', '.join(down)} ended without being killed"
            await work.acked(20)
            while True:
                try:
                    await work.running()
                except LoomError:
                    continue
                return

    def _note(self, fault: str) -> None:
        if fault:
            self.faults[fault.split()[0]] += 1
            print(f"    {time.strftime('%H:%M:%S')} {fault}", file=sys.stderr, flush=True)


def run(episode: Episode, parent: Path) -> bool:
    """Run one episode and say how it went; its data stays if it failed."""
    directory = Path(tempfile.mkdtemp(prefix="attack-", dir=parent))
    began_s = time.monotonic()
    try:
        asyncio.run(episode.run(directory))
    except Exception:
        traceback.print_exc()
        print(f"FAILED {episode}: see {directory}", flush=True)
        return False
    shutil.rmtree(directory, ignore_errors=True)
    faults = ", ".join(f"{kind} {number}" for kind, number in sorted(episode.faults.items()))
    print(
        f"ok {episode}: {episode.acked:,} acknowledged, {episode.unknown} unknown, "
        f"{time.monotonic() - began_s:.0f} s; {faults}",
        flush=True,
    )
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--protocol", choices=PROTOCOLS)
    parser.add_argument("--metadata", type=int, choices=(1, 3))
    parser.add_argument("--waves", type=int, default=8)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    until_s = time.monotonic() + given.minutes * 60
    totals: Counter[str] = Counter()
    acked = episodes = failures = 0
    for seed in count(given.seed):
        for metadata in (given.metadata,) if given.metadata else (1, 3):
            for protocol in (given.protocol,) if given.protocol else PROTOCOLS:
                if episodes and time.monotonic() > until_s:
                    faults = ", ".join(f"{kind} {n}" for kind, n in totals.most_common())
                    print(f"{episodes} episodes, {failures} failed, {acked:,} acknowledged")
                    print(faults)
                    return int(failures > 0)
                episode = Episode(protocol, metadata, seed, given.waves)
                failures += not run(episode, given.directory)
                episodes, acked = episodes + 1, acked + episode.acked
                totals += episode.faults
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
