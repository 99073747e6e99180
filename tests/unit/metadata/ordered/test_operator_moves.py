"""Operators remove and move streams and replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cluster_requests import replicas
from keepers import stream_records
from operated_cluster import goes_on, quick, started
from poll import until
from small_cluster import commits, turns

from loomlog.core.ordered import repair
from loomlog.errors import Busy, InvalidArgument, LoomError, NotFound, Unavailable
from loomlog.wire import loomlog_pb2 as pb

CHANGE, NODE = pb.ChangeStream, pb.ChangeNode


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
    """The stream stays, because no replica confirms that it is empty; nothing is written over and
    over."""
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
    """Only data that was created for this attempt is deleted."""
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
