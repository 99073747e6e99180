"""Chains whose nodes die, come back without their disks, or are drained."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cluster_requests import chained, is_whole, nodes_of
from poll import until
from small_cluster import QUICK, SmallCluster

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Answer, Create, Done, Pull, Request
from loomlog.errors import InvalidArgument, Unavailable
from loomlog.metadata.chained.driver import Driver
from loomlog.wire import loomlog_pb2 as pb


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_appends_go_on_without_a_dead_node_and_a_spare_joins(
    tmp_path: Path, place: int
) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        log = await cluster.create_chained()
        for number in range(20):
            await cluster.log.append(b"%d" % number)
        dead = nodes_of(log.streams[0])[0][place]
        await cluster.stop_node(dead)
        await cluster.log.append(b"after")
        log = await cluster.log_is(is_whole)
        assert dead not in nodes_of(chained(log))[0]
        await cluster.log_is(lambda log: chained(log).condition == "")
        await cluster.log.append(b"whole again")
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_appends_wait_for_as_many_replicas_as_they_need(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"three")
        await cluster.stop_node(1)
        await cluster.log.append(b"two left")
        await cluster.stop_node(2)
        waiting = asyncio.create_task(cluster.log.append(b"back again"))
        needs = "appends wait: chain 0 has 1 replica and needs 2: start node 1 or node 2"
        condition = f"runs with 1 of 3 replicas; {needs}; there is no spare node"
        await cluster.log_is(lambda log: chained(log).condition == condition)
        assert await cluster.log.entries() == cluster.log.acknowledged
        assert not waiting.done()
        await cluster.start_node(2)
        await waiting
        log = await cluster.describe()
        assert len(nodes_of(chained(log))[0]) >= 2
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_appends_go_on_with_one_replica_of_three(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await cluster.create_chained(chains=2, min_replicas=1)
        for number in range(10):
            await cluster.log.append(b"%d" % number)
        await cluster.stop_node(1)
        await cluster.log.append(b"two left")
        await cluster.stop_node(2)
        await cluster.log.append(b"one left")
        await cluster.log_is(lambda log: nodes_of(chained(log)) == [[3], [3]])
        condition = "runs with 1 of 3 replicas; there is no spare node"
        await cluster.log_is(lambda log: chained(log).condition == condition)
        await cluster.start_node(1)
        await cluster.start_node(2)
        await cluster.log_is(is_whole)
        await cluster.log.append(b"whole again")
        assert await cluster.log.entries() == cluster.log.acknowledged
        await cluster.log_is(lambda log: chained(log).condition == "")


async def test_a_node_that_lost_its_disk_is_filled_again(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        for number in range(10):
            await cluster.log.append(b"%d" % number)
        await cluster.stop_node(2)
        cluster.lose_disk(2)
        await cluster.replace_node(2)
        await cluster.start_node(2)  # before anybody has missed it
        log = await cluster.log_is(lambda log: chained(log).projection.epoch > 1 and is_whole(log))
        assert nodes_of(chained(log))[0][-1] == 2, "newcomers are put at the end"
        await cluster.log.append(b"whole again")
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_node_that_only_restarted_stays(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one")
        await cluster.stop_node(2)
        await cluster.start_node(2)
        await cluster.log.append(b"two")
        log = await cluster.describe()
        assert chained(log).projection.epoch == 1
        assert is_whole(log)


async def test_a_node_that_is_heard_from_is_not_left_behind_because_a_client_says_so(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        log = await cluster.create_chained()
        loglet = log.streams[0].loglet_id
        report = pb.ReportChain(loglet_id=loglet, epoch=1, storage_node_id=2)
        with pytest.raises(Unavailable, match="node 2 still reports"):
            await cluster.client.ask(pb.Frame(report_chain=report))
        assert chained(await cluster.describe()).projection.epoch == 1


async def test_a_drained_node_leaves_when_another_took_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_copy = asyncio.Event()
    real = Driver.ask

    async def ask(self: Driver, replica: Replica, request: Request) -> Answer:
        if isinstance(request, Pull):
            await may_copy.wait()
        return await real(self, replica, request)

    monkeypatch.setattr(Driver, "ask", ask)
    async with SmallCluster(tmp_path, real=4, heartbeat_s=0.1) as cluster:
        log = await cluster.create_chained(chains=3)
        for number in range(30):
            await cluster.log.append(b"%d" % number)
        node = nodes_of(log.streams[0])[0][0]
        changed = await cluster.change_node(pb.ChangeNode.DRAIN, node)
        assert "replicas move to other nodes" in changed.next
        with pytest.raises(InvalidArgument, match=r"has .* replicas and is alive"):
            await cluster.change_node(pb.ChangeNode.REMOVE, node)
        may_copy.set()

        def left(log: pb.Log) -> bool:
            return is_whole(log) and all(node not in nodes for nodes in nodes_of(chained(log)))

        await cluster.log_is(left)
        await cluster.log.append(b"whole again")
        assert await cluster.log.entries() == cluster.log.acknowledged
        await cluster.no_chains_left(node)
        await cluster.change_node(pb.ChangeNode.REMOVE, node)


async def test_a_node_that_is_not_drained_any_more_stays(tmp_path: Path) -> None:
    async with SmallCluster(
        tmp_path, real=4, sync_bytes_per_s=1_000_000, heartbeat_s=0.1
    ) as cluster:
        log = await cluster.create_chained()
        for _ in range(5):
            await cluster.log.append(b"x" * 100_000)
        (before,) = nodes_of(log.streams[0])
        await cluster.change_node(pb.ChangeNode.DRAIN, before[0])
        await cluster.log_is(lambda log: chained(log).joining_node != 0)
        await cluster.change_node(pb.ChangeNode.UNDRAIN, before[0])
        await cluster.log_is(lambda log: chained(log).joining_node == 0 and is_whole(log))
        assert nodes_of(chained(await cluster.describe())) == [before]
        await cluster.no_chains_left(*{1, 2, 3, 4} - set(before))


async def test_a_dead_node_that_is_removed_is_forgotten(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        log = await cluster.create_chained()
        dead = nodes_of(log.streams[0])[0][0]
        await cluster.log.append(b"one")
        await cluster.stop_node(dead)
        await cluster.log_is(lambda log: dead not in nodes_of(chained(log))[0])
        await cluster.change_node(pb.ChangeNode.REMOVE, dead, force=True)
        assert dead not in [node.storage_node_id for node in (await cluster.status()).nodes]
        await cluster.log_is(is_whole)
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_newcomer_that_was_being_filled_by_another_leader_is_filled_anew(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        log = await cluster.create_chained()
        for number in range(50):
            await cluster.log.append(b"%d" % number * 100)
        await cluster.stop_node(nodes_of(log.streams[0])[0][1])
        await cluster.log_is(lambda log: chained(log).joining_node != 0 or is_whole(log))
        await cluster.restart_repository()
        await cluster.log_is(lambda log: is_whole(log) and chained(log).condition == "")
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_appends_go_on_while_nodes_die_and_come_back(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        await cluster.create_chained(chains=2)
        over = asyncio.Event()

        async def write() -> None:
            number = 0
            while not over.is_set():
                await cluster.log.append(b"%d" % (number := number + 1))

        writing = asyncio.create_task(write())
        for node in (1, 2, 3):
            await cluster.stop_node(node)
            await cluster.log_is(
                lambda log, node=node: (
                    is_whole(log)  # type: ignore[misc]
                    and all(node not in nodes for nodes in nodes_of(chained(log)))
                )
            )
            await cluster.start_node(node)
        over.set()
        await writing
        assert await cluster.log.entries() == cluster.log.acknowledged
        await cluster.replicas_agree()


async def test_a_spare_gets_all_although_epochs_change_while_it_is_filled(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, sync_bytes_per_s=3_000_000, **QUICK) as cluster:
        log = await cluster.create_chained(chains=2)
        over = asyncio.Event()

        async def write() -> None:
            while not over.is_set():
                await cluster.log.append(b"x" * 1_000)
                await asyncio.sleep(0.01)

        for _ in range(40):
            await cluster.log.append(b"x" * 50_000)
        writing = [asyncio.create_task(write()) for _ in range(3)]
        await cluster.stop_node(away := nodes_of(log.streams[0])[0][1])
        await cluster.log_is(lambda log: away not in nodes_of(chained(log))[0])
        for _ in range(20):  # not for as long as it takes: on a busy machine none could be filled
            if is_whole(await cluster.describe()):
                break
            await cluster.new_epoch(log.streams[0].loglet_id)
            await asyncio.sleep(0.15)
        await cluster.log_is(is_whole)
        over.set()
        await asyncio.gather(*writing)
        assert await cluster.log.entries() == cluster.log.acknowledged
        await cluster.replicas_agree()


async def test_a_replica_whose_disk_failed_leaves(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        log = await cluster.create_chained()
        await cluster.log.append(b"one")
        ill = nodes_of(log.streams[0])[0][1]
        cluster.fail_disk(ill)
        await cluster.log.append(b"two")
        log = await cluster.log_is(is_whole)
        assert ill not in nodes_of(chained(log))[0]
        assert await cluster.log.entries() == {1: b"one", 2: b"two"}


async def test_the_only_replica_goes_on_when_its_disk_is_well_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loomlog.limits.VOLUME_FAILED_S", 0.1)
    monkeypatch.setattr("loomlog.limits.VOLUME_LOOK_FAILED_S", 0.1)
    monkeypatch.setattr("loomlog.metadata.chained.upkeep.UNABLE_S", 0.1)
    async with SmallCluster(tmp_path, real=1, **QUICK) as cluster:
        await cluster.create_chained(replicas=1)
        await cluster.log.append(b"one")
        heal = cluster.fail_disk(1)
        appending = asyncio.create_task(cluster.log.append(b"two"))
        words = "nobody has all of chain 0: what node 1 had of it is lost, or"
        await cluster.log_is(lambda log: chained(log).condition.startswith(words))
        heal()
        await appending
        await cluster.log_is(lambda log: chained(log).condition == "")
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_spare_that_dies_while_it_is_filled_is_replaced(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=5, sync_bytes_per_s=500_000, **QUICK) as cluster:
        log = await cluster.create_chained()
        for _ in range(10):
            await cluster.log.append(b"x" * 100_000)
        await cluster.stop_node(nodes_of(log.streams[0])[0][0])
        log = await cluster.log_is(lambda log: "% copied" in chained(log).condition)
        assert chained(log).condition.startswith("runs with 2 of 3 replicas; node ")
        first = chained(log).joining_node
        await cluster.stop_node(first)
        await cluster.log_is(lambda log: is_whole(log) and first not in nodes_of(chained(log))[0])
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_log_is_switched_and_deleted_while_a_spare_is_filled(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, sync_bytes_per_s=1_000_000, **QUICK) as cluster:
        log = await cluster.create_chained()
        for _ in range(10):
            await cluster.log.append(b"x" * 100_000)
        await cluster.stop_node(nodes_of(log.streams[0])[0][0])
        await cluster.log_is(lambda log: "% copied" in chained(log).condition)
        await cluster.switch("ordered", streams=1, replicas=2)
        log = await cluster.log_is(is_whole)
        assert chained(log).projection.closed
        assert await cluster.log.entries() == cluster.log.acknowledged
        await cluster.delete()
        await cluster.no_chains_left(*cluster.storage)


async def test_a_node_has_its_time_to_come_back_before_it_is_replaced(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, replace_after_s=60.0, **QUICK) as cluster:
        log = await cluster.create_chained()
        await cluster.log.append(b"one")
        away = nodes_of(log.streams[0])[0][0]
        await cluster.stop_node(away)
        words = f"runs with 2 of 3 replicas; node {away} may come back before it is replaced"
        await cluster.log_is(lambda log: chained(log).condition == words)
        await cluster.log.append(b"two")
        await cluster.start_node(away)
        await cluster.log_is(is_whole)
        assert await cluster.log.entries() == {1: b"one", 2: b"two"}


async def test_what_no_record_names_is_deleted_only_by_an_operator(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        log = await cluster.create_chained()
        (nodes,) = nodes_of(log.streams[0])
        (other,) = {1, 2, 3, 4} - set(nodes)
        loglet = log.streams[0].loglet_id
        newer, foreign = Replica(other, loglet, 0, 1), Replica(other, 77, 0, 1)
        driver = cluster.driver
        for replica in (newer, foreign):  # metadata of another time may know them
            assert await driver.ask(replica, Create()) == Done()
        await cluster.stop_node(other)
        await cluster.start_node(other)
        created = await cluster.create_chained("another")
        assert created.log_id > 77, "no number is given that a node has"
        left = {r.loglet_id for r in cluster.replicas_of(other)}
        assert left == {loglet, 77} | {created.log_id} & left
        changed = await cluster.change_node(pb.ChangeNode.CLEANUP, other)
        assert changed.done == (f"node {other} deleted 2 replicas of chains that nobody knows")
        assert {r.loglet_id for r in cluster.replicas_of(other)} == left - {loglet, 77}


@pytest.mark.parametrize("copied", [False, True])
async def test_one_lost_disk_loses_nothing_while_a_node_that_left_is_filled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """The node keeps its old data until its new replica has everything. `copied`: the new one has
    something, too."""
    monkeypatch.setattr("loomlog.metadata.chained.upkeep.UNABLE_S", 0.1)
    monkeypatch.setattr("loomlog.metadata.chained.nodes.UNABLE_S", 0.1)
    monkeypatch.setattr("loomlog.core.chained.newcomer.COPY_PART_BYTES", 1)
    may_copy, pulled = asyncio.Event(), asyncio.Event()
    real = Driver.ask

    async def ask(self: Driver, replica: Replica, request: Request) -> Answer:
        if isinstance(request, Pull) and not request.salvage and (not copied or pulled.is_set()):
            pulled.set()
            await may_copy.wait()
        if isinstance(request, Pull):
            pulled.set()
        return await real(self, replica, request)

    monkeypatch.setattr(Driver, "ask", ask)
    async with SmallCluster(tmp_path, real=2, **QUICK) as cluster:
        await cluster.create_chained(replicas=2)
        for number in range(10):
            await cluster.log.append(b"%d" % number)
        await cluster.stop_node(1)
        await cluster.log_is(lambda log: nodes_of(chained(log)) == [[2]])
        await cluster.start_node(1)
        await pulled.wait()
        assert len(cluster.replicas_of(1)) == 2
        await cluster.stop_node(2)
        cluster.lose_disk(2)
        await cluster.replace_node(2)
        await cluster.start_node(2)
        assert await cluster.log.entries() == cluster.log.acknowledged
        may_copy.set()
        await cluster.log_is(lambda log: is_whole(log, 2))
        await cluster.log.append(b"whole again")
        assert await cluster.log.entries() == cluster.log.acknowledged
        await cluster.replicas_agree()
        await until(lambda: len(cluster.replicas_of(1)) == len(cluster.replicas_of(2)) == 1)


async def test_a_lost_chain_waits_for_a_node_that_left_it(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=2, **QUICK) as cluster:
        await cluster.create_chained(replicas=2)
        await cluster.log.append(b"one")
        await cluster.stop_node(1)
        await cluster.log_is(lambda log: nodes_of(chained(log)) == [[2]])
        await cluster.stop_node(2)
        cluster.lose_disk(2)
        await cluster.replace_node(2)
        await cluster.start_node(2)
        words = "chain 0 is lost but for what node 1 may have left: start it"
        await cluster.log_is(lambda log: words in chained(log).condition)
        await cluster.start_node(1)
        assert await cluster.log.entries() == cluster.log.acknowledged


@pytest.mark.parametrize("nodes", [3, 4])
async def test_operators_choose_the_head_of_a_chain(tmp_path: Path, nodes: int) -> None:
    """The others join again behind it, on a spare or where they are. It may be asked for twice."""
    async with SmallCluster(tmp_path, real=nodes, **QUICK) as cluster:
        log = await cluster.create_chained()
        stream = log.streams[0].log_stream_id
        for number in range(20):
            await cluster.log.append(b"%d" % number)
        (chain,) = nodes_of(chained(log))
        for _ in range(2):
            changed = await cluster.change(pb.ChangeStream.PRIMARY, stream, to_node=chain[2])
            assert f"node {chain[2]} is to be the head of chain 0" in changed.done
        await cluster.log.append(b"meanwhile")
        log = await cluster.log_is(lambda log: is_whole(log) and _head(log) == chain[2])
        assert len(set(nodes_of(chained(log))[0])) == 3
        changed = await cluster.change(pb.ChangeStream.PRIMARY, stream, to_node=chain[2])
        assert changed.done == f"node {chain[2]} is the head of chain 0 of stream {stream} already"
        await cluster.log.append(b"after")
        assert await cluster.log.entries() == cluster.log.acknowledged
        await cluster.log_is(lambda log: chained(log).condition == "")


async def test_only_a_node_of_a_chain_becomes_its_head(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, heartbeat_s=0.1) as cluster:
        log = await cluster.create_chained()
        stream = log.streams[0].log_stream_id
        (other,) = {1, 2, 3, 4}.difference(nodes_of(chained(log))[0])
        primary = pb.ChangeStream.PRIMARY
        with pytest.raises(InvalidArgument, match=f"node {other} has no replica of chain 0"):
            await cluster.change(primary, stream, to_node=other)
        with pytest.raises(InvalidArgument, match="has no replica of chain 1"):
            await cluster.change(primary, stream, to_node=1, part=1)
        last = nodes_of(chained(log))[0][2]
        drain = pb.ChangeNode(action=pb.ChangeNode.DRAIN, storage_node_id=last)
        await cluster.client.ask(pb.Frame(change_node=drain))
        with pytest.raises(InvalidArgument, match=f"node {last} is away, or leaves chain 0"):
            await cluster.change(primary, stream, to_node=last)


def _head(log: pb.Log) -> int:
    return nodes_of(chained(log))[0][0]
