"""Operators' changes of streams and nodes, and what they are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cluster_requests import replicas
from keepers import stream_records
from poll import until
from scripted_node import ScriptedNode
from small_cluster import SmallCluster, commits, told, turns, write_all

from loomlog.core.ordered import repair
from loomlog.errors import Busy, InvalidArgument, LoomError, NotFound, Unauthorized, Unavailable
from loomlog.metadata.ordered import relief
from loomlog.types import ReplicaState
from loomlog.wire import loomlog_pb2 as pb

CHANGE, NODE = pb.ChangeStream, pb.ChangeNode


def quick(tmp_path: Path) -> SmallCluster:
    return SmallCluster(tmp_path, failure_detection_s=0.4, heartbeat_s=0.05)


async def started(
    cluster: SmallCluster, nodes: int, replicas: int = 2, entries: int = 3
) -> list[ScriptedNode]:
    found = await cluster.add_beating_nodes(nodes)
    await cluster.create(replicas=replicas)
    for count in range(1, entries + 1):
        write_all(found[:replicas], 1, 1)
        for node in found[:replicas]:
            await told(node, 1, count)
    return found


async def goes_on(cluster: SmallCluster, nodes: list[ScriptedNode], stream_id: int = 1) -> None:
    _, tail = await cluster.bounds()
    write_all(nodes, stream_id, 1)
    for node in nodes:
        await told(node, stream_id, tail + 1)


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


# ---- remove


async def test_a_removed_stream_stays_readable_until_it_is_trimmed(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        await cluster.change(CHANGE.ADD, log="events")
        changed = await cluster.change(CHANGE.REMOVE)
        assert changed.done == "stream 1 takes no more appends"
        assert changed.next == "3 entries stay readable; it is removed when all of them are trimmed"
        stream = await cluster.stream()
        assert (stream.state, stream.removing, stream.held) == (pb.STREAM_SEALED, True, False)
        assert stream.condition == "sealed: it is removed when all its entries are trimmed"
        await goes_on(cluster, nodes, 2)

        await cluster.restart_repository()
        await cluster.rejoin(*nodes)
        await cluster.runs_on(*replicas(await cluster.stream(2)), stream_id=2)
        await cluster.trim(2)
        assert (await cluster.stream()).removing
        await cluster.trim(3)
        await cluster.log_is(lambda log: [s.log_stream_id for s in log.streams] == [2])
        for node in nodes:
            await node.until(lambda node=node: 1 not in node.replicas)  # type: ignore[misc]
        abandoned = stream_records(cluster.repository).abandoned
        await until(lambda: not abandoned[1].holders)
        assert abandoned[1].entries_gone == 3
        await goes_on(cluster, nodes, 2)


async def test_an_empty_stream_is_removed_at_once(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        await cluster.change(CHANGE.ADD, log="events")
        changed = await cluster.change(CHANGE.REMOVE, 2)
        assert (changed.done, changed.next) == ("stream 2 is removed", "nothing of it was left")
        assert [s.log_stream_id for s in (await cluster.describe()).streams] == [1]
        await nodes[1].until(lambda: 2 not in nodes[1].replicas)
        await goes_on(cluster, nodes)


async def test_a_removal_reaches_a_node_that_was_away(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        await cluster.create("other")
        await cluster.change(CHANGE.ADD, log="events")
        await cluster.change(CHANGE.REMOVE)
        await nodes[1].crash()
        await cluster.node_is(2, lambda node: not node.alive)
        await cluster.trim(3)
        await cluster.log_is(lambda log: [s.log_stream_id for s in log.streams] == [3])
        assert 1 in nodes[1].replicas
        await nodes[1].restart(cluster.address)
        nodes[1].start_heartbeat()
        await nodes[1].until(lambda: 1 not in nodes[1].replicas)


async def test_a_stream_of_an_empty_log_waits_for_a_replica_in_peace(tmp_path: Path) -> None:
    """Nobody confirms that it has no entry, so it stays; nothing is written over and over."""
    async with quick(tmp_path) as cluster:
        nodes = await cluster.add_beating_nodes(2)
        await cluster.create(streams=2, replicas=1)
        (away,) = (node for node in nodes if 1 in node.replicas)
        await away.crash()
        await cluster.node_is(away.node_id, lambda node: not node.alive)
        stream = await cluster.until(lambda s: s.state != pb.RUNNING)
        changing = asyncio.create_task(cluster.change(CHANGE.REMOVE))
        await cluster.until(lambda s: s.removing)
        await asyncio.sleep(0.2)  # the metadata repository would write all the time
        assert (await cluster.stream()).seal_epoch <= stream.seal_epoch + 1
        await away.restart(cluster.address)
        away.start_heartbeat()
        assert (await changing).done == "stream 1 is removed"


async def test_the_last_stream_that_takes_appends_is_not_removed(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        with pytest.raises(InvalidArgument, match="no other stream that takes appends"):
            await cluster.change(CHANGE.REMOVE)
        await cluster.change(CHANGE.ADD, log="events")
        await cluster.change(CHANGE.SEAL, 2)
        with pytest.raises(InvalidArgument, match="no other stream that takes appends"):
            await cluster.change(CHANGE.REMOVE)
        await cluster.change(CHANGE.UNSEAL, 2)
        await cluster.change(CHANGE.REMOVE)
        await cluster.change(CHANGE.REMOVE)  # again: it is being removed already
        for change in (CHANGE.SEAL, CHANGE.UNSEAL):
            with pytest.raises(InvalidArgument, match="is being removed"):
                await cluster.change(change)
        with pytest.raises(InvalidArgument, match="no other stream that takes appends"):
            await cluster.change(CHANGE.REMOVE, 2)
        await goes_on(cluster, nodes, 2)


async def test_a_stream_of_an_ended_segment_goes_before_its_segment(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        await cluster.switch(streams=2)
        await cluster.change(CHANGE.REMOVE)
        await goes_on(cluster, nodes, 2)
        await cluster.trim(3)
        await cluster.log_is(lambda log: [s.log_stream_id for s in log.streams] == [2, 3])


# ---- move


async def test_a_move_copies_while_the_stream_runs_and_then_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "NEARLY_ENTRIES", 1)
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3, entries=4)
        nodes[0].copies_at_once = nodes[1].copies_at_once = 0
        changed = await cluster.change(CHANGE.MOVE, from_node=2, to_node=3)
        assert changed.done == "stream 1 begins to move from node 2 to node 3"
        stream = await cluster.until(lambda s: s.condition.startswith("copying"))
        assert (stream.state, stream.joining_node) == (pb.RUNNING, 3)
        await goes_on(cluster, nodes[:2])
        nodes[0].copies_at_once = nodes[1].copies_at_once = None
        await cluster.runs_on(1, 3)
        assert commits(nodes[2], 1) == commits(nodes[0], 1)
        await nodes[1].until(lambda: 1 not in nodes[1].replicas)
        assert nodes[1].orders[-1] == "remove 1"
        assert list((await cluster.node(2)).unknown_streams) == []
        await goes_on(cluster, [nodes[0], nodes[2]])


async def test_the_primary_moves_to_the_best_node(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        await cluster.create("other", replicas=1)  # on node 3
        assert list(nodes[2].replicas) == [2]
        await cluster.change(CHANGE.MOVE, from_node=1)
        await cluster.runs_on(2, 4)


async def test_a_move_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        nodes[2].refuse["add_log_stream"] = Unavailable("not now")
        await cluster.change(CHANGE.MOVE, from_node=2, to_node=3)
        await cluster.restart_repository()
        nodes[2].refuse.clear()
        await cluster.rejoin(*nodes)
        await cluster.runs_on(1, 3)
        await nodes[1].until(lambda: 1 not in nodes[1].replicas)


async def test_a_move_whose_target_dies_finds_another(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        for node in nodes[:2]:
            node.copies_at_once = 0
        await cluster.change(CHANGE.MOVE, from_node=2, to_node=3)
        await cluster.until(lambda s: s.condition.startswith("copying"))
        with pytest.raises(Busy, match="just being copied to node 3"):
            await cluster.change(CHANGE.MOVE, from_node=1, to_node=4)
        await nodes[2].crash()
        for node in nodes[:2]:
            node.copies_at_once = None
        await cluster.runs_on(1, 4)


@pytest.mark.parametrize("to_node", [0, 2])
async def test_a_move_back_waits_until_the_old_data_is_deleted(
    tmp_path: Path, to_node: int
) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        nodes[1].refuse["remove_log_stream"] = Unavailable("not now")
        await cluster.change(CHANGE.MOVE, from_node=2, to_node=3)
        await cluster.runs_on(1, 3)
        with pytest.raises(Busy, match="node 2 is just deleting old data"):
            await cluster.change(CHANGE.MOVE, from_node=1, to_node=to_node)
        nodes[1].refuse.clear()
        await nodes[1].until(lambda: 1 not in nodes[1].replicas)
        while True:  # as a client does
            try:
                await cluster.change(CHANGE.MOVE, from_node=1, to_node=to_node)
                break
            except Busy:
                await turns()
        await cluster.until(lambda s: set(replicas(s)) == {2, 3} and s.state == pb.RUNNING)


@pytest.mark.parametrize(
    ("request_", "error", "told"),
    [
        ({"stream_id": 9, "from_node": 1}, NotFound, "no stream 9"),
        ({"from_node": 9}, NotFound, "no node 9"),
        ({"from_node": 3}, InvalidArgument, "no replica of stream 1: those are on nodes 1, 2"),
        ({"from_node": 1, "to_node": 9}, NotFound, "no node 9"),
        ({"from_node": 1, "to_node": 2}, InvalidArgument, "has a replica of stream 1 already"),
        ({"from_node": 1, "to_node": 3}, InvalidArgument, "node 3 is not alive"),
        ({"from_node": 1, "to_node": 4}, InvalidArgument, "node 4 is being drained"),
        ({"from_node": 1}, InvalidArgument, "no spare node for stream 1"),
    ],
)
async def test_a_move_that_cannot_be_is_refused_with_the_reason(
    tmp_path: Path, request_: dict[str, int], error: type[LoomError], told: str
) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        await cluster.change_node(NODE.DRAIN, 4)
        await nodes[2].crash()
        while (await cluster.node(3)).alive:
            pass
        with pytest.raises(error, match=told):
            await cluster.change(CHANGE.MOVE, **request_)
        assert replicas(await cluster.stream()) == (1, 2)


# ---- replicas leave and come


async def test_a_replica_is_unregistered_and_added_again(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3, replicas=3)
        changed = await cluster.change(CHANGE.UNREGISTER, from_node=2)
        assert changed.done == "the replica on node 2 has left stream 1"
        assert "continues with nodes 1, 3" in changed.next
        assert "loom node cleanup 2" in changed.next
        await cluster.runs_on(1, 3)
        await goes_on(cluster, [nodes[0], nodes[2]])
        assert list(nodes[1].replicas) == [1], "its data stays"
        assert list((await cluster.node(2)).unknown_streams) == [1]
        await turns(20)
        assert replicas(await cluster.stream()) == (1, 3), "nobody fills the gap"

        with pytest.raises(InvalidArgument, match="loom node cleanup 2"):
            await cluster.change(CHANGE.ADD_REPLICA, to_node=2)
        changed = await cluster.change_node(NODE.CLEANUP, 2)
        assert changed.done == "node 2 deleted its data of stream 1"
        assert nodes[1].replicas == {}
        changed = await cluster.change(CHANGE.ADD_REPLICA, to_node=2)
        assert changed.done == "stream 1 begins to get a replica on node 2"
        await cluster.runs_on(1, 3, 2)
        await goes_on(cluster, nodes)


async def test_an_unregistered_replica_is_not_taken_up_again_after_a_restart(
    tmp_path: Path,
) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3, replicas=3)
        await cluster.change(CHANGE.UNREGISTER, from_node=2)
        await cluster.runs_on(1, 3)
        await goes_on(cluster, [nodes[0], nodes[2]])
        await nodes[1].restart(cluster.address)
        nodes[1].start_heartbeat()
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="loom node cleanup 2"):
                await cluster.change(CHANGE.ADD_REPLICA, to_node=2)
            await cluster.restart_repository()
            await cluster.rejoin(*nodes)
        await cluster.change_node(NODE.CLEANUP, 2)
        await cluster.change(CHANGE.ADD_REPLICA, to_node=2)
        await cluster.runs_on(1, 3, 2)
        assert nodes[1].orders.count("add 1") == 2


async def test_a_newcomer_that_is_given_up_keeps_what_it_had_before(tmp_path: Path) -> None:
    """Nothing is deleted but what was made for this attempt."""
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3, replicas=3)
        await cluster.change(CHANGE.UNREGISTER, from_node=2)
        await cluster.runs_on(1, 3)
        kept = nodes[1].replicas[1]
        records = stream_records(cluster.repository)
        await records.wish(1, joining=2)
        await records.change(1, lambda stream: stream.drop_joining(2))
        await nodes[1].restart(cluster.address)
        await nodes[1].until(lambda: "remove 1" in nodes[1].orders)
        assert nodes[1].replicas[1].context == kept.context
        await cluster.until(lambda _: not records.streams[1].dropping)
        await cluster.delete()
        await nodes[1].until(lambda: not nodes[1].replicas)


async def test_a_dead_replica_is_unregistered_to_let_the_others_run(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3, replicas=3)
        await nodes[2].crash()
        await cluster.until(lambda s: "no spare" in s.condition)
        await cluster.change(CHANGE.UNREGISTER, from_node=3)
        await cluster.runs_on(1, 2)
        await goes_on(cluster, nodes[:2])


async def test_the_last_whole_replica_is_not_unregistered(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 2)
        await nodes[1].crash()
        await cluster.until(lambda s: s.state == pb.STREAM_SEALED)
        with pytest.raises(InvalidArgument, match="would lose data without node 1"):
            await cluster.change(CHANGE.UNREGISTER, from_node=1)
        await cluster.change(CHANGE.UNREGISTER, from_node=2)
        await cluster.runs_on(1)
        with pytest.raises(InvalidArgument, match="the only replica of stream 1"):
            await cluster.change(CHANGE.UNREGISTER, from_node=1)


async def test_one_more_replica(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        await cluster.change(CHANGE.ADD_REPLICA)
        await cluster.runs_on(1, 2, 3)
        assert commits(nodes[2], 1) == commits(nodes[0], 1)
        await goes_on(cluster, nodes)
        await cluster.restart_repository()
        await cluster.rejoin(*nodes)
        await cluster.runs_on(1, 2, 3)


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


# ---- nodes


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
