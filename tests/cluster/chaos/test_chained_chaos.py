"""Chained logs and real processes that are killed, and logs that are switched between protocols
meanwhile: nothing acknowledged is lost, doubled, moved or reordered.

Faults come after a number of acknowledged appends, never after a time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from running_workload import HEAL_S, Workload
from server_processes import Servers

pytestmark = pytest.mark.timeout(240)


async def chain_of(work: Workload) -> tuple[int, ...]:
    """Return the nodes of the only chain, head first."""
    [stream] = await work.streams()
    [chain] = stream.chains
    return chain


async def left(work: Workload, node: int) -> None:
    """Wait until the chain goes on without the node."""
    async with asyncio.timeout(HEAL_S):
        while node in await chain_of(work):  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.05)


async def test_head_middle_and_tail_are_killed_one_after_the_other(tmp_path: Path) -> None:
    """kill -9 under load; a spare takes the place of each, then it comes back and is the spare."""
    servers = Servers(tmp_path, nodes=4)
    async with servers, Workload(servers.address, protocol="chained", streams=1) as work:
        for place in (0, 1, 2):
            await work.acked(50)
            victim = (await chain_of(work))[place]
            await servers.nodes[victim].kill()
            await work.acked(50)
            await left(work, victim)
            await work.running()
            await servers.start_node(victim)


async def test_two_of_three_replicas_are_killed(tmp_path: Path) -> None:
    """The last replica of a chain continues alone, if the log allows it. There is no spare, so a
    node that returns joins again."""
    servers = Servers(tmp_path, nodes=3)
    async with (
        servers,
        Workload(servers.address, protocol="chained", streams=2, min_replicas=1) as work,
    ):
        await work.acked(50)
        await servers.nodes[1].kill()
        await servers.nodes[3].kill()
        await work.acked(50)
        await servers.start_node(1)
        await servers.start_node(3)
        await work.running()


async def test_the_metadata_repository_is_killed_then_everything_at_once(tmp_path: Path) -> None:
    servers = Servers(tmp_path, nodes=3)
    async with servers, Workload(servers.address, protocol="chained") as work:
        for _ in range(2):
            await work.acked(50)
            await servers.vmr.kill()
            await servers.vmr.start()
        await work.acked(50)
        for server in (servers.vmr, *servers.nodes.values()):
            await server.kill()
        await servers.start_all()
        await work.acked(50)
        await work.running()


async def test_a_head_that_freezes_or_is_cut_off_is_harmless_afterwards(tmp_path: Path) -> None:
    servers = Servers(tmp_path, nodes=4)
    async with servers, Workload(servers.address, protocol="chained", streams=1) as work:
        await work.acked(50)
        frozen = (await chain_of(work))[0]
        servers.nodes[frozen].freeze()
        await work.acked(50)
        await left(work, frozen)
        servers.nodes[frozen].thaw()
        await work.running()
        cut_off = (await chain_of(work))[0]
        servers.cut(cut_off)
        await work.acked(50)
        await left(work, cut_off)
        servers.heal(cut_off)
        await work.running()


# ---- switches


async def test_a_log_goes_from_protocol_to_protocol_and_back_under_load(tmp_path: Path) -> None:
    """First undisturbed, then with a kill of the metadata repository and of a node during the
    switches."""
    async with Servers(tmp_path, nodes=3) as servers, Workload(servers.address) as work:
        protocols = ("chained", "ordered", "chained", "ordered")
        victims = (None, None, servers.vmr, servers.nodes[2])
        for protocol, victim in zip(protocols, victims, strict=True):
            await work.acked(50)
            switching = asyncio.ensure_future(work.switched(protocol=protocol))
            await asyncio.sleep(0)  # it is asked for
            if victim is not None:
                await victim.kill()
                await victim.start()
            await switching
        await work.acked(50)
        info = await work.log.describe()
        assert [segment.protocol for segment in info.segments] == ["ordered", *protocols]
        assert info.switching == ""
