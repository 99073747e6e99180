"""Seal and unseal by itself (docs/design/ordered.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hand_worker import HandWorker
from scripted_node import ScriptedNode
from small_cluster import SmallCluster, all_run, commits, told, write_all

from loomlog.errors import Unavailable
from loomlog.metadata.ordered.repair_steps import RepairSteps
from loomlog.types import ReplicaState
from loomlog.wire import loomlog_pb2 as pb


async def test_a_restarted_node_is_sealed_unsealed_and_used_again(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 3)
        await told(nodes[1], 1, 3)
        await nodes[1].restart(cluster.address)
        await all_run(nodes, 1, epoch=2)
        write_all(nodes, 1, 2)
        await told(nodes[1], 1, 5)
        assert nodes[0].orders == [
            *("add 1", "seal 1 epoch 1", "unseal 1 epoch 1"),
            *("seal 1 epoch 2", "unseal 1 epoch 2"),
        ]


async def test_backups_are_unsealed_before_the_primary(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(3)
        order: list[int] = []
        for node in nodes:
            node.unsealed = order.append
        log = await cluster.create(replicas=3)
        primary = log.streams[0].replicas[0].storage_node_id
        assert order[-1] == primary
        assert sorted(order) == [1, 2, 3]


async def test_a_node_that_stays_away_leaves_its_streams_sealed_and_the_others_running(
    tmp_path: Path,
) -> None:
    async with SmallCluster(
        tmp_path, failure_detection_s=0.3, heartbeat_s=0.05, replace_after_s=60.0
    ) as cluster:
        nodes = await cluster.add_nodes(3)
        for node in nodes:
            node.start_heartbeat()
        log = await cluster.create(streams=3, replicas=2)
        gone = nodes[2]
        hurt = [
            s.log_stream_id for s in log.streams if 3 in [r.storage_node_id for r in s.replicas]
        ]
        (safe,) = {s.log_stream_id for s in log.streams} - set(hurt)
        await gone.crash()
        for stream_id in hurt:
            (left,) = (n for n in nodes[:2] if stream_id in n.replicas)
            replica = left.replicas[stream_id]
            await left.until(lambda replica=replica: replica.state is ReplicaState.SEALED)  # type: ignore[misc]
        tail = (await cluster.bounds())[1]
        write_all(nodes[:2], safe, 1)
        await told(nodes[0], safe, tail + 1)

        await gone.restart(cluster.address)
        gone.start_heartbeat()
        for stream_id in hurt:
            await all_run([n for n in nodes if stream_id in n.replicas], stream_id)
        assert {s.state for s in (await cluster.describe()).streams} == {pb.RUNNING}


async def test_a_node_that_falls_silent_is_sealed_out_until_it_speaks_again(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path, failure_detection_s=0.3, heartbeat_s=0.05) as cluster:
        nodes = await cluster.add_nodes(2)
        for node in nodes:
            node.start_heartbeat()
        await cluster.create(replicas=2)
        nodes[1].stop_heartbeat()  # the connection stays
        await nodes[0].until(lambda: "seal 1 epoch 2" in nodes[0].orders)
        nodes[1].start_heartbeat()
        await all_run(nodes, 1)
        write_all(nodes, 1, 1)
        await told(nodes[1], 1, 1)


async def test_a_replica_that_seals_itself_makes_the_stream_start_over(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        nodes[0].replicas[1].self_seal()
        nodes[0].report(1)
        await all_run(nodes, 1, epoch=2)


async def test_an_unseal_that_fails_is_begun_again_in_the_next_epoch(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        nodes[0].refuse["unseal"] = Unavailable("not now")
        await nodes[1].restart(cluster.address)
        await nodes[1].until(lambda: "seal 1 epoch 3" in nodes[1].orders)
        nodes[0].refuse.clear()
        await all_run(nodes, 1)
        write_all(nodes, 1, 2)
        await told(nodes[0], 1, 2)


async def test_a_seal_that_was_begun_before_a_restart_is_finished_after_it(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        for node in nodes:
            node.refuse["seal"] = Unavailable("not now")
        await nodes[1].restart(cluster.address)
        client = cluster.client
        while (await cluster.describe()).streams[0].seal_epoch < 2:
            pass
        assert client.connection is not None
        await cluster.restart_repository()
        assert (await cluster.describe()).streams[0].seal_epoch >= 2
        for node in nodes:
            node.refuse.clear()
            await node.join(cluster.address)
        await all_run(nodes, 1)
        write_all(nodes, 1, 1)
        await told(nodes[0], 1, 1)


async def test_a_node_that_comes_back_empty_is_filled_again(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 3)
        await told(nodes[1], 1, 3)
        await lose_disk(nodes[1])
        await cluster.replace_node(2)
        await nodes[1].join(cluster.address)
        await all_run(nodes, 1, epoch=2)
        assert nodes[1].orders[-4:] == [
            "add 1",
            "seal 1 epoch 2",
            "seal 1 epoch 2",
            "unseal 1 epoch 2",
        ]
        assert commits(nodes[1], 1) == [(1, 1, 3)]
        write_all(nodes, 1, 1)
        await told(nodes[1], 1, 4)


async def test_the_only_replica_that_comes_back_empty_leaves_the_stream_sealed(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        await cluster.create(replicas=1)
        node.write(1, 3)
        await told(node, 1, 3)
        await lose_disk(node)
        await cluster.replace_node(1)
        await node.join(cluster.address)
        stream = await cluster.until(lambda s: "from LLSN 1 on is lost" in s.condition)
        assert (stream.state != pb.RUNNING, stream.lost_from) == (True, 1)
        assert 1 not in node.replicas, "an empty one would hide the loss"


async def test_a_log_that_lost_all_its_streams_gets_another(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 3)
        await told(nodes[1], 1, 3)
        for node in nodes:
            await lose_disk(node)
        for node in nodes:
            await cluster.replace_node(node.node_id)
            await node.join(cluster.address)
        await all_run(nodes, 2)
        write_all(nodes, 2, 1)
        await told(nodes[0], 2, 4)
        assert (await cluster.stream(1)).lost_from == 1
        assert [sorted(node.replicas) for node in nodes] == [[2], [2]], "one is enough"


async def test_a_loss_is_told_whatever_else_is_wrong_with_the_node(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        await cluster.create(replicas=1)
        node.write(1, 3)
        await told(node, 1, 3)
        await lose_disk(node)
        await cluster.replace_node(1)
        node.conditions = pb.NodeConditions(
            conditions=[pb.Condition(text="a volume is nearly full")], unserved=[2]
        )
        await node.join(cluster.address)
        await cluster.until(lambda s: s.lost_from == 1)


async def test_nothing_is_called_lost_that_a_node_has_and_cannot_serve(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        await cluster.create(replicas=1)
        node.write(1, 3)
        await told(node, 1, 3)
        await lose_disk(node)
        await cluster.replace_node(1)
        node.conditions = pb.NodeConditions(unserved=[1])
        await node.join(cluster.address)
        waiting = await cluster.until(lambda s: "no live replica has every" in s.condition)
        assert not waiting.lost_from
        await node.crash()
        node.conditions = pb.NodeConditions()
        await node.join(cluster.address)
        await cluster.until(lambda s: s.lost_from == 1)


async def lose_disk(node: ScriptedNode) -> None:
    await node.crash()
    node.replicas.clear()
    node.commits.clear()
    node.cluster_secret, node.node_secret = "", "another"


async def test_a_seal_waits_for_the_round_that_is_under_way(tmp_path: Path) -> None:
    """The round was decided before the seal, which must not drop what it commits."""
    worker = HandWorker()
    async with SmallCluster(tmp_path, worker=worker) as cluster:
        (node,) = await cluster.add_nodes(1)
        await cluster.create(replicas=1)
        node.write(1, 2)
        await worker.arrived.wait()
        node.replicas[1].self_seal()
        node.report(1)
        for _ in range(5):
            await node.ask(pb.Frame(get_bounds=pb.GetBounds(name="events")))
        assert "seal 1 epoch 2" not in node.orders
        worker.work()
        await all_run([node], 1, epoch=2)
        await told(node, 1, 2)
        assert node.replicas[1].next_llsn == 3
        assert await cluster.bounds() == (1, 2)


async def test_a_step_that_fails_unexpectedly_is_logged_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    carry_out = RepairSteps.carry_out
    fails = iter(range(4))  # more often than anything else wakes it

    async def fail_at_first(*given: Any) -> bool:
        if next(fails, None) is not None:
            raise ZeroDivisionError
        return await carry_out(*given)

    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        monkeypatch.setattr(RepairSteps, "carry_out", fail_at_first)
        await nodes[1].restart(cluster.address)
        await all_run(nodes, 1, epoch=2)
    assert any(record.exc_info for record in caplog.records)
