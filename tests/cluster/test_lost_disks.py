"""Readers are told when lost disks had the only copies of acknowledged entries."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from node_services import ordered_on
from poll import until

from loomlog import Cluster, connect
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses
from loomlog.client.log import Log
from loomlog.client.loglets.ordered.finder import OrderedFinder
from loomlog.core.copyset.record import epoch_of, last_of
from loomlog.errors import DataLoss
from loomlog.limits import REQUEST_TIMEOUT_S
from loomlog.testing import LocalCluster
from loomlog.types import Entry, Gap, Glsn
from loomlog.wire import loomlog_pb2 as pb

pytestmark = pytest.mark.timeout(120)
NODES = ("vsn-1", "vsn-2", "vsn-3")


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[LocalProcesses]:
    processes = LocalProcesses(ClusterPlan(directory, nodes=3, replace_after_s=120.0))
    await processes.start()
    try:
        yield processes
    finally:
        await processes.stop()


@asynccontextmanager
async def copyset_log(processes: LocalProcesses) -> AsyncIterator[Log]:
    async with await connect(processes.address) as cluster:
        yield await cluster.create_log("events", protocol="copyset", replicas=2, nodeset=3)


async def append(log: Log, count: int) -> list[Glsn]:
    return [(await log.append(b"%d" % number)).position for number in range(count)]


async def sequencer(log: Log) -> str:
    [stream] = (await log.describe()).streams
    assert stream.copyset is not None
    return f"vsn-{stream.copyset.sequencer}"


async def end(processes: LocalProcesses, how: signal.Signals, *names: str) -> None:
    await asyncio.gather(*(processes.end(name, how) for name in names))


async def start(processes: LocalProcesses, *names: str) -> None:
    await asyncio.gather(*map(processes.start_again, names))


async def start_empty(processes: LocalProcesses, directory: Path, *names: str) -> None:
    """Empty the volumes of some nodes, and start all."""
    for name in names:
        shutil.rmtree(directory / name)
        (directory / name).mkdir()
    async with await connect(processes.address) as cluster:
        for name in names:
            await replace(cluster, int(name.removeprefix("vsn-")))
    dead = [child.name for child in processes.children if child.process.returncode is not None]
    await start(processes, *dead)


async def replace(cluster: Cluster, node: int) -> None:
    """Let it come back empty, once it is missed."""
    while any(n.alive for n in (await cluster.status()).nodes if n.id == node):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await cluster.replace_node(node)


async def written(processes: LocalProcesses, log: Log) -> tuple[list[Glsn], str, str]:
    """Write 10 entries to the sequencer's node and x, and 20 more to that and y; read all 30. No
    node crashes, or another epoch would begin."""
    await append(log, 0)
    await log.tail()
    s = await sequencer(log)
    x, y = [name for name in NODES if name != s]
    await end(processes, signal.SIGTERM, y)
    positions = await append(log, 10)
    await start(processes, y)
    await end(processes, signal.SIGTERM, x)
    positions += await append(log, 20)
    await start(processes, x)
    assert [e.position async for e in log.subscribe(1, positions[-1])] == positions
    return positions, s, y


async def told(log: Log, first: Glsn) -> list[Gap | bytes]:
    """Return what a subscriber with gaps gets from the epoch of `first`."""
    after = (await log.append(b"after")).position
    found = [item async for item in log.subscribe(first, after, gaps=True)]
    here = last_of(epoch_of(first))
    return [
        item if isinstance(item, Gap) else item.value
        for item in found
        if (item.last if isinstance(item, Gap) else item.position) <= here
    ]


async def refused(log: Log, first: Glsn) -> str:
    """Return the error that a plain subscriber gets."""
    with pytest.raises(DataLoss) as caught:
        async for _ in log.subscribe(first, await log.tail()):
            pass
    return str(caught.value)


async def test_the_end_of_an_epoch_that_nobody_knows_any_more_is_lost(tmp_path: Path) -> None:
    async with running(tmp_path) as processes, copyset_log(processes) as log:
        positions, s, y = await written(processes, log)
        await end(processes, signal.SIGKILL, *NODES)
        await start_empty(processes, tmp_path, s, y)
        found = await told(log, positions[0])
        assert found[:10] == [b"%d" % number for number in range(10)]
        lost = [item for item in found[10:] if isinstance(item, Gap)]
        assert lost == found[10:]
        assert {gap.kind for gap in lost} == {"dataloss"}
        assert [lost[0].first, lost[-1].last] == [positions[10], last_of(1)]
        assert not lost[-1].exact
        for position in positions[10:]:
            with pytest.raises(DataLoss):
                await log.read(position)
        assert "how many is not known" in await refused(log, positions[-1] + 1)
        # On a slow machine another epoch may have begun before all nodes were gone.
        unknown = re.compile("how far epoch 1(, 2)? was acknowledged is not known")
        await until(log.describe, lambda info: unknown.search(info.streams[0].condition))


@pytest.mark.long
async def test_the_end_of_an_epoch_is_known_if_its_sequencer_stopped(tmp_path: Path) -> None:
    async with running(tmp_path) as processes, copyset_log(processes) as log:
        positions, s, y = await written(processes, log)
        await end(processes, signal.SIGTERM, *NODES)
        await start_empty(processes, tmp_path, s, y)
        found = await told(log, positions[0])
        assert found[10:] == [
            Gap(positions[10], positions[29], "dataloss"),
            Gap(positions[29] + 1, last_of(1), "bridge"),
        ]


async def test_all_disks_are_lost(tmp_path: Path) -> None:
    async with running(tmp_path) as processes, copyset_log(processes) as log:
        positions = await append(log, 3)
        await end(processes, signal.SIGTERM, *NODES)
        await start_empty(processes, tmp_path, *NODES)
        assert await told(log, positions[0]) == [
            Gap(positions[0], positions[2], "dataloss"),
            Gap(positions[2] + 1, last_of(1), "bridge"),
        ]
        with pytest.raises(DataLoss):
            await log.read(positions[1])
        assert str(positions[2]) in await refused(log, 1)
        assert (await append(log, 1))[0] > positions[-1]


@pytest.mark.long
async def test_a_sequencer_that_lives_knows_the_end_though_the_others_lost_their_disks(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as processes, copyset_log(processes) as log:
        positions = await append(log, 20)
        others = [name for name in NODES if name != await sequencer(log)]
        await end(processes, signal.SIGKILL, *others)
        await start_empty(processes, tmp_path, *others)
        while (await sequencer_epoch(log)) < 2:  # noqa: ASYNC110 - the cluster does it by itself
            await asyncio.sleep(0.05)
        found = await told(log, positions[0])
        gaps = [item for item in found if isinstance(item, Gap)]
        assert gaps.pop() == Gap(positions[-1] + 1, last_of(1), "bridge")
        assert all(gap.kind == "dataloss" and gap.exact for gap in gaps)
        missing = sum(gap.last - gap.first + 1 for gap in gaps)
        assert missing + sum(isinstance(item, bytes) for item in found) == len(positions)


async def sequencer_epoch(log: Log) -> int:
    [stream] = (await log.describe()).streams
    assert stream.copyset is not None
    return stream.copyset.last_clean + 1


async def test_a_node_without_its_replica_leaves_reads_to_the_others() -> None:
    """Otherwise an entry that is there would count as lost with another stream."""
    servers = LocalCluster(nodes=2)
    async with servers as cluster:
        log = await cluster.create_log("events", replicas=2)
        position = (await log.append(b"kept")).position
        [stream] = (await log._parts.cached.fetch()).streams
        lost = pb.LogStream(log_stream_id=stream.log_stream_id + 1, lost_from=1)
        finder = OrderedFinder("events", cluster._client)
        held = ordered_on(servers.nodes[1]).held
        replica = held.pop(stream.log_stream_id)
        try:
            for _ in range(20):  # each asks one of the two nodes first, by chance
                found = await finder.read([stream, lost], position)
                assert isinstance(found, Entry), found
        finally:
            held[stream.log_stream_id] = replica  # to be closed


async def test_a_search_by_time_meets_a_stream_that_is_lost_as_a_whole_at_once() -> None:
    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append(b"lost")
        await servers.wipe_node(1)
        await servers.start_node(1)
        kept = await log.append(b"kept")  # to another stream
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            with pytest.raises(DataLoss, match=f"continue at {kept.position}"):
                await log.find_time(0)
            later = (await log.read(kept.position)).timestamp + timedelta(microseconds=1)
            assert await log.find_time(later) == kept.position + 1
