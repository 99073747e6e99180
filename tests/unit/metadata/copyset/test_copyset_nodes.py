"""Copyset logs when nodes are lost, come, are drained or removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster_requests import copyset, nodeset
from scrape import values
from scripted_node import ScriptedNode
from small_cluster import QUICK, SmallCluster, turns

from loomlog.core.copyset import log_state
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import Member, sequencer_of
from loomlog.core.copyset.record import make
from loomlog.errors import InvalidArgument, NotLeader, Unavailable
from loomlog.metadata.copyset.keeper import CopysetKeeper
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb


async def test_a_nodeset_has_nodes_of_all_locations(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=0) as cluster:
        for location in ("rack=a", "rack=b"):
            await cluster.add_beating_nodes(3, location)
        log = await cluster.create_copyset(replicas=2, nodeset=4)
        epochs = log.streams[0].copyset.history[0]
        assert sorted(epochs.locations) == ["rack=a", "rack=a", "rack=b", "rack=b"]


async def test_a_log_whose_sequencer_is_lost_is_recovered(tmp_path: Path) -> None:
    """Readers get all that was acknowledged, though nobody appends."""
    async with SmallCluster(tmp_path, scripted=4, **QUICK) as cluster:
        loglet = (await cluster.create_copyset(nodeset=3)).log_id
        inside = nodeset(copyset(await cluster.describe()))
        outside = next(node for node in (1, 2, 3, 4) if node not in inside)
        await cluster.vsn(outside).activate(loglet, 0)
        cluster.tails[loglet] = make(1, 9)
        await cluster.vsn(outside).crash()
        log = await cluster.log_is(lambda log: copyset(log).copyset.last_clean == 1)
        assert log.tail == make(1, 9)
        state = copyset(log).copyset
        assert state.sequencer != outside
        assert not state.closed
        taken = await cluster.vsn(state.sequencer).activate(loglet, state.epoch)
        assert taken.epoch == state.epoch + 1


async def test_a_node_that_is_lost_is_replaced_in_the_nodeset(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=4, **QUICK) as cluster:
        loglet = (await cluster.create_copyset(nodeset=3)).log_id
        before = nodeset(copyset(await cluster.describe()))
        sequencer, lost = before[:2]
        await cluster.vsn(sequencer).activate(loglet, 0)
        await cluster.vsn(lost).crash()
        log = await cluster.log_is(lambda log: len(copyset(log).copyset.history) == 2)
        assert sorted({*before, *nodeset(copyset(log))}) == [1, 2, 3, 4]
        assert lost not in nodeset(copyset(log))
        assert sorted(copyset(log).copyset.history[0].nodeset) == before


def says_it_stores_no_copies(node: ScriptedNode, truth: bool) -> None:
    conditions = pb.NodeConditions(shards=[pb.ShardCondition(stores_no_copies=truth)])
    report = pb.GetReportResponse(storage_node_id=node.node_id, conditions=conditions)
    assert node.connection is not None
    node.connection.send(pb.Frame(report=report))


async def test_a_node_that_cannot_open_its_copies_leaves_the_nodeset_until_it_can(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        says_it_stores_no_copies(cluster.vsn(3), True)
        await cluster.log_is(lambda log: nodeset(copyset(log)) == [1, 2])
        says_it_stores_no_copies(cluster.vsn(3), False)
        await cluster.log_is(lambda log: nodeset(copyset(log)) == [1, 2, 3])


def stores_no_copies(nodes: ConnectedNodes) -> bool:
    return any(shard.stores_no_copies for shard in nodes.restrictions(3).shards)


async def reached(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - nobody notifies
            await asyncio.sleep(0.01)


async def test_no_log_is_made_of_which_too_few_nodes_can_store_copies(tmp_path: Path) -> None:
    """The first append to such a log would wait."""
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        assert cluster.repository.term is not None
        nodes = cluster.repository.term.nodes
        says_it_stores_no_copies(cluster.vsn(3), True)
        await reached(lambda: stores_no_copies(nodes))
        with pytest.raises(Unavailable, match="3 replicas need as many nodes, and 2 can store"):
            await cluster.create_copyset(replicas=3, min_replicas=3)
        says_it_stores_no_copies(cluster.vsn(3), False)
        await reached(lambda: not stores_no_copies(nodes))
        log = await cluster.create_copyset(replicas=3, min_replicas=3)
        assert nodeset(copyset(log)) == [1, 2, 3]


async def test_no_epoch_is_given_to_nodes_of_which_too_few_can_store(tmp_path: Path) -> None:
    """The epoch could not be recovered without the node whose copies cannot be opened."""
    async with SmallCluster(tmp_path, scripted=3, **QUICK) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        says_it_stores_no_copies(cluster.vsn(3), True)
        await cluster.log_is(lambda log: nodeset(copyset(log)) == [1, 2])
        await cluster.vsn(2).crash()
        await cluster.node_is(2, lambda node: not node.alive)
        state = await cluster.vsn(1).get(loglet)
        taken = await cluster.vsn(1).activate(loglet, state.epoch)
        assert sorted(taken.history[-1].nodeset) == [1, 2]


@pytest.mark.parametrize("asked", [0, 3])
async def test_a_nodeset_that_shrank_grows_when_the_node_is_back(
    tmp_path: Path, asked: int
) -> None:
    async with SmallCluster(tmp_path, scripted=3, **QUICK) as cluster:
        loglet = (await cluster.create_copyset(nodeset=asked)).log_id
        await cluster.vsn(1).activate(loglet, 0)
        await cluster.vsn(3).crash()
        await cluster.log_is(lambda log: nodeset(copyset(log)) == [1, 2])
        await cluster.rejoin(cluster.vsn(3))
        log = await cluster.log_is(lambda log: nodeset(copyset(log)) == [1, 2, 3])
        assert len(copyset(log).copyset.history) == 3, "it changed more often than it had to"
        log = await cluster.log_is(lambda log: not copyset(log).condition)
        assert copyset(log).copyset.epoch == 3


async def test_or_when_another_one_takes_its_place(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3, **QUICK) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        await cluster.vsn(3).crash()
        await cluster.log_is(lambda log: nodeset(copyset(log)) == [1, 2])
        await cluster.add_beating_nodes(1)
        await cluster.log_is(lambda log: nodeset(copyset(log)) == [1, 2, 4])


async def test_or_when_it_is_not_drained_any_more(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        await cluster.change_node(pb.ChangeNode.DRAIN, 3)
        await cluster.log_is(lambda log: nodeset(copyset(log)) == [1, 2])
        await cluster.change_node(pb.ChangeNode.UNDRAIN, 3)
        await cluster.log_is(lambda log: nodeset(copyset(log)) == [1, 2, 3])


async def test_or_when_the_node_came_back_while_an_epoch_without_it_was_being_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        take_epoch = log_state.take_epoch

        def chosen_before(
            state: LogState, node: NodeId, nodeset: Sequence[Member], **more: Any
        ) -> LogState:
            monkeypatch.undo()
            return take_epoch(state, node, tuple(m for m in nodeset if m.shard != 3), **more)

        monkeypatch.setattr(log_state, "take_epoch", chosen_before)
        taken = await cluster.vsn(1).activate(loglet, 1)
        assert sorted(taken.history[-1].nodeset) == [1, 2]
        await cluster.log_is(lambda log: nodeset(copyset(log)) == [1, 2, 3])


async def test_a_log_that_cannot_be_recovered_now_goes_on_as_it_is(tmp_path: Path) -> None:
    """The log's sequencer may still find room; a new epoch would have to wait."""
    async with SmallCluster(tmp_path, scripted=5, **QUICK) as cluster:
        loglet = (await cluster.create_copyset(replicas=2, nodeset=4)).log_id
        before = nodeset(copyset(await cluster.describe()))
        await cluster.vsn(before[0]).activate(loglet, 0)
        for node in before[2:]:
            await cluster.vsn(node).crash()
        condition = "2 of 4 nodes of the nodeset are alive"
        log = await cluster.log_is(lambda log: copyset(log).condition == condition)
        assert copyset(log).copyset.epoch == 1


async def test_it_goes_on_without_nodes_that_are_given_up(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=5, **QUICK) as cluster:
        loglet = (await cluster.create_copyset(replicas=2, nodeset=4)).log_id
        before = nodeset(copyset(await cluster.describe()))
        await cluster.vsn(before[0]).activate(loglet, 0)
        cluster.tails[loglet] = make(1, 9)
        for scripted in cluster.nodes:
            scripted.ignore.add("copyset_rebuild")
        for node in before[2:]:
            await cluster.vsn(node).crash()
            await cluster.node_is(node, lambda node: not node.alive)
        for node in before[2:]:
            assert copyset(await cluster.describe()).copyset.epoch == 1
            await cluster.change_node(pb.ChangeNode.MARK_UNRECOVERABLE, node)
        log = await cluster.log_is(lambda log: copyset(log).copyset.last_clean == 1)
        assert set(before[2:]).isdisjoint(nodeset(copyset(log)))
        found = {c.kind for c in (await cluster.status()).conditions if c.log == log.name}
        assert "data-lost" in found


async def test_it_goes_on_when_its_whole_nodeset_is_given_up(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=5, **QUICK) as cluster:
        loglet = (await cluster.create_copyset(replicas=2, nodeset=2)).log_id
        before = nodeset(copyset(await cluster.describe()))
        await cluster.vsn(before[0]).activate(loglet, 0)
        cluster.tails[loglet] = make(1, 9)
        for scripted in cluster.nodes:
            scripted.ignore.add("copyset_rebuild")
        for node in before:
            await cluster.vsn(node).crash()
            await cluster.node_is(node, lambda node: not node.alive)
        for node in before:
            assert copyset(await cluster.describe()).copyset.epoch == 1
            await cluster.change_node(pb.ChangeNode.MARK_UNRECOVERABLE, node)
        log = await cluster.log_is(lambda log: copyset(log).copyset.last_clean == 1)
        assert set(before).isdisjoint(nodeset(copyset(log)))
        found = {c.kind for c in (await cluster.status()).conditions if c.log == log.name}
        assert "data-lost" in found
        assert "appends-wait" not in found


async def test_new_nodes_are_used_from_the_next_epoch_on(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=2) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        await cluster.add_beating_nodes(2)
        await turns()
        assert nodeset(copyset(await cluster.describe())) == [1, 2]
        state = await cluster.vsn(3).activate(loglet, 1)
        assert [sorted(e.nodeset) for e in state.history] == [[1, 2], [1, 2, 3, 4]]
        assert [e.since for e in state.history] == [1, 2]


async def test_a_drained_node_leaves_the_nodeset_and_then_its_copies(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path, scripted=4) as cluster:
        loglet = (await cluster.create_copyset(nodeset=3)).log_id
        drained = nodeset(copyset(await cluster.describe()))[0]
        sequencer = next(node for node in (1, 2, 3, 4) if node != drained)
        await cluster.vsn(sequencer).activate(loglet, 0)
        cluster.tails[loglet] = make(1, 5)
        changed = await cluster.change_node(pb.ChangeNode.DRAIN, drained)
        assert "1 replicas move to other nodes" in changed.next
        log = await cluster.log_is(lambda log: copyset(log).copyset.last_clean == 1)
        state = copyset(log).copyset
        assert drained not in nodeset(copyset(log))
        assert [node.storage_node_id for node in state.nodes if node.draining] == [drained]
        assert (await cluster.node(drained)).replicas == 1
        with pytest.raises(InvalidArgument, match="has 1 replicas and is alive"):
            await cluster.change_node(pb.ChangeNode.REMOVE, drained, force=True)

        # What it had is trimmed: nothing needs it any more.
        node = cluster.vsn(state.sequencer)
        epoch = (await node.activate(loglet, state.epoch)).epoch
        cluster.tails[loglet] = make(epoch, 2)
        await cluster.trim(make(epoch, 1))
        assert (await cluster.node(drained)).replicas == 0
        await cluster.change_node(pb.ChangeNode.REMOVE, drained)
        assert drained not in [n.storage_node_id for n in (await cluster.status()).nodes]


async def test_with_too_few_other_nodes_a_drained_one_stays_in_the_nodeset(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=2) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        await cluster.change_node(pb.ChangeNode.DRAIN, 2)
        await turns()
        log = await cluster.describe()
        assert (nodeset(copyset(log)), copyset(log).copyset.epoch) == ([1, 2], 1)


async def test_conditions_tell_what_is_missed(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3, **QUICK) as cluster:
        log = await cluster.create_copyset(replicas=3, min_replicas=3)
        loglet, order = log.log_id, log.streams[0].copyset.history[0].nodeset
        await cluster.vsn(1).activate(loglet, 0)
        await cluster.vsn(2).activate(loglet, 1)
        assert copyset(await cluster.describe()).condition == "epoch 1 is not recovered yet"
        await cluster.vsn(1).activate(loglet, 2)
        assert copyset(await cluster.describe()).condition == "epochs 1 to 2 are not recovered yet"
        await cluster.vsn(1).set_clean(loglet, 3, 1, 0)
        await cluster.vsn(1).set_clean(loglet, 3, 2, 0)
        assert copyset(await cluster.describe()).condition == ""
        await cluster.vsn(3).crash()
        words = "2 of 3 nodes of the nodeset are alive; appends wait for 3 of them"
        words = f"{words}: start node 3"
        await cluster.log_is(lambda log: copyset(log).condition == words)
        assert (await cluster.status()).logs[0].streams[0].condition == words
        term = cluster.repository.term
        assert term is not None
        labels = '{log="events",stream="1"}'
        metrics = values(await cluster.repository.metrics())
        assert metrics[f"loomlog_copyset_nodes_missed{labels}"] == 1
        assert metrics[f"loomlog_copyset_epochs_unrecovered{labels}"] == 0
        [stream] = (await term.view.as_dict())["logs"][0]["streams"]
        nodes, shards = tuple(order), tuple(map(str, order))
        epochs = {"since": 1, "nodeset": nodes, "shards": shards, "replicas": 3}
        assert stream["copyset"] == {
            "sequencer": 1,
            "last_clean": 2,
            "closed": False,
            "history": (epochs,),
        }


async def test_the_sequencer_moves_away_from_a_drained_node(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=4) as cluster:
        loglet = (await cluster.create_copyset(nodeset=3)).log_id
        inside = nodeset(copyset(await cluster.describe()))
        outside = next(node for node in (1, 2, 3, 4) if node not in inside)
        await cluster.vsn(outside).activate(loglet, 0)
        await cluster.change_node(pb.ChangeNode.DRAIN, outside)
        log = await cluster.log_is(lambda log: copyset(log).copyset.last_clean == 1)
        assert (copyset(log).copyset.epoch, copyset(log).copyset.sequencer != outside) == (2, True)


async def test_who_takes_an_epoch_meanwhile_keeps_it(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        assert (await cluster.vsn(1).activate(loglet, 0)).taken
        assert not (await cluster.vsn(1).activate(loglet, 0)).taken, "it may have used it"
        term = cluster.repository.term
        assert term is not None
        keeper = term.keepers["copyset"]
        assert isinstance(keeper, CopysetKeeper)
        for node in (1, 2):  # also not the one that has it already
            assert await keeper.epochs.take_epoch(loglet, node, 0, closed=False) is None
        state = await cluster.vsn(1).get(loglet)
        assert (state.epoch, state.sequencer) == (1, 1)


async def test_a_node_that_registers_again_is_asked_whether_it_still_sequences(
    tmp_path: Path,
) -> None:
    """The node may have been restarted. Another may have to sequence by now, and is asked, too."""
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        chosen = sequencer_of(loglet, dict.fromkeys((1, 2, 3), 1.0))
        assert chosen is not None
        node, other = cluster.vsn(chosen % 3 + 1), cluster.vsn(chosen)
        await node.activate(loglet, 0)
        node.refuse["find_copyset_tail"] = NotLeader("another one does")
        await node.restart(cluster.address)
        await other.until(lambda: f"tail {loglet}" in other.orders)
        assert (await cluster.status()).leader_epoch, "and the metadata repository leads on"
