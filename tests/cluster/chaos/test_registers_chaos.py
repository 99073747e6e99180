"""Registers under kill -9 of the metadata repository: what was answered has happened, once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from server_processes import Servers

from loomlog import Cluster, connect
from loomlog.errors import Conflict

WRITERS = 4
STEPS = 20  # per writer
KILLS = 4


async def count_to(cluster: Cluster, steps: int) -> None:
    """Add one to the register, `steps` times."""
    register = cluster.register("counter")
    while steps:
        found = await register.get()
        value, version = (int(found.value), found.version) if found else (0, 0)
        try:
            await register.swap(b"%d" % (value + 1), version)
            steps -= 1
        except Conflict:
            pass


async def counted(cluster: Cluster) -> int:
    found = await cluster.register("counter").get()
    return int(found.value) if found else 0


async def test_counters_count_exactly_while_the_metadata_repository_is_killed(
    tmp_path: Path,
) -> None:
    async with (
        asyncio.timeout(120),
        Servers(tmp_path, nodes=0) as servers,
        await connect(servers.address, request_timeout_s=60.0) as cluster,
    ):
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(count_to(cluster, STEPS))
            for kill in range(1, KILLS + 1):
                while await counted(cluster) < kill * WRITERS * STEPS // (KILLS + 1):
                    pass
                await servers.vmr.kill()
                await servers.vmr.start()
        assert await counted(cluster) == WRITERS * STEPS
