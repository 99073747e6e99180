"""Real processes under fire, with a spare node: what dies is replaced, and nothing is lost.

Faults come after a number of acknowledged appends, never after a time; after each the cluster must
continue by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from running_workload import Workload
from server_processes import Servers

pytestmark = pytest.mark.timeout(240)


async def test_nodes_are_killed_one_after_the_other(tmp_path: Path) -> None:
    """kill -9 of each node under load; with a spare each is replaced, then comes back."""
    async with Servers(tmp_path, nodes=4) as servers, Workload(servers.address) as work:
        await work.acked(100)
        for number in (1, 2, 3, 4):
            await servers.nodes[number].kill()
            await work.acked(100)
            await work.running()
            await servers.start_node(number)
            await work.acked(50)
        await work.running()


async def test_a_frozen_node_is_replaced_and_harmless_when_it_wakes(tmp_path: Path) -> None:
    async with Servers(tmp_path, nodes=4) as servers, Workload(servers.address) as work:
        await work.acked(100)
        servers.nodes[1].freeze()
        await work.acked(200)
        await work.running()
        servers.nodes[1].thaw()
        await work.acked(100)
        await work.running()


async def test_a_node_is_cut_off_from_everybody(tmp_path: Path) -> None:
    async with Servers(tmp_path, nodes=4) as servers, Workload(servers.address) as work:
        await work.acked(100)
        servers.cut(2)
        await work.acked(200)
        await work.running()
        servers.heal(2)
        await work.acked(100)
        await work.running()


async def test_a_full_disk_stops_one_replica_and_nothing_else(tmp_path: Path) -> None:
    async with Servers(tmp_path, nodes=4) as servers, Workload(servers.address) as work:
        await work.acked(100)
        servers.nodes[3].fill_disk()
        await work.acked(200)
        await work.running()
        servers.nodes[3].free_disk()
        await servers.nodes[3].kill()
        await servers.start_node(3)
        await work.acked(100)
        await work.running()
