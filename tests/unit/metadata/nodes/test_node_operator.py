"""Operators' changes of nodes, and the answers to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_requests import replicas
from operated_cluster import quick, started
from small_cluster import write_all

from loomlog.errors import InvalidArgument, NotFound, Unauthorized, Unavailable
from loomlog.metadata.ordered import relief
from loomlog.wire import loomlog_pb2 as pb

CHANGE, NODE = pb.ChangeStream, pb.ChangeNode


async def test_a_drained_node_becomes_empty_and_is_removed(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await cluster.add_beating_nodes(3)
        log = await cluster.create(streams=9, replicas=2)
        mine = [s.log_stream_id for s in log.streams if 3 in replicas(s)]
        write_all(nodes, mine[0], 2)
        await cluster.create("another", replicas=3)
        changed = await cluster.change_node(NODE.DRAIN, 3)
        assert changed.done == "node 3 is being drained: it takes nothing new"
        assert "7 replicas move away, but 1 of them find no other node" in changed.next
        await cluster.add_beating_nodes(1)
        for stream in log.streams:
            stream_id = stream.log_stream_id
            stream = await cluster.until(
                lambda s: 3 not in replicas(s) and s.state == pb.RUNNING, stream_id
            )
            assert len(set(replicas(stream))) == 2
        await cluster.until(lambda s: set(replicas(s)) == {1, 2, 4}, 10)
        await nodes[2].until(lambda: not nodes[2].replicas)
        node = await cluster.node(3)
        assert (node.draining, node.replicas, list(node.unknown_streams)) == (True, 0, [])
        log = await cluster.create("third", streams=4, replicas=3)
        assert all(3 not in replicas(s) for s in log.streams), "it takes nothing new"

        changed = await cluster.change_node(NODE.REMOVE, 3)
        assert changed.done == "node 3 is removed"
        assert [n.storage_node_id for n in (await cluster.status()).nodes] == [1, 2, 4]
        await nodes[2].until(lambda: nodes[2].connection is None)
        with pytest.raises(Unauthorized, match="node 3 was removed"):
            await nodes[2].join(cluster.address)
        await nodes[2].crash()
        nodes[2].cluster_secret, nodes[2].node_secret = "", "new"
        await nodes[2].join(cluster.address)
        assert not (await cluster.node(3)).draining


async def test_a_drain_goes_on_after_a_restart_and_can_be_taken_back(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        changed = await cluster.change_node(NODE.DRAIN, 2)
        assert "start another one" in changed.next
        stream = await cluster.until(lambda s: "no spare" in s.condition)
        assert stream.state == pb.RUNNING, "a move does not hurt"
        await cluster.restart_repository()
        await cluster.rejoin(*nodes)
        assert (await cluster.node(2)).draining
        await cluster.until(lambda s: "no spare" in s.condition)
        await cluster.change_node(NODE.UNDRAIN, 2)
        assert not (await cluster.node(2)).draining
        await cluster.until(lambda s: s.condition == "")

        await cluster.change_node(NODE.DRAIN, 2)
        await cluster.restart_repository()
        await cluster.rejoin(*nodes)
        await cluster.add_beating_nodes(1)
        await cluster.runs_on(1, 3)


async def test_a_node_that_is_not_empty_is_not_removed(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        for force in (False, True):
            with pytest.raises(InvalidArgument, match="`loom node drain 2`"):
                await cluster.change_node(NODE.REMOVE, 2, force=force)
        await cluster.change_node(NODE.DRAIN, 3)
        await nodes[1].crash()
        await cluster.until(lambda s: "no spare" in s.condition)
        with pytest.raises(InvalidArgument, match="--force"):
            await cluster.change_node(NODE.REMOVE, 2)
        changed = await cluster.change_node(NODE.REMOVE, 2, force=True)
        assert changed.next == "its 1 replicas are recreated elsewhere; then it is forgotten"
        with pytest.raises(Unauthorized, match="was removed"):
            await nodes[1].join(cluster.address)
        await nodes[1].crash()
        await cluster.change_node(NODE.UNDRAIN, 3)
        await cluster.runs_on(1, 3)
        assert [n.storage_node_id for n in (await cluster.status()).nodes] == [1, 3]


async def test_a_dead_node_with_the_only_replica_is_not_removed(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2, replicas=1)
        await nodes[0].crash()
        await cluster.until(lambda s: "node 1" in s.condition)
        with pytest.raises(InvalidArgument, match="the only replica of stream 1"):
            await cluster.change_node(NODE.REMOVE, 1, force=True)


async def test_cleanup_deletes_what_the_cluster_does_not_know_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relief, "PATIENCE_S", 60.0)  # no second stream meanwhile
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4, replicas=3)
        await nodes[2].crash()
        await cluster.runs_on(1, 2, 4)
        with pytest.raises(Unavailable, match="node 3 is not alive"):
            await cluster.change_node(NODE.CLEANUP, 3)
        await nodes[2].restart(cluster.address)
        nodes[2].start_heartbeat()
        changed = await cluster.change_node(NODE.CLEANUP, 3)
        assert (changed.done, changed.next) == (
            "node 3 deleted its data of stream 1",
            "nothing is left",
        )
        assert nodes[2].replicas == {}
        assert list((await cluster.node(3)).unknown_streams) == []
        changed = await cluster.change_node(NODE.CLEANUP, 1)
        assert changed.done == "node 1 deleted nothing"
        assert list(nodes[0].replicas) == [1]


async def test_cleanup_keeps_what_may_be_all_there_is(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        await nodes[1].crash()
        await cluster.runs_on(1, 3)
        await nodes[1].restart(cluster.address)
        nodes[1].start_heartbeat()
        await nodes[0].crash()
        await nodes[2].crash()
        while (await cluster.node(1)).alive or (await cluster.node(3)).alive:
            pass
        changed = await cluster.change_node(NODE.CLEANUP, 2)
        assert changed.done == "node 2 deleted nothing"
        assert changed.next.startswith("kept: stream 1")
        assert list(nodes[1].replicas) == [1]


async def test_nodes_and_streams_that_do_not_exist_are_named(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        for action in (NODE.DRAIN, NODE.UNDRAIN, NODE.REMOVE, NODE.CLEANUP):
            with pytest.raises(NotFound, match="no node 7"):
                await cluster.change_node(action, 7)
        for change in (CHANGE.SEAL, CHANGE.UNSEAL, CHANGE.UNREGISTER, CHANGE.SCRUB):
            with pytest.raises(NotFound, match="no stream 7"):
                await cluster.change(change, 7)
        with pytest.raises(InvalidArgument, match="no change 0"):
            await cluster.change(CHANGE.ACTION_UNSPECIFIED, 7)


async def test_remains_of_a_log_go_with_it(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4, replicas=3)
        await nodes[2].crash()
        await cluster.runs_on(1, 2, 4)
        await cluster.delete()
        await nodes[2].restart(cluster.address)
        await nodes[2].until(lambda: not nodes[2].replicas)


@pytest.mark.parametrize("action", [NODE.REMOVE, NODE.REPLACE, NODE.MARK_UNRECOVERABLE])
async def test_a_process_that_hangs_and_is_given_up_has_to_register_again(
    action: pb.ChangeNode.Action, tmp_path: Path
) -> None:
    """The node may not continue as if it had its data, and nobody waits for a broken connection."""
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        hung = nodes[1]
        connection = hung.connection
        assert connection is not None
        hung.stop_heartbeat()
        connection.hold()  # it reads nothing, not even whether it is there
        while (await cluster.node(2)).alive:
            pass
        term = cluster.repository.term
        assert term is not None
        assert term.nodes.connected(2)
        await cluster.change_node(action, 2, force=action == NODE.REMOVE)
        assert not term.nodes.connected(2)
        connection.release()
        await hung.until(lambda: connection.closed)
