"""Nodes that come back with an older copy of their data: what they forgot counts as lost,
never as absent."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
from poll import until

from loomlog import Cluster
from loomlog.client.log import Log
from loomlog.errors import DataLoss, LoomError
from loomlog.testing import LocalCluster
from loomlog.types import Gap, Glsn

pytestmark = pytest.mark.timeout(120)
NODES = (1, 2, 3)
PROTOCOLS = ("ordered", "chained", "copyset")


async def append(log: Log, count: int) -> list[Glsn]:
    return [(await log.append(b"%d" % number)).position for number in range(count)]


async def holders(log: Log) -> list[int]:
    [stream] = (await log.describe()).streams
    return [replica.node for replica in stream.replicas]


async def stop(local: LocalCluster, nodes: Iterable[int] = NODES) -> None:
    await asyncio.gather(*map(local.stop_node, nodes))


async def start(local: LocalCluster, nodes: Iterable[int] = NODES) -> None:
    await asyncio.gather(*map(local.start_node, nodes))


def copy(directory: Path, nodes: Collection[int]) -> None:
    for node in nodes:
        shutil.copytree(directory / f"vsn-{node}", directory / f"copy-{node}")


def restore(directory: Path, nodes: Collection[int]) -> None:
    for node in nodes:
        shutil.rmtree(directory / f"vsn-{node}")
        shutil.move(directory / f"copy-{node}", directory / f"vsn-{node}")


async def roll_back(local: LocalCluster, directory: Path, log: Log, nodes: int) -> list[Glsn]:
    """Append 5 entries, and 10 more that the first of the log's nodes forget."""
    positions = await append(log, 5)
    older = (await holders(log))[:nodes]
    await stop(local)
    copy(directory, older)
    await start(local)
    positions += await append(log, 10)
    await stop(local)
    restore(directory, older)
    await start(local)
    return positions


async def seen(log: Log, positions: list[Glsn]) -> tuple[set[Glsn], set[Glsn]]:
    """Return the positions that are delivered, and those that are reported as lost."""
    found: set[Glsn] = set()
    lost: set[Glsn] = set()
    async for item in log.subscribe(positions[0], positions[-1], gaps=True):
        if not isinstance(item, Gap):
            found.add(item.position)
        elif item.kind == "dataloss":
            lost.update(p for p in positions if item.first <= p <= item.last)
    return found, lost


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_one_of_two_nodes_takes_nothing_along(tmp_path: Path, protocol: str) -> None:
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=2.5)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol=protocol, streams=1, replicas=2)
        positions = await roll_back(local, tmp_path, log, 1)
        assert await seen(log, positions) == (set(positions), set())
        assert (await append(log, 1))[0] > positions[-1]


async def test_what_r_nodes_forgot_is_lost(tmp_path: Path) -> None:
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=2.5)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="copyset", replicas=2, nodeset=3)
        positions = await roll_back(local, tmp_path, log, 3)
        found, lost = await seen(log, positions)
        assert found == set(positions[:5])
        assert lost == set(positions[5:])
        await until(log.describe, lambda info: "may be lost" in info.streams[0].condition)
        with pytest.raises(DataLoss):
            await log.read(positions[-1])


async def test_what_all_replicas_of_a_stream_forgot_is_lost(tmp_path: Path) -> None:
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=2.5)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", streams=1, replicas=2)
        positions = await roll_back(local, tmp_path, log, 2)
        assert await seen(log, positions) == (set(positions[:5]), set(positions[5:]))
        with pytest.raises(DataLoss, match=f"continue at {positions[-1] + 1}"):
            async for _ in log.subscribe(1, positions[-1]):
                pass
        assert (await log.read(positions[0])).value == b"0"
        with pytest.raises(DataLoss):
            await log.read(positions[-1])


async def test_of_two_streams_one_is_lost(tmp_path: Path) -> None:
    """The entries of the other stream are delivered."""
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=2.5)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", streams=2, replicas=1)
        places = [await log.append(b"%d" % number, stream=1 + number % 2) for number in range(10)]
        streams = {s.id: s.replicas[0].node for s in (await log.describe()).streams}
        assert len(set(streams.values())) == 2
        lost = {p.position for p in places if p.stream == 1}
        await stop(local)
        shutil.rmtree(tmp_path / f"vsn-{streams[1]}")
        while any(n.alive for n in (await cluster.status()).nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await cluster.replace_node(streams[1])
        await start(local)
        positions = [place.position for place in places]
        assert await seen(log, positions) == (set(positions) - lost, lost)


async def told(log: Log, start: Glsn, stop: Glsn) -> str:
    """Return the error that a plain subscriber gets."""
    with pytest.raises(DataLoss) as caught:
        async for _ in log.subscribe(start, stop):
            pass
    return str(caught.value)


async def test_what_all_replicas_of_a_chain_forgot_is_lost(tmp_path: Path) -> None:
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=2.5)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="chained", streams=1, replicas=2)
        for node in NODES:  # a condition that does not matter
            (next(tmp_path.glob(f"vsn-{node}/cid=*/snid={node}")) / "lsid=9.damaged").mkdir()
        positions = await roll_back(local, tmp_path, log, 2)
        assert await seen(log, positions) == (set(positions[:5]), set(positions[5:]))
        assert f"continue at {positions[-1] + 1}" in await told(log, 1, positions[-1])
        lost = f"chain 0 lost entries from position {positions[5]} to {positions[-1]}"
        assert lost in (await log.describe()).streams[0].condition
        assert (await log.read(positions[4])).value == b"4"
        with pytest.raises(DataLoss):
            await log.read(positions[-1])
        assert (await append(log, 1))[0] > positions[-1]
        assert await log.tail() > positions[-1]


async def empty(local: LocalCluster, directory: Path, cluster: Cluster, *nodes: int) -> None:
    """Start nodes that were stopped with empty volumes."""
    while any(n.alive for n in (await cluster.status()).nodes if n.id in nodes):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    for node in nodes:
        shutil.rmtree(directory / f"vsn-{node}")
        await cluster.replace_node(node)
    await start(local, nodes)


async def test_of_two_chains_one_is_lost(tmp_path: Path) -> None:
    """The entries of the other chain are delivered, the loss never changes, and appends
    continue."""
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=2.5)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="chained", streams=2, replicas=1)
        positions = await append(log, 10)
        nodes = await holders(log)
        assert len(nodes) == 2
        lost = set(positions[::2])  # all at odd positions, which are on the second chain
        await stop(local, nodes)
        await empty(local, tmp_path, cluster, nodes[1])
        await start(local, nodes[:1])
        assert await seen(log, positions) == (set(positions) - lost, lost)
        assert f"continue at {positions[0] + 1}" in await told(log, 1, positions[-1])
        more = await append(log, 4)
        assert more[0] > positions[-1]
        await stop(local)
        await start(local)
        assert await seen(log, positions + more) == ({*positions, *more} - lost, lost)


async def test_a_chain_waits_for_the_node_that_may_have_it(tmp_path: Path) -> None:
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=2.5)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="chained", streams=1, replicas=2)
        positions = await append(log, 5)
        away, emptied = await holders(log)
        await stop(local, (away, emptied))
        await empty(local, tmp_path, cluster, emptied)
        waiting = f"start node {away}"
        while waiting not in (await log._parts.cached.fetch()).streams[0].condition:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        with pytest.raises((LoomError, TimeoutError)):
            async with asyncio.timeout(1):
                await log.read(positions[0])
        await local.start_node(away)
        assert await seen(log, positions) == (set(positions), set())


async def test_a_chain_is_lost_though_nobody_knows_how_far_it_was(tmp_path: Path) -> None:
    """The metadata repository was restarted, too: no position is given twice."""
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=2.5)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="chained", streams=1, replicas=1)
        positions = await append(log, 5)
        nodes = await holders(log)
        await stop(local, nodes)
        await local.stop_metadata()
        await local.start_metadata()
        await empty(local, tmp_path, cluster, *nodes)
        for _ in range(2):  # the first reader changes nothing for the second
            gaps = [gap async for gap in log.subscribe(1, positions[-1], gaps=True)]
            assert gaps == [Gap(1, positions[-1], "dataloss", exact=False)]
        [after] = await append(log, 1)
        assert after > positions[-1]
        whole = [gap async for gap in log.subscribe(1, after - 1, gaps=True)]
        assert whole == [Gap(1, after - 1, "dataloss", exact=False)]
        assert f"continue at {after}," in await told(log, 1, positions[-1])
        with pytest.raises(DataLoss, match=f"continue at {after}$"):
            await log.read(positions[0])
        assert (await log.read(after)).value == b"0"
        assert [e.position async for e in log.subscribe(after, after)] == [after]
        assert f"continue at {after}" in await told(log, after - 1, after)
