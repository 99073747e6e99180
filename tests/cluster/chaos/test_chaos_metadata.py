"""Several vmr and their etcd under fire: nothing acknowledged is lost, doubled, moved or reordered.

As in test_chaos.py, faults come after a number of acknowledged appends, never after a time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from replicated_servers import MEMBERS, EtcdLeader, ReplicatedServers, Victim, frozen, killed
from running_workload import Workload

pytestmark = pytest.mark.timeout(300)

ROUNDS = 20
BETWEEN = 30  # appends


async def test_leaders_and_followers_are_killed_and_frozen(tmp_path: Path) -> None:
    async with ReplicatedServers(tmp_path) as servers, Workload(servers.address) as work:
        for number in range(ROUNDS):
            leader = servers.repositories[await servers.leader(work.cluster)]
            follower = servers.repositories[await servers.follower(work.cluster)]
            etcd = await asyncio.to_thread(EtcdLeader, servers.etcd)
            victims: tuple[Victim, ...] = (
                (leader,),
                (follower,),
                (etcd,),
                (leader, etcd),
                (follower, etcd),
            )[number // 2 % 5]
            hit = killed if number % 2 == 0 else frozen
            await work.acked(BETWEEN)
            await hit(*victims, meanwhile=lambda: work.acked(BETWEEN))
        await work.running()


async def test_without_etcd_appends_go_on_and_a_takeover_waits(tmp_path: Path) -> None:
    async with ReplicatedServers(tmp_path) as servers, Workload(servers.address) as work:
        await work.acked(50)
        for member in (1, 2):
            await asyncio.to_thread(servers.etcd.kill, member)
        await work.acked(100)
        follower = servers.repositories[await servers.follower(work.cluster)]
        await killed(follower, meanwhile=lambda: work.acked(BETWEEN))  # back without etcd
        leader = await servers.leader(work.cluster)
        others = [n for n in MEMBERS if n != leader and servers.repositories[n] is not follower]
        await servers.repositories[others[0]].kill()
        await work.acked(BETWEEN)
        await servers.repositories[others[0]].start()
        await servers.repositories[leader].kill()
        waits = asyncio.ensure_future(work.acked(50))
        _, undone = await asyncio.wait((waits,), timeout=3)
        assert undone, "nobody can have taken over"
        for member in (1, 2):
            await asyncio.to_thread(servers.etcd.start, member)
        await waits
        await servers.another_leads(work.cluster, leader)
        await servers.repositories[leader].start()
        await work.running()
