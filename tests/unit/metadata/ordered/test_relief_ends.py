"""A stream that came to the relief of a log goes when it is not needed any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_requests import replicas
from keepers import stream_records
from scripted_node import ScriptedNode
from small_cluster import SmallCluster, told, write_all

from loomlog.metadata.ordered import relief
from loomlog.wire import loomlog_pb2 as pb


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relief, "PATIENCE_S", 0.0)
    monkeypatch.setattr(relief, "UNNEEDED_S", 0.2)
    monkeypatch.setattr(relief, "LOOK_S", 0.05)


def quick(tmp_path: Path) -> SmallCluster:
    return SmallCluster(tmp_path, failure_detection_s=0.4, heartbeat_s=0.05)


async def relieved(cluster: SmallCluster) -> list[ScriptedNode]:
    """Return three nodes; the last died, and the log goes on in stream 2 on the others."""
    nodes = await cluster.add_beating_nodes(3)
    await cluster.create(replicas=3)
    await nodes[2].crash()
    await cluster.log_is(lambda log: len(log.streams) == 2)
    await runs_on_both(cluster)
    return nodes


async def runs_on_both(cluster: SmallCluster) -> None:
    await cluster.until(lambda s: s.state == pb.RUNNING and {*replicas(s)} == {1, 2}, 2)


async def come_back(cluster: SmallCluster, node: ScriptedNode) -> None:
    await node.restart(cluster.address)
    node.start_heartbeat()


async def test_relief_without_entries_is_gone_when_the_node_is_back(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await relieved(cluster)
        await come_back(cluster, nodes[2])
        await cluster.log_is(lambda log: [s.log_stream_id for s in log.streams] == [1])
        await cluster.runs_on(1, 2, 3)
        for node in nodes:
            await node.until(lambda node=node: 2 not in node.replicas)  # type: ignore[misc]


async def test_relief_with_entries_is_sealed_and_goes_when_they_are_trimmed(
    tmp_path: Path,
) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await relieved(cluster)
        write_all(nodes[:2], 2, 3)
        await told(nodes[0], 2, 3)
        await come_back(cluster, nodes[2])
        stream = await cluster.until(lambda s: s.removing and s.state == pb.STREAM_SEALED, 2)
        assert stream.entries == 3
        record = stream_records(cluster.repository).stream(2)
        assert (record.relief, record.removing, record.sealed_at) == (True, True, 3)
        write_all(nodes, 1, 1)
        await told(nodes[0], 1, 4)
        await cluster.trim(3)
        await cluster.log_is(lambda log: [s.log_stream_id for s in log.streams] == [1])


async def test_relief_stays_while_another_stream_does_not_run(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        await relieved(cluster)
        await cluster.add_beating_nodes(1)  # the spare completes stream 2, and then stream 1
        await cluster.runs_on(1, 2, 4)
        await cluster.log_is(lambda log: [s.log_stream_id for s in log.streams] == [1])


async def test_a_new_leader_goes_on_with_it(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await relieved(cluster)
        await cluster.restart_repository()
        await cluster.rejoin(*nodes[:2])
        await runs_on_both(cluster)
        await come_back(cluster, nodes[2])
        await cluster.log_is(lambda log: [s.log_stream_id for s in log.streams] == [1])


async def test_a_stream_that_an_operator_added_stays(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await relieved(cluster)
        await cluster.change(pb.ChangeStream.ADD, log="events")
        await come_back(cluster, nodes[2])
        await cluster.log_is(lambda log: [s.log_stream_id for s in log.streams] == [1, 3])
