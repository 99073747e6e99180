"""Real processes under fire: nothing acknowledged is lost, doubled, moved or reordered.

Faults come after a number of acknowledged appends, never after a time; after each the cluster must
continue by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from running_workload import Workload
from server_processes import Servers

pytestmark = pytest.mark.timeout(240)


async def test_without_a_spare_the_others_go_on_and_the_killed_one_returns(tmp_path: Path) -> None:
    async with Servers(tmp_path, nodes=3) as servers, Workload(servers.address) as work:
        await work.acked(100)
        await servers.nodes[2].kill()
        await servers.start_node(2)
        await work.running()
        await work.acked(100)


async def test_the_metadata_repository_is_killed_during_appends(tmp_path: Path) -> None:
    async with Servers(tmp_path, nodes=3) as servers, Workload(servers.address) as work:
        for _ in range(3):
            await work.acked(100)
            await servers.vmr.kill()
            await servers.vmr.start()
        await work.running()


async def test_everything_is_killed_at_once(tmp_path: Path) -> None:
    async with Servers(tmp_path, nodes=3) as servers, Workload(servers.address) as work:
        await work.acked(100)
        for server in (*servers.nodes.values(), servers.vmr):
            await server.kill()
        await servers.start_all()
        await work.running()
        await work.acked(100)
