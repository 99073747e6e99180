"""The epoch store of copyset logs: the requests of nodes, and their authorisation."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_requests import nodeset
from small_cluster import SmallCluster

from loomlog.core.copyset.record import make
from loomlog.errors import AlreadyExists, InvalidArgument, NotFound, Unauthorized
from loomlog.wire import loomlog_pb2 as pb


async def test_a_log_is_created_without_a_word_to_the_nodes(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        log = await cluster.create_copyset()
        (stream,) = log.streams
        assert (log.protocol, log.head, log.tail) == ("copyset", 1, 0)
        assert (stream.protocol, stream.state, stream.condition) == ("copyset", pb.RUNNING, "")
        state = stream.copyset
        assert (state.epoch, state.sequencer, state.last_clean, state.tail) == (0, 0, 0, 0)
        assert [(epochs.since, epochs.replication) for epochs in state.history] == [(1, 2)]
        assert nodeset(stream) == [1, 2, 3]
        assert [node.storage_node_id for node in state.nodes if node.alive] == [1, 2, 3]
        assert state.log_stream_id == stream.log_stream_id
        assert [node.orders for node in cluster.nodes] == [[], [], []]
        with pytest.raises(AlreadyExists):
            await cluster.create_copyset()


async def test_an_epoch_is_taken_by_one_node(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        one, two = cluster.vsn(1), cluster.vsn(2)
        taken = await one.activate(loglet, 0)
        assert (taken.epoch, taken.sequencer, taken.last_clean) == (1, 1, 0)
        late = await two.activate(loglet, 0)
        assert (late.epoch, late.sequencer) == (1, 1)
        assert (await two.activate(loglet, 1)).sequencer == 2
        assert (await one.get(loglet)).epoch == 2


async def test_only_the_newest_sequencer_says_what_is_clean(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        one, two = cluster.vsn(1), cluster.vsn(2)
        await one.activate(loglet, 0)
        await two.activate(loglet, 1)
        assert (await one.set_clean(loglet, 1, 1, make(1, 5))).last_clean == 0
        clean = await two.set_clean(loglet, 2, 1, make(1, 5))
        assert (clean.last_clean, clean.tail) == (1, make(1, 5))
        again = await two.set_clean(loglet, 2, 1, make(1, 7))
        assert (again.last_clean, again.tail) == (1, make(1, 5))
        assert (await two.set_clean(loglet, 2, 2, make(2, 1))).last_clean == 1


async def test_nobody_ends_or_cleans_the_epoch_of_another_node(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        await cluster.vsn(1).activate(loglet, 0)
        await cluster.vsn(2).activate(loglet, 1)
        before = await cluster.vsn(3).get(loglet)
        kinds = pb.EpochStoreRequest
        for kind, epoch, owner in (
            (kinds.SET_CLEAN, 2, 2),
            (kinds.USE_SHORT, 2, 2),
            (kinds.CONTRADICT, 2, 2),
            (kinds.FINISH, 2, 2),
            (kinds.FINISH, 1, 1),
        ):
            request = pb.EpochStoreRequest(kind=kind, loglet_id=loglet, by=epoch, epoch=epoch)
            request.end.epoch = 1
            with pytest.raises(Unauthorized, match=f"is of node {owner}, not of node 3"):
                await cluster.vsn(3).ask(pb.Frame(epoch_store_request=request))
        assert await cluster.vsn(3).get(loglet) == before


async def test_epochs_are_for_nodes_that_registered(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        request = pb.EpochStoreRequest(kind=pb.EpochStoreRequest.GET, loglet_id=loglet)
        with pytest.raises(Unauthorized):
            await cluster.client.ask(pb.Frame(epoch_store_request=request))
        with pytest.raises(NotFound):
            await cluster.vsn(1).get(loglet + 1)


async def test_a_takeover_loses_nothing(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset(nodeset=2)).log_id
        await cluster.vsn(1).activate(loglet, 0)
        await cluster.vsn(2).activate(loglet, 1)
        before = await cluster.vsn(2).set_clean(loglet, 2, 1, make(1, 5))
        await cluster.restart_repository()
        await cluster.rejoin(*cluster.nodes)
        after = await cluster.vsn(3).get(loglet)
        assert after == before


async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        with pytest.raises(InvalidArgument, match="4 replicas need as many nodes, and 3 are alive"):
            await cluster.create_copyset(replicas=4)
        with pytest.raises(InvalidArgument, match="a nodeset of 5 needs as many nodes, and 3"):
            await cluster.create_copyset(nodeset=5)
        with pytest.raises(InvalidArgument, match="it has 3 to 200"):
            await cluster.create_copyset(replicas=3, nodeset=2)
        request = pb.CreateLog(name="a", protocol="ordered", streams=1, replicas=1, nodeset=3)
        with pytest.raises(InvalidArgument, match="'ordered' has no nodesets"):
            await cluster.client.ask(pb.Frame(create_log=request))
        request = pb.CreateLog(name="a", protocol="copyset", streams=2, replicas=2)
        with pytest.raises(InvalidArgument, match="one stream: leave out how many"):
            await cluster.client.ask(pb.Frame(create_log=request))
        assert await cluster.names() == []
