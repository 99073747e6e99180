"""Before a volume reaches its limit, appends use other volumes or are refused, and everything else
continues; a volume with room is used again."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from poll import until
from scrape import values

from loomlog import Cluster, Log, connect, limits
from loomlog.config import NodeSettings, StorageSettings, VolumeLimit
from loomlog.errors import Busy, Retryable, Sealed
from loomlog.limits import MIB
from loomlog.storage.disk import RealFiles
from loomlog.testing import LocalCluster
from loomlog.types import NodeId
from loomlog.wire.info import VolumeInfo

pytestmark = pytest.mark.timeout(120)

PROTOCOLS = ["ordered", "chained", "copyset"]
LIMIT = 40 * MIB
AT_MOST = 48 * MIB  # with what is under way: the reserve of such a small limit is small, too
SIZE = 500_000
ENOUGH = 150  # entries that do not fit


class LimitedCluster(LocalCluster):
    """A cluster whose nodes have limits."""

    def __init__(self, nodes: int, directory: Path, limited: set[NodeId]) -> None:
        small_files = StorageSettings(data_file_bytes=4 * MIB)
        super().__init__(nodes, directory=directory, storage=small_files)
        self.limited = limited

    def node_settings(self, node_id: NodeId) -> NodeSettings:
        settings = super().node_settings(node_id)
        if node_id not in self.limited:
            return settings
        [volume] = settings.volumes
        return replace(settings, volume_limits={volume: VolumeLimit(LIMIT)})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VOLUME_LOOK_S", 0.1)
    monkeypatch.setattr(limits, "VOLUME_MEASURE_S", 0.01)
    monkeypatch.setattr("loomlog.node.chained.volumes.RECLAIM_AFTER_S", 0.1)
    monkeypatch.setattr("loomlog.node.copyset.logs_volume.TEND_S", 0.1)
    monkeypatch.setattr("loomlog.node.copyset.sequencers.REFRESH_S", 0.02)


async def volume_of(cluster: Cluster, node: NodeId) -> VolumeInfo:
    [volume] = next(n.volumes for n in (await cluster.status()).nodes if n.id == node)
    return volume


async def append_until_busy(address: str, count: int) -> tuple[list[int], str]:
    """Append until it is refused for lack of room; return the positions, and the message."""
    async with await connect(address) as client:
        log, positions = client.log("events"), list[int]()
        while len(positions) < count:
            value = b"%06d" % len(positions) + bytes(SIZE)
            try:
                positions.append((await log.append(value, fail_fast=True)).position)
            except Busy as error:
                return positions, str(error)
            except (Retryable, Sealed):
                pass  # not appended: nodes that were restarted may not know each other yet
    raise AssertionError(f"{count} entries were taken")


async def read_all(log: Log, first: int, last: int) -> list[int]:
    return [int(entry.value[:6]) async for entry in log.subscribe(first, last)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_appends_are_refused_before_the_limit_and_continue_after_a_trim(
    protocol: str, tmp_path: Path
) -> None:
    local = LimitedCluster(1, tmp_path, {1})
    async with local as cluster:
        log = await cluster.create_log("events", protocol, 1, 1)
        positions, message = await append_until_busy(local.address, ENOUGH)
        assert f"node 1: volume {tmp_path}/vsn-1 takes no appends, " in message
        assert "MiB of its limit of 40 MiB are used: free space, trim logs, add nodes" in message
        assert "raise its --volume-limit" in message
        assert RealFiles().used(f"{tmp_path}/vsn-1") <= AT_MOST
        # Until it is counted again, what others write to the same file system is included.
        volume = await until(
            lambda: volume_of(cluster, 1), lambda volume: 0.9 * LIMIT < volume.used <= AT_MOST
        )
        assert (volume.limit, volume.full, volume.failed) == (LIMIT, True, False)
        full = re.compile("node 1.*: volume .* takes no appends, ")
        info = await until(log.describe, lambda info: full.search(info.streams[0].condition))
        assert info.streams[0].state == "running"
        [waits] = [c for c in (await cluster.status()).conditions if c.severity == "problem"]
        assert (waits.kind, waits.log) == ("appends-wait", "events")
        assert await read_all(log, 1, positions[-1]) == list(range(len(positions)))
        await log.trim(positions[-1])
        async with asyncio.timeout(60):
            at = await log.append(b"%06d" % 777)
        assert await read_all(log, at.position, at.position) == [777]
        await until(lambda: _is_well(cluster, log))


async def _is_well(cluster: Cluster, log: Log) -> bool:
    [node] = (await cluster.status()).nodes
    return not (node.conditions or (await log.describe()).streams[0].condition)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_full_node_behind_the_first_one_is_named(protocol: str, tmp_path: Path) -> None:
    local = LimitedCluster(2, tmp_path, set())
    async with local as cluster:
        log = await cluster.create_log("events", protocol, 1, 2)
        await log.append(b"%06d" % 0)
        [stream] = (await log.describe()).streams
        backup = (stream.chains[0] if stream.chains else [r.node for r in stream.replicas])[-1]
        await restart_limited(local, cluster, backup)
        positions, message = await append_until_busy(local.address, ENOUGH)
        assert f"node {backup}: volume {tmp_path}/vsn-{backup} takes no appends, " in message
        volume = await volume_of(cluster, backup)
        assert volume.full
        assert RealFiles().used(f"{tmp_path}/vsn-{backup}") <= AT_MOST
        tail = await log.tail()
        assert await read_all(log, positions[0], tail) == list(range(len(positions)))


async def restart_limited(local: LimitedCluster, cluster: Cluster, node: NodeId) -> None:
    await local.stop_node(node)
    local.limited.add(node)
    await local.start_node(node)

    async def has_limit() -> bool:
        volumes = next(n.volumes for n in (await cluster.status()).nodes if n.id == node)
        return bool(volumes and volumes[0].limit)

    await until(has_limit)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_appends_continue_on_nodes_with_room(
    protocol: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = LimitedCluster(4, tmp_path, set())
    async with local as cluster:
        log = await cluster.create_log("events", protocol, 1, 3)
        first = (await log.append(b"%06d" % 0 + bytes(SIZE))).position
        [stream] = (await log.describe()).streams
        full = (stream.chains[0] if stream.chains else [r.node for r in stream.replicas])[1]
        await restart_limited(local, cluster, full)
        last = 0
        for number in range(1, ENOUGH):
            async with asyncio.timeout(20):
                last = (await log.append(b"%06d" % number + bytes(SIZE))).position
        assert RealFiles().used(f"{tmp_path}/vsn-{full}") <= AT_MOST
        assert f"{tmp_path}/vsn-{full} takes no appends" in caplog.text, "what moved away frees it"
        assert await read_all(log, first, last) == list(range(ENOUGH))


async def test_status_and_metrics_show_the_space(tmp_path: Path) -> None:
    local = LimitedCluster(2, tmp_path, {2})
    async with local as cluster:
        await cluster.create_log("events", "ordered", 1, 2)

        async def is_measured() -> bool:
            nodes = (await cluster.status()).nodes
            return all(node.volumes and node.volumes[0].used for node in nodes)

        await until(is_measured)
        free, limited = await volume_of(cluster, 1), await volume_of(cluster, 2)
        assert (free.limit, limited.limit) == (None, LIMIT)
        assert 0 < free.free < free.total
        assert local.metadata is not None
        term = local.metadata.term
        assert term is not None
        metrics = values(await local.metadata.metrics())
        label = f'{{node="2",volume="{tmp_path}/vsn-2"}}'
        assert metrics[f"loomlog_volume_limit_bytes{label}"] == LIMIT
        assert metrics[f"loomlog_volume_full{label}"] == 0
        [_, node] = (await term.view.as_dict())["nodes"]
        assert node["volumes"][0]["limit"] == LIMIT


class OneLimited(LocalCluster):
    """Nodes with two volumes, the second of which has a limit."""

    def node_settings(self, node_id: NodeId) -> NodeSettings:
        settings = super().node_settings(node_id)
        [first] = settings.volumes
        second = f"{first}-b"
        Path(second).mkdir(exist_ok=True)
        limits = {second: VolumeLimit(LIMIT)}
        return replace(settings, volumes=(first, second), volume_limits=limits)


async def test_a_full_volume_leaves_the_other_one_to_copies(tmp_path: Path) -> None:
    async with OneLimited(2, directory=tmp_path) as cluster:
        log = await cluster.create_log("events", "copyset", 1, 2)
        positions = []
        for number in range(2 * ENOUGH):
            async with asyncio.timeout(20):
                positions.append((await log.append(b"%06d" % number + bytes(SIZE))).position)
        for node in (1, 2):
            assert RealFiles().used(f"{tmp_path}/vsn-{node}-b") <= AT_MOST
            assert RealFiles().used(f"{tmp_path}/vsn-{node}") > LIMIT
        assert await read_all(log, positions[0], positions[-1]) == list(range(2 * ENOUGH))
