"""Each volume of a node is a shard: with a disk only its shard is lost, and the node continues."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from node_services import shard_on
from poll import until

from loomlog.client.log import Log
from loomlog.config import NodeSettings
from loomlog.core.copyset.messages import Delivered, Read
from loomlog.core.copyset.nodeset import node_of
from loomlog.core.copyset.record import LSN_MAX, Lsn
from loomlog.errors import InvalidArgument, Unavailable
from loomlog.metadata.catalog.records import Losses
from loomlog.node.workers import called_back
from loomlog.testing import LocalCluster
from loomlog.types import Gap, NodeId

pytestmark = pytest.mark.timeout(120)
PATIENCE_S = 30.0
SHARDS = ("1", "1/1", "2", "2/1", "3", "3/1")


class WithTwoVolumes(LocalCluster):
    """Three nodes with two volumes, or others."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory=directory, failure_detection_s=1.0)
        self.directory = directory
        self.names: dict[NodeId, tuple[str, ...]] = dict.fromkeys((1, 2, 3), ("a", "b"))

    def volume(self, node: NodeId, name: str) -> Path:
        return self.directory / f"vsn-{node}-{name}"

    def node_settings(self, node_id: NodeId) -> NodeSettings:
        volumes = [self.volume(node_id, name) for name in self.names[node_id]]
        for volume in volumes:
            volume.mkdir(exist_ok=True)
        return replace(super().node_settings(node_id), volumes=tuple(map(str, volumes)))


async def append(log: Log, first: int, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for number in range(first, first + count):
            await log.append(b"%d" % number)


async def read_all(log: Log) -> list[int]:
    async with asyncio.timeout(PATIENCE_S):
        stop = (await log.describe()).tail
        return [int(entry.value) async for entry in log.subscribe(start=1, stop=stop)]


async def nodeset(log: Log) -> tuple[str, ...]:
    [stream] = (await log.describe()).streams
    assert stream.copyset is not None
    return tuple(sorted(stream.copyset.history[-1].shards))


async def test_records_are_on_all_shards_and_on_different_nodes(tmp_path: Path) -> None:
    servers = WithTwoVolumes(tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", "copyset", replicas=2)
        assert await nodeset(log) == SHARDS
        appended = 0
        found: list[dict[Lsn, tuple[int, ...]]] = [{}]
        while not all(found):  # a shard that was slow once is left out for some seconds
            await append(log, appended, 60)
            appended += 60
            assert await read_all(log) == list(range(appended))
            await until(cluster.status, lambda status: not status.conditions)
            found = [await _copies_on(servers, node, each) for node in (1, 2, 3) for each in (0, 1)]
        for copysets in found:
            for copyset in copysets.values():
                assert len(set(map(node_of, copyset))) == 2
        assert len({first for copysets in found for first in copysets}) == appended


async def _copies_on(servers: LocalCluster, node: NodeId, index: int) -> dict[Lsn, tuple[int, ...]]:
    """Return the copysets of the records of a shard, each of which contains the shard."""
    shard = shard_on(servers.nodes[node], index)
    [loglet] = shard.volume.logs
    read = Read(loglet, 1, LSN_MAX, 1 << 24, everything=True)
    stamp = shard.copies.standing(loglet).stamp
    answer = await called_back(partial(shard.copies.ask, read, stamp))
    assert isinstance(answer, Delivered)
    assert all(shard.id in record.copyset for record in answer.records)
    return {record.first: record.copyset for record in answer.records}


async def test_another_volume_takes_the_place_of_a_lost_one(tmp_path: Path) -> None:
    servers = WithTwoVolumes(tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", "copyset", replicas=2)
        await append(log, 0, 40)
        await servers.stop_node(3)
        shutil.rmtree(servers.volume(3, "a"))
        with pytest.raises(InvalidArgument, match="is empty, but had data of this node"):
            await servers.start_node(3)
        lost = str(servers.volume(3, "a"))
        with pytest.raises(Unavailable, match="start it without volume"):
            await cluster.replace_volume(3, lost)
        servers.names[3] = ("b",)
        await servers.start_node(3)
        with pytest.raises(InvalidArgument, match=f"missing: {lost}"):
            await cluster.replace_volume(3, str(servers.volume(3, "b")))
        assert "is refused from now on" in (await cluster.replace_volume(3, lost)).done
        await servers.stop_node(3)
        servers.names[3] = ("c", "b")
        await servers.start_node(3)
        assert [shard_on(servers.nodes[3], index).volume.is_lost for index in (0, 1)] == [
            True,
            False,
        ]
        await append(log, 40, 20)
        assert await read_all(log) == list(range(60))
        await until(lambda: _is_intact(log))
        assert await nodeset(log) == SHARDS


async def test_a_wrong_mount_on_all_nodes_is_undone(tmp_path: Path) -> None:
    """A node does not start with an empty directory in place of a volume. Without the volume it
    starts, and lacks its copies until the volume is back."""
    servers = WithTwoVolumes(tmp_path)
    async with servers as cluster:
        protocols = ("ordered", "chained", "copyset")
        logs = [
            await cluster.create_log(f"{name}-{number}", name, replicas=2)
            for name in protocols
            for number in range(3)
        ]
        for log in logs:
            await append(log, 0, 10)
        for node in (1, 2, 3):
            await servers.stop_node(node)
            servers.names[node] = ("a", "typo")
            with pytest.raises(InvalidArgument, match=f"loom node replace {node} --volume"):
                await servers.start_node(node)
            servers.names[node] = ("a",)
            await servers.start_node(node)

        async def are_missed() -> bool:
            kinds = [each.kind for each in (await cluster.status()).conditions]
            return kinds.count("volume-missing") == 3

        await until(are_missed)
        for node in (1, 2, 3):
            await servers.stop_node(node)
            servers.names[node] = ("a", "b")
            await servers.start_node(node)
        for log in logs:
            await append(log, 10, 10)
            assert await read_all(log) == list(range(20)), log.name


async def test_what_was_only_on_volumes_that_were_given_up_is_lost(tmp_path: Path) -> None:
    servers = WithTwoVolumes(tmp_path)
    async with servers as cluster:
        logs = [
            await cluster.create_log(f"{name}-{number}", name, replicas=1)
            for name in ("ordered", "chained")
            for number in range(6)
        ]
        for log in logs:
            await append(log, 0, 5)
        for node in (1, 2, 3):
            await servers.stop_node(node)
        for node in (1, 2, 3):
            shutil.rmtree(servers.volume(node, "b"))
            servers.names[node] = ("a",)
            await servers.start_node(node)
        for node in (1, 2, 3):
            await cluster.replace_volume(node, str(servers.volume(node, "b")))
            await servers.stop_node(node)
            servers.names[node] = ("a", "b")
            await servers.start_node(node)
        lost = set()
        for log in logs:
            async with asyncio.timeout(PATIENCE_S):
                found = [each async for each in log.subscribe(1, 5, gaps=True)]
                assert (await log.append(b"5")).position >= 6
            values = [int(each.value) for each in found if not isinstance(each, Gap)]
            if not values:
                assert found == [Gap(1, 5, "dataloss")]
                lost.add(log.name.partition("-")[0])
            else:
                assert (values, len(found)) == (list(range(5)), 5)
        assert lost == {"ordered", "chained"}


async def _is_intact(log: Log) -> bool:
    """Return whether there are no conditions, because all lost copies are rebuilt."""
    [stream] = (await log.describe()).streams
    return not stream.condition


async def test_a_node_goes_on_without_a_volume(tmp_path: Path) -> None:
    servers = WithTwoVolumes(tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", "copyset", replicas=3)
        await append(log, 0, 40)
        await servers.stop_node(3)
        servers.names[3] = ("b",)
        await servers.start_node(3)
        await append(log, 40, 20)
        assert await read_all(log) == list(range(60))

        async def is_without() -> bool:
            return await nodeset(log) == tuple(shard for shard in SHARDS if shard != "3")

        await until(is_without)


async def test_a_volume_that_was_left_out_for_a_run_counts_as_intact(tmp_path: Path) -> None:
    """A volume is compared only with itself, not with the other one, which has newer data."""
    servers = WithTwoVolumes(tmp_path)
    async with servers as cluster:
        protocols = ("ordered", "chained", "copyset")
        logs = [await cluster.create_log(name, name, replicas=2) for name in protocols]
        for log in logs:
            await append(log, 0, 20)
        for names in (("b",), ("a", "b")):
            await servers.stop_node(3)
            servers.names[3] = names
            await servers.start_node(3)
            for log in logs:
                await append(log, 20 if len(names) == 1 else 40, 20)
        assert _losses(servers, 3) == {}
        for log in logs:
            assert await read_all(log) == list(range(60))


async def test_an_older_copy_of_a_volume_is_that_of_a_shard(tmp_path: Path) -> None:
    servers = WithTwoVolumes(tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", "copyset", replicas=2)
        await append(log, 0, 20)
        await servers.stop_node(3)
        shutil.copytree(servers.volume(3, "b"), tmp_path / "copy")
        await servers.start_node(3)
        await append(log, 20, 20)
        await servers.stop_node(3)
        shutil.rmtree(servers.volume(3, "b"))
        shutil.move(tmp_path / "copy", servers.volume(3, "b"))
        await servers.start_node(3)
        assert set(_losses(servers, 3)) == {"copyset/1"}
        await append(log, 40, 20)
        assert await read_all(log) == list(range(60))


async def test_a_drained_volume_is_left_out_without_a_spare_node(tmp_path: Path) -> None:
    """Another volume of the same node takes its copies, so every record keeps all of them."""
    servers = WithTwoVolumes(tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", "copyset", replicas=3)
        await append(log, 0, 40)
        name = str(servers.volume(3, "a"))
        change = await cluster.drain_volume(3, name)
        assert change.replicas_left == 1
        await append(log, 40, 20)

        async def is_empty() -> bool:
            return not (await cluster.drain_volume(3, name)).replicas_left

        await until(is_empty)
        assert await nodeset(log) == tuple(shard for shard in SHARDS if shard != "3")
        copies = await _copies_on(servers, 3, 1)
        assert len(copies) >= 60, "each has a copy on node 3, and bridges"
        assert all(shard_on(servers.nodes[3], 0).id not in copyset for copyset in copies.values())
        await servers.stop_node(3)
        shutil.rmtree(servers.volume(3, "a"))
        servers.names[3] = ("b",)
        await servers.start_node(3)
        await append(log, 60, 20)
        assert await read_all(log) == list(range(80))

        async def is_well() -> bool:
            return not (await cluster.status()).conditions

        await cluster.replace_volume(3, name)
        await until(is_well)
        servers.names[3] = ("c", "b")
        await servers.stop_node(3)
        await servers.start_node(3)

        async def has_all_shards() -> bool:
            return await nodeset(log) == SHARDS

        await until(has_all_shards)  # the new volume takes the place of the one that was given up
        name = str(servers.volume(3, "c"))
        await until(is_empty)
        assert await read_all(log) == list(range(80))


def _losses(servers: LocalCluster, node: NodeId) -> dict[str, Losses]:
    assert servers.metadata is not None
    assert servers.metadata.term is not None
    return servers.metadata.term.catalog.nodes[node].losses
