"""Who may join (spec 1, "Storage node: volumes and start", identity)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scripted_node import ScriptedNode
from small_cluster import SmallCluster

from loomlog.errors import AlreadyExists, InvalidArgument, Unauthorized
from loomlog.metadata import MetadataRepository


async def test_a_new_node_gets_the_secret_of_the_cluster(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, heartbeat_s=0.7) as cluster:
        node = ScriptedNode(1)
        answer = await node.join(cluster.address)
        assert answer.cluster_id == "test"
        assert len(answer.cluster_secret) == 32
        assert answer.heartbeat_s == 0.7
        (status,) = (await cluster.status()).nodes
        assert (status.storage_node_id, status.alive, status.sync_mode) == (1, True, "always")
        await node.disconnect()


async def test_the_secret_outlives_a_restart(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        secret = node.cluster_secret
        await cluster.restart_repository()
        await node.join(cluster.address)
        assert node.cluster_secret == secret


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("cluster_id", "other", "expected 'test', found 'other'"),
        ("cluster_secret", "feedfacefeedface", "found 'feedfa…'"),
        ("node_secret", "somebody else", "expected 'secret…', found 'somebo…'"),
    ],
)
async def test_a_stranger_is_told_what_was_expected_and_found(
    tmp_path: Path, field: str, value: str, told: str
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        await node.disconnect()
        setattr(node, field, value)
        with pytest.raises(Unauthorized, match=told):
            await node.join(cluster.address)
        await node.disconnect()


async def test_secrets_that_only_begin_alike_are_not_the_same(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        await node.disconnect()
        node.cluster_secret = node.cluster_secret[:10]
        with pytest.raises(Unauthorized):
            await node.join(cluster.address)


async def test_a_second_process_with_the_same_node_id_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        twin = ScriptedNode(1)
        twin.node_secret = "another"
        with pytest.raises(AlreadyExists, match="node 1 is connected already"):
            await twin.join(cluster.address)
        await twin.disconnect()
        assert node.connection is not None


async def test_a_node_that_registers_again_replaces_its_old_connection(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        again = ScriptedNode(1)
        again.cluster_secret = node.cluster_secret
        await again.join(cluster.address)
        await node.until(lambda: node.connection is None)
        assert (await cluster.status()).nodes[0].alive
        await again.disconnect()


async def test_a_node_without_an_id_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        node = ScriptedNode(0)
        with pytest.raises(InvalidArgument, match="id above 0"):
            await node.join(cluster.address)
        await node.disconnect()


async def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        settings = cluster.settings
    other = MetadataRepository(replace(settings, cluster_id="other"))
    with pytest.raises(InvalidArgument, match="belongs to cluster 'test', not 'other'"):
        await other.start()
    await other.stop()
