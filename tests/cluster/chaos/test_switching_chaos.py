"""A log that is switched while real processes are killed: nothing acknowledged is lost, doubled or
moved, and every switch that was begun comes to an end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from running_workload import Workload
from server_processes import Servers

pytestmark = pytest.mark.timeout(240)


async def test_the_metadata_repository_is_killed_during_switches(tmp_path: Path) -> None:
    async with Servers(tmp_path, nodes=3) as servers, Workload(servers.address) as work:
        for streams in (1, 3, 2):
            await work.acked(50)
            switching = asyncio.ensure_future(work.switched(streams=streams))
            await asyncio.sleep(0)  # it is asked for
            await servers.vmr.kill()
            await servers.vmr.start()
            await switching
            await work.acked(50)
        info = await work.log.describe()
        assert (info.segments[-1].streams, info.switching) == (2, "")


async def test_a_node_is_killed_during_a_switch(tmp_path: Path) -> None:
    async with Servers(tmp_path, nodes=3) as servers, Workload(servers.address) as work:
        await work.acked(50)
        switching = asyncio.ensure_future(work.switched(streams=3))
        await asyncio.sleep(0)
        await servers.nodes[2].kill()
        await servers.start_node(2)
        await switching
        await work.acked(50)
        assert (await work.log.describe()).segments[-1].streams == 3
