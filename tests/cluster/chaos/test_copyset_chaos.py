"""Kill and freeze the servers of copyset logs, and take their disks away. Nothing acknowledged is
lost, doubled, moved or reordered. If R disks are gone, exactly what was on them is reported lost.

Faults come after a number of acknowledged appends, never after a time.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from running_workload import HEAL_S, Workload
from server_processes import Servers

import loomlog
from loomlog import Cluster
from loomlog.client.log import Log
from loomlog.errors import DataLoss
from loomlog.types import Entry, Gap, Glsn

pytestmark = pytest.mark.timeout(240)

DETECTION_S = 1.0
RESUME_S = 1.0  # after detection
SLACK_S = 1.0
STEPS = 10  # that follow each other at most, each of which takes as long as a usual append
NEVER_S = 600.0


async def sequencer_of(work: Workload) -> int:
    [stream] = await work.streams()
    assert stream.copyset is not None
    assert stream.copyset.sequencer is not None
    return stream.copyset.sequencer


async def recovered(work: Workload) -> None:
    """Wait until all epochs but the newest one are."""
    async with asyncio.timeout(HEAL_S):
        while True:
            [stream] = await work.streams()
            assert stream.copyset is not None
            if stream.copyset.last_clean == stream.epoch - 1:
                return
            await asyncio.sleep(0.05)


async def test_whoever_sequences_is_killed(tmp_path: Path) -> None:
    """Writes go on at most a second after it was missed. Later it comes back with its leftovers."""
    servers = Servers(tmp_path, nodes=5, detection_s=DETECTION_S)
    async with servers, Workload(servers.address, protocol="copyset", streams=1) as work:
        for _ in range(3):
            await work.acked(50)
            usual_s = await work.usual_s()
            victim = await sequencer_of(work)
            await servers.nodes[victim].kill()
            slack_s = SLACK_S + STEPS * usual_s
            assert await work.append_s() < DETECTION_S + RESUME_S + slack_s
            await recovered(work)
            await servers.start_node(victim)


async def test_appends_continue_without_a_node_that_freezes(tmp_path: Path) -> None:
    """The waiting time is checked in tests/sim/test_quick_restarts.py, with a simulated clock."""
    servers = Servers(tmp_path, nodes=5, detection_s=NEVER_S)
    async with servers, Workload(servers.address, protocol="copyset", streams=1) as work:
        await work.acked(50)
        sequencer = await sequencer_of(work)
        frozen = next(node for node in servers.nodes if node != sequencer)
        servers.nodes[frozen].freeze()
        await work.acked(100)
        servers.nodes[frozen].thaw()


async def test_a_sequencer_that_freezes_is_harmless_afterwards(tmp_path: Path) -> None:
    servers = Servers(tmp_path, nodes=5, detection_s=DETECTION_S)
    async with servers, Workload(servers.address, protocol="copyset", streams=1) as work:
        await work.acked(50)
        frozen = await sequencer_of(work)
        servers.nodes[frozen].freeze()
        await work.append_s()
        servers.nodes[frozen].thaw()
        await work.acked(50)
        cut_off = await sequencer_of(work)
        servers.cut(cut_off)
        await work.append_s()
        servers.heal(cut_off)
        await work.acked(50)


async def test_the_metadata_repository_is_killed_then_everything_at_once(tmp_path: Path) -> None:
    servers = Servers(tmp_path, nodes=5, detection_s=DETECTION_S)
    async with servers, Workload(servers.address, protocol="copyset", streams=1) as work:
        await work.acked(50)
        await servers.vmr.kill()
        await work.acked(50)  # who sequences goes on without it
        await servers.vmr.start()
        await work.acked(50)
        for server in (servers.vmr, *servers.nodes.values()):
            await server.kill()
        await servers.start_all()
        await work.acked(50)


async def test_from_protocol_to_protocol_while_servers_are_killed(tmp_path: Path) -> None:
    async with Servers(tmp_path, nodes=5) as servers, Workload(servers.address) as work:
        protocols = ("copyset", "chained", "copyset", "ordered")
        victims = (None, servers.nodes[2], servers.vmr, servers.nodes[3])
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


# ---- lost disks


async def test_one_disk_takes_nothing_along_and_r_disks_what_only_they_had(tmp_path: Path) -> None:
    servers = Servers(tmp_path, nodes=4, detection_s=DETECTION_S)
    async with servers, await loomlog.connect(servers.address) as cluster:
        log = await cluster.create_log("precious", protocol="copyset", replicas=2)
        places = [(await log.append(b"%d" % n)).position for n in range(60)]
        await lose_disk(servers, cluster, tmp_path, 1)
        left, lost = await seen(log, places[-1])
        assert (left, lost) == (places, set())
        for node in (2, 3, 4):  # which nodes a record is on is chance, and a matter of their speed
            if not lost:
                await lose_disk(servers, cluster, tmp_path, node)
                left, lost = await seen(log, places[-1])
        assert lost
        assert sorted([*left, *lost]) == places
        with pytest.raises(DataLoss, match="all their copies are gone"):
            await read(log, places[-1])


async def lose_disk(servers: Servers, cluster: Cluster, directory: Path, node: int) -> None:
    await servers.nodes[node].kill()
    volume = directory / f"vsn-{node}"
    shutil.rmtree(volume)
    volume.mkdir()
    await replaced(cluster, node)
    await servers.start_node(node)


async def replaced(cluster: Cluster, node: int) -> None:
    """Let it come back empty, once it is missed."""
    async with asyncio.timeout(HEAL_S):
        while next(  # noqa: ASYNC110 - nobody tells
            n.alive for n in (await cluster.status()).nodes if n.id == node
        ):
            await asyncio.sleep(0.02)
        await cluster.replace_node(node)


async def seen(log: Log, stop: Glsn) -> tuple[list[Glsn], set[Glsn]]:
    """Return the positions with an entry, and those that are reported as lost."""
    there: list[Glsn] = []
    lost: set[Glsn] = set()
    async with asyncio.timeout(HEAL_S):
        async for item in log.subscribe(1, stop, gaps=True):
            if not isinstance(item, Gap):
                there.append(item.position)
            elif item.kind == "dataloss":
                lost.update(range(item.first, item.last + 1))
    return there, lost


async def read(log: Log, stop: Glsn) -> list[Entry]:
    async with asyncio.timeout(HEAL_S):
        return [entry async for entry in log.subscribe(1, stop)]
