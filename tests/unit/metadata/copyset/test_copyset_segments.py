"""Copyset segments as the metadata repository runs them: switched, trimmed, deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cluster_requests import copyset, nodeset
from small_cluster import QUICK, SmallCluster, all_run, turns, write_all

from loomlog.core.copyset.nodeset import sequencer_of
from loomlog.core.copyset.record import make
from loomlog.errors import InvalidArgument, NotFound, Sealed
from loomlog.metadata.copyset import keeper
from loomlog.wire import loomlog_pb2 as pb


async def test_from_protocol_to_protocol(tmp_path: Path) -> None:
    """The positions of a segment lie above those before it, and its end is what was recovered."""
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        await cluster.create()
        await all_run(cluster.nodes[:2], 1)
        write_all(cluster.nodes[:2], 1, 10)
        await cluster.log_is(lambda log: log.tail == 10)

        await cluster.switch(protocol="copyset", nodeset=3)
        log = await cluster.describe()
        segment, state = log.segments[-1], log.streams[-1].copyset
        assert (segment.start, segment.nodeset, log.tail) == (11, 3, 10)
        assert (state.epoch, state.history[0].since, state.tail) == (0, 1, 10)
        loglet = segment.loglet_id
        await cluster.vsn(1).activate(loglet, 0)
        cluster.tails[loglet] = make(1, 7)

        changed = await cluster.switch(protocol="ordered", streams=1)
        assert f"from position {make(1, 8)} on" in changed.done
        log = await cluster.describe()
        assert [segment.end for segment in log.segments[:2]] == [10, make(1, 7)]
        closed = copyset(log)
        assert (closed.state, closed.condition) == (pb.STREAM_SEALED, "")
        assert closed.copyset.closed
        late = await cluster.vsn(2).activate(loglet, closed.copyset.epoch)
        assert late == (await cluster.vsn(2).get(loglet))

        await cluster.switch(protocol="copyset")
        log = await cluster.describe()
        again = log.streams[-1].copyset
        assert log.segments[-1].start == make(1, 8)
        assert (again.epoch, again.history[0].since, again.last_clean) == (1, 2, 1)


async def test_a_segment_that_nobody_used_is_closed_where_it_began(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        await cluster.create_copyset()
        await cluster.switch(protocol="ordered", streams=1)
        log = await cluster.describe()
        assert [(s.protocol, s.start) for s in log.segments] == [("copyset", 1), ("ordered", 1)]


async def test_a_nodeset_is_a_setting_like_others(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        await cluster.create_copyset(nodeset=2)
        assert "already" in (await cluster.switch(replicas=2)).done
        with pytest.raises(InvalidArgument, match="a nodeset of 4 needs as many nodes, and 3"):
            await cluster.switch(nodeset=4)
        await cluster.switch(nodeset=3)
        log = await cluster.describe()
        assert [segment.nodeset for segment in log.segments] == [2, 3]
        assert nodeset(log.streams[-1]) == [1, 2, 3]


async def test_streams_are_no_setting_of_copyset(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        await cluster.create(streams=2)
        with pytest.raises(InvalidArgument, match="one stream: leave out how many"):
            await cluster.switch(protocol="copyset", streams=2)
        changed = await cluster.switch(protocol="copyset")
        assert "'copyset', 2 replicas" in changed.done
        assert (await cluster.describe()).segments[-1].streams == 1
        with pytest.raises(InvalidArgument, match="one stream"):
            await cluster.switch(streams=3)
        changed = await cluster.switch(streams=1)
        assert "already" in changed.done


async def test_recovery_is_ordered_elsewhere_when_its_node_is_lost(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        cluster.tails[loglet] = make(1, 3)
        first = sequencer_of(loglet, dict.fromkeys((1, 2, 3), 1.0))
        assert first is not None
        node = cluster.vsn(first)
        node.recovers = False
        switching = asyncio.ensure_future(cluster.switch(protocol="ordered", streams=1))
        await node.until(lambda: node.orders)
        assert node.orders == [f"recover {loglet} epoch 2"]
        assert "epoch 1 is not recovered yet" in copyset(await cluster.describe()).condition
        await node.crash()
        await switching
        log = await cluster.describe()
        assert log.segments[0].end == make(1, 3)
        state = copyset(log).copyset
        assert (state.closed, state.epoch > 2, state.sequencer != first) == (True, True, True)


async def test_a_takeover_finishes_what_was_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SEAL_WAIT_S", 0.1)
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        cluster.tails[loglet] = make(1, 3)
        for node in (1, 2, 3):
            cluster.vsn(node).recovers = False
        with pytest.raises(Sealed, match="not closed yet: epoch 1 is not recovered yet"):
            await cluster.switch(protocol="ordered", streams=1)
        await cluster.restart_repository()
        for node in (1, 2, 3):
            cluster.vsn(node).recovers = True
        await cluster.rejoin(*cluster.nodes)
        log = await cluster.log_is(lambda log: len(log.segments) == 2)
        assert log.segments[0].end == make(1, 3)


# ---- ended with too few nodes


async def test_a_log_that_could_not_be_closed_is_not_switched(tmp_path: Path) -> None:
    """The log can continue as it is; once it is being closed there is no way back."""
    async with SmallCluster(tmp_path, scripted=5, replace_after_s=60.0, **QUICK) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        for node in (2, 4):
            await cluster.vsn(node).crash()
        words = "3 of 5 nodes of the nodeset are alive"
        await cluster.log_is(lambda log: copyset(log).condition == words)
        with pytest.raises(InvalidArgument, match="nodes are there: start node 2, node 4"):
            await cluster.switch(protocol="ordered", streams=1)
        log = await cluster.describe()
        assert (len(log.segments), log.switching) == (1, "")
        assert not copyset(log).copyset.closed
        await cluster.rejoin(cluster.vsn(4))
        await cluster.switch(protocol="ordered", streams=1)


async def test_whom_a_log_waits_for_that_is_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SEAL_WAIT_S", 3.0)
    async with SmallCluster(tmp_path, scripted=5, replace_after_s=60.0, **QUICK) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        for node in (1, 2, 3, 4, 5):
            cluster.vsn(node).recovers = False
        switching = asyncio.ensure_future(cluster.switch(protocol="ordered", streams=1))
        await cluster.log_is(lambda log: copyset(log).copyset.closed)
        for node in (2, 4):
            await cluster.vsn(node).crash()
        words = "epoch 1 is not recovered yet: too few of its nodes are there: start node 2, node 4"
        await cluster.log_is(lambda log: words in copyset(log).condition)
        with pytest.raises(Sealed, match="appends wait until its switch is finished") as caught:
            await switching
        assert words in str(caught.value)
        for node in (1, 3, 5):
            cluster.vsn(node).recovers = True
        await cluster.rejoin(cluster.vsn(2))
        await cluster.log_is(lambda log: len(log.segments) == 2)


# ---- trimmed, deleted


async def test_trims_are_told_to_all_nodes_that_ever_had_something(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        cluster.tails[loglet] = make(1, 9)
        with pytest.raises(InvalidArgument, match=f"ends at position {make(1, 9)}"):
            await cluster.trim(make(1, 10))
        await cluster.vsn(3).crash()
        assert await cluster.trim(make(1, 4)) == (make(1, 5), make(1, 9))
        told = f"TRIM {loglet} {make(1, 4)}"
        assert all(told in cluster.vsn(node).orders for node in (1, 2))
        assert (await cluster.vsn(1).get(loglet)).trimmed == make(1, 4)
        await cluster.rejoin(cluster.nodes[2])
        await cluster.vsn(3).until(lambda: told in cluster.vsn(3).orders)


async def test_a_deleted_log_is_forgotten_by_its_nodes(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        await cluster.vsn(3).crash()
        await cluster.delete()
        told = f"FORGET {loglet} 0"
        for node in (cluster.vsn(1), cluster.vsn(2)):
            await node.until(lambda node=node: told in node.orders)  # type: ignore[misc]
        with pytest.raises(NotFound):
            await cluster.vsn(1).get(loglet)
        await cluster.restart_repository()
        await cluster.rejoin(*cluster.nodes)
        await cluster.vsn(3).until(lambda: told in cluster.vsn(3).orders)
        await cluster.no_records_left()


async def test_a_sequencer_without_its_first_volume_forgets_a_deleted_log(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=4) as cluster:
        loglet = (await cluster.create_copyset(nodeset=3)).log_id
        inside = nodeset(copyset(await cluster.describe()))
        outside = next(node for node in cluster.nodes if node.node_id not in inside)
        await outside.crash()
        outside.generations = {1: 0}
        await cluster.rejoin(outside)
        await outside.activate(loglet, 0)
        await cluster.delete()
        await outside.until(lambda: f"FORGET {loglet} 0" in outside.orders)


async def test_a_segment_that_is_trimmed_as_a_whole_is_forgotten(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        cluster.tails[loglet] = make(1, 3)
        await cluster.switch(protocol="ordered", streams=1)
        (stream,) = (s for s in (await cluster.describe()).streams if s.protocol == "ordered")
        nodes = [n for n in cluster.nodes if stream.log_stream_id in n.replicas]
        write_all(nodes, stream.log_stream_id, 1)
        await cluster.log_is(lambda log: log.tail == make(1, 4))
        await cluster.trim(make(1, 3))
        for node in cluster.nodes:
            await node.until(lambda node=node: f"FORGET {loglet} 0" in node.orders)  # type: ignore[misc]
        await cluster.no_records_left()


async def test_a_log_that_was_never_used_leaves_nothing(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        await cluster.create_copyset()
        await cluster.delete()
        await cluster.no_records_left()
        await turns()
        assert [node.orders for node in cluster.nodes] == [[], [], []]
