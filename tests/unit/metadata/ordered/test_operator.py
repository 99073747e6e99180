"""Operators' changes of streams, and the answers to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_requests import replicas
from keepers import stream_records
from operated_cluster import goes_on, quick, started
from small_cluster import commits

from loomlog.errors import InvalidArgument, LoomError, NotFound, Unavailable
from loomlog.types import ReplicaState
from loomlog.wire import loomlog_pb2 as pb

CHANGE, NODE = pb.ChangeStream, pb.ChangeNode


# ---- seal and unseal


async def test_a_sealed_stream_stays_sealed_over_restarts_until_it_is_unsealed(
    tmp_path: Path,
) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        changed = await cluster.change(CHANGE.SEAL)
        assert changed.done == "stream 1 is sealed after 3 entries"
        assert "loom stream unseal 1" in changed.next
        assert {node.replicas[1].state for node in nodes} == {ReplicaState.SEALED}
        assert (await cluster.stream()).condition == "sealed by an operator"

        await cluster.restart_repository()
        await cluster.rejoin(*nodes)
        await nodes[1].restart(cluster.address)
        nodes[1].start_heartbeat()
        stream = await cluster.until(lambda s: s.condition == "sealed by an operator")
        assert stream.state == pb.STREAM_SEALED

        changed = await cluster.change(CHANGE.UNSEAL)
        assert changed.done.startswith("stream 1 runs in epoch")
        await goes_on(cluster, nodes)


async def test_seal_and_unseal_may_be_repeated(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        await started(cluster, 2)
        await cluster.change(CHANGE.SEAL)
        epoch = (await cluster.stream()).seal_epoch
        await cluster.change(CHANGE.SEAL)
        await cluster.change(CHANGE.UNSEAL)
        await cluster.change(CHANGE.UNSEAL)
        assert (await cluster.stream()).seal_epoch == epoch


async def test_an_unseal_that_must_wait_says_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loomlog.metadata.ordered.stream_operator.WAIT_S", 0.1)
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        await cluster.change(CHANGE.SEAL)
        await nodes[1].crash()
        await cluster.until(lambda s: "node 2" in s.condition)
        changed = await cluster.change(CHANGE.UNSEAL)
        assert changed.done == "stream 1 is to run"
        assert "waiting for node 2" in changed.next


# ---- add


async def test_a_stream_is_added_to_a_log_that_goes_on(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3, entries=5)
        before = (await cluster.describe()).version
        changed = await cluster.change(CHANGE.ADD, log="events")
        assert changed.log_stream_id == 2
        assert changed.done == "log 'events' has a new stream 2 on nodes 3, 2"
        log = await cluster.describe()
        assert [s.log_stream_id for s in log.streams] == [1, 2]
        assert log.version > before
        assert log.streams[1].state == pb.RUNNING
        on_new = [nodes[2], nodes[1]]
        await goes_on(cluster, on_new, 2)
        assert commits(nodes[2], 2) == [(6, 1, 1)], "it goes on where the log is"
        await goes_on(cluster, nodes[:2])

        await cluster.restart_repository()
        await cluster.rejoin(*nodes)
        await cluster.runs_on(3, 2, stream_id=2)
        await goes_on(cluster, on_new, 2)


async def test_a_stream_that_a_node_refuses_is_taken_back(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        nodes[1].refuse["add_log_stream"] = LoomError("the disk is full")
        with pytest.raises(LoomError, match="the disk is full"):
            await cluster.change(CHANGE.ADD, log="events")
        assert [s.log_stream_id for s in (await cluster.describe()).streams] == [1]
        await nodes[0].until(lambda: 2 not in nodes[0].replicas)
        nodes[1].refuse.clear()
        assert (await cluster.change(CHANGE.ADD, log="events")).log_stream_id == 3
        await goes_on(cluster, nodes)


async def test_an_addition_that_a_restart_interrupts_is_finished(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        records = stream_records(cluster.repository)
        log = records.catalog.log("events")
        await records.add_streams(log, 1, [(1, 2)])  # written down, and nobody was told
        await cluster.restart_repository()
        await cluster.rejoin(*nodes)
        await cluster.runs_on(1, 2, stream_id=2)
        await goes_on(cluster, nodes, 2)


async def test_a_log_that_does_not_exist_gets_no_stream(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        with pytest.raises(NotFound, match="'nothing'"):
            await cluster.change(CHANGE.ADD, log="nothing")


async def test_a_stream_is_added_on_the_nodes_that_an_operator_names(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        await started(cluster, 3)
        changed = await cluster.change(CHANGE.ADD, log="events", nodes=[2, 1])
        assert changed.done == "log 'events' has a new stream 2 on nodes 2, 1"
        await cluster.runs_on(2, 1, stream_id=2)
        for nodes, error, told_ in (
            ([1, 9], NotFound, "no node 9"),
            ([1], InvalidArgument, "has 2 replicas: name as many"),
            ([1, 1], InvalidArgument, "as many different nodes"),
        ):
            with pytest.raises(error, match=told_):
                await cluster.change(CHANGE.ADD, log="events", nodes=nodes)
        await cluster.change_node(NODE.DRAIN, 3)
        with pytest.raises(InvalidArgument, match="node 3 is away, drained"):
            await cluster.change(CHANGE.ADD, log="events", nodes=[1, 3])


# ---- the primary


async def test_an_operator_chooses_the_primary(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        changed = await cluster.change(CHANGE.PRIMARY, to_node=2)
        assert changed.done == "node 2 is the primary of stream 1"
        await cluster.runs_on(2, 1)
        await goes_on(cluster, nodes)
        again = await cluster.change(CHANGE.PRIMARY, to_node=2)
        assert again.done == "node 2 is the primary of stream 1 already"
        await cluster.add_beating_nodes(1)
        with pytest.raises(InvalidArgument, match="no replica of stream 1"):
            await cluster.change(CHANGE.PRIMARY, to_node=3)


async def test_a_choice_of_the_primary_is_fulfilled_when_its_node_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loomlog.metadata.ordered.stream_operator.WAIT_S", 0.1)
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        await nodes[1].crash()
        await cluster.until(lambda s: "node 2" in s.condition)
        changed = await cluster.change(CHANGE.PRIMARY, to_node=2)
        assert changed.done == "node 2 is to be the primary of stream 1"
        assert "waiting for node 2" in changed.next
        await cluster.restart_repository()
        await cluster.rejoin(nodes[0])
        await nodes[1].restart(cluster.address)
        nodes[1].start_heartbeat()
        await cluster.runs_on(2, 1)


# ---- a chosen source


async def test_a_replica_is_filled_from_the_source_that_an_operator_names(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4, replicas=3)
        for node in nodes[:3]:
            node.copies_at_once = 0
        await cluster.change(CHANGE.ADD_REPLICA, to_node=4)
        await cluster.until(lambda s: s.condition.startswith("copying from node 3"))
        changed = await cluster.change(CHANGE.SYNC, from_node=1, to_node=4)
        assert changed.done == "stream 1 is copied from node 1 to node 4"
        await cluster.until(lambda s: s.condition.startswith("copying from node 1"))
        for node in nodes[:3]:
            node.copies_at_once = None
        await cluster.runs_on(1, 2, 3, 4)
        changed = await cluster.change(CHANGE.SYNC, from_node=1, to_node=4)
        assert changed.done == "node 4 has all 3 entries of stream 1 already"


async def test_a_source_must_have_everything_and_be_another(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        with pytest.raises(InvalidArgument, match="from itself"):
            await cluster.change(CHANGE.SYNC, from_node=1, to_node=1)
        with pytest.raises(InvalidArgument, match="node 3 has no replica"):
            await cluster.change(CHANGE.SYNC, from_node=1, to_node=3)
        await nodes[1].crash()
        await cluster.node_is(2, lambda node: not node.alive)
        with pytest.raises(InvalidArgument, match="node 2 is away"):
            await cluster.change(CHANGE.SYNC, from_node=2, to_node=1)


# ---- scrub


async def test_a_scrub_is_begun_on_all_replicas_and_asked_about(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3, replicas=3)
        nodes[0].scrubs[1] = pb.ScrubResponse(finished=True, checked_bytes=3)
        nodes[1].scrubs[1] = pb.ScrubResponse(corrupt_batches=2, repaired_batches=1)
        nodes[2].refuse["scrub"] = Unavailable("busy")
        changed = await cluster.change(CHANGE.SCRUB)
        assert "2 corrupt batches and 0 missing copies found, 1 repaired" in changed.done
        assert changed.next.startswith("1 of 3 nodes are finished")
        assert [s.storage_node_id for s in changed.scrubs] == [1, 2, 3]
        assert changed.scrubs[0].progress.finished
        assert changed.scrubs[2].progress.error == "busy"
        await cluster.change(CHANGE.SCRUB, tell_only=True)
        assert nodes[0].orders.count("scrub 1") == 1


# ---- restart


async def test_a_node_that_is_restarted_is_not_replaced_meanwhile(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        changed = await cluster.restart_node(2, within_s=30)
        assert "until then its replicas are not replaced" in changed.next
        await nodes[1].crash()
        stream = await cluster.until(lambda s: "waiting for node 2" in s.condition)
        assert stream.joining_node == 0
        assert (await cluster.node(2)).restarting
        await nodes[1].restart(cluster.address)
        nodes[1].start_heartbeat()
        await cluster.runs_on(1, 2)
        assert not (await cluster.node(2)).restarting
        await nodes[1].crash()  # another time: nobody said that it is restarted
        await cluster.until(lambda s: replicas(s) == (1, 3))


async def test_a_restart_that_takes_too_long_or_is_called_off_does_not_keep_replicas_away(
    tmp_path: Path,
) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        await cluster.restart_node(2, within_s=30)
        await nodes[1].crash()
        await cluster.until(lambda s: "waiting for node 2" in s.condition)
        await cluster.restart_node(2, within_s=0)
        await cluster.until(lambda s: replicas(s) == (1, 3) and s.state == pb.RUNNING)
        await cluster.restart_node(3, within_s=1)
        await nodes[2].crash()
        await cluster.until(lambda s: replicas(s) == (1, 4))
        with pytest.raises(Unavailable, match="node 3 is not alive"):
            await cluster.restart_node(3, within_s=1)
        with pytest.raises(InvalidArgument, match="at most 86400 s"):
            await cluster.restart_node(1, within_s=1e6)
