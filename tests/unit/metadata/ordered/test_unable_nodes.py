"""A node that could not do its part for a stream is asked again, without another event."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_cluster import SmallCluster, all_run, told, write_all

from loomlog.errors import LoomError
from loomlog.metadata.nodes import placement
from loomlog.wire import loomlog_pb2 as pb

UNABLE_S = 1.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "UNABLE_S", UNABLE_S)


async def test_a_replica_that_shows_up_while_its_node_counts_as_unable_is_used_again(
    tmp_path: Path,
) -> None:
    """The volume of the replica fails at the start of its node, and works again soon after."""
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 3)
        await told(nodes[1], 1, 3)
        await nodes[1].crash()
        unopened = dict(nodes[1].replicas)
        nodes[1].replicas.clear()
        nodes[1].refuse["add_log_stream"] = LoomError("the disk failed")
        nodes[1].conditions = pb.NodeConditions(unserved=[1])
        await nodes[1].join(cluster.address)
        await cluster.until(lambda s: "no spare node" in s.condition)
        unopened[1].self_seal()
        nodes[1].replicas = unopened
        nodes[1].report(1)
        await all_run(nodes, 1, epoch=2)


@pytest.mark.parametrize("order", ["add_log_stream", "sync_start"])
async def test_a_spare_that_was_given_up_is_tried_again_while_the_stream_runs(
    tmp_path: Path, order: str
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(3)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 3)
        await told(nodes[1], 1, 3)
        nodes[2].refuse[order] = LoomError("the disk failed")
        await cluster.change(pb.ChangeStream.ADD_REPLICA)
        await cluster.until(lambda s: "no spare node" in s.condition)
        nodes[2].refuse.clear()
        await cluster.runs_on(1, 2, 3)
