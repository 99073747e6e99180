"""A dead node's replicas are made again on another node (docs/design/ordered.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_requests import replicas
from scrape import values
from scripted_node import ScriptedNode
from small_cluster import SmallCluster, all_run, commits, told, turns, write_all

from loomlog.core.backoff import Backoff
from loomlog.core.ordered.replica import ReplicaContext
from loomlog.errors import LoomError, Unavailable
from loomlog.metadata.ordered import relief
from loomlog.types import ReplicaState
from loomlog.wire import loomlog_pb2 as pb


@pytest.fixture(autouse=True)
def late_relief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new stream for appends meanwhile is another story (tests/cluster/test_relief.py)."""
    monkeypatch.setattr(relief, "PATIENCE_S", 60.0)


def quick(tmp_path: Path, replace_after_s: float | None = None) -> SmallCluster:
    return SmallCluster(
        tmp_path, failure_detection_s=0.4, heartbeat_s=0.05, replace_after_s=replace_after_s
    )


async def started(cluster: SmallCluster, nodes: int, entries: int = 3) -> list[ScriptedNode]:
    """A log with one stream on the first nodes but one, and some entries in three commits."""
    found = await cluster.add_beating_nodes(nodes)
    await cluster.create(replicas=min(nodes, 3))
    for count in range(1, entries + 1):
        write_all(found[:3], 1, 1)
        for node in found[:3]:
            await told(node, 1, count)
    return found


async def goes_on(cluster: SmallCluster, nodes: list[ScriptedNode]) -> None:
    """Check that what is appended now gets the next positions, on all these nodes."""
    _, tail = await cluster.bounds()
    write_all(nodes, 1, 2)
    for node in nodes:
        await told(node, 1, tail + 2)
        assert commits(node, 1)[-1][0] == tail + 1


# ---- a node dies


async def test_a_dead_backup_is_replaced_by_a_spare(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        await nodes[2].crash()
        await cluster.runs_on(1, 2, 4)
        assert nodes[3].orders == [
            *("add 1", "seal 1 epoch 2", "seal 1 epoch 2", "unseal 1 epoch 2"),
        ]
        assert nodes[1].orders[-2:] == ["copy 1 to 4", "unseal 1 epoch 2"]
        assert commits(nodes[3], 1) == commits(nodes[0], 1), "every entry has its old place"
        await goes_on(cluster, [nodes[0], nodes[1], nodes[3]])
        stream = await cluster.stream()
        assert (stream.condition, stream.joining_node) == ("", 0)


async def test_a_dead_primary_is_replaced_and_who_served_before_leads(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        await nodes[0].crash()
        await cluster.runs_on(2, 3, 4)
        await goes_on(cluster, nodes[1:])


async def test_a_node_that_hangs_is_replaced_like_a_dead_one(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        nodes[2].stop_heartbeat()  # the connection stays
        await cluster.runs_on(1, 2, 4)


async def test_the_spare_with_the_least_to_carry_is_taken(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        await cluster.add_beating_nodes(2)
        await cluster.create("other", streams=1, replicas=1)  # on node 4
        assert list(nodes[3].replicas) == [2]
        await nodes[2].crash()
        await cluster.runs_on(1, 2, 5)


async def test_without_a_spare_the_stream_stays_sealed_and_says_why(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        await nodes[2].crash()
        stream = await cluster.until(lambda s: "no spare node" in s.condition)
        assert stream.state == pb.STREAM_SEALED
        assert "waiting for node 3" in stream.condition
        assert values(await cluster.repository.metrics())["loomlog_streams_sealed"] == 1
        await cluster.add_beating_nodes(1)
        await cluster.runs_on(1, 2, 4)


async def test_a_node_has_time_to_come_back(tmp_path: Path) -> None:
    async with quick(tmp_path, replace_after_s=60.0) as cluster:
        nodes = await started(cluster, 4)
        await nodes[2].crash()
        stream = await cluster.until(lambda s: s.condition == "sealed: waiting for node 3")
        assert stream.state == pb.STREAM_SEALED
        await nodes[2].restart(cluster.address)
        nodes[2].start_heartbeat()
        await cluster.runs_on(1, 2, 3)
        assert "add 1" not in nodes[3].orders, "nobody takes its place"


async def test_a_spare_that_refuses_is_passed_over(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 5)
        nodes[3].refuse["add_log_stream"] = LoomError("the disk is full")
        await nodes[2].crash()
        await cluster.runs_on(1, 2, 5)


async def test_a_spare_that_cannot_be_filled_is_passed_over(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 5)
        nodes[3].refuse["sync_start"] = LoomError("the disk is full")
        await nodes[2].crash()
        await cluster.until(lambda s: "the disk is full" in s.condition)
        await cluster.runs_on(1, 2, 5)
        await nodes[3].until(lambda: 1 not in nodes[3].replicas)


async def test_a_replica_that_cannot_be_sealed_is_replaced(tmp_path: Path) -> None:
    """The replica's node lives, but its disk does not."""
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        nodes[2].refuse["seal"] = LoomError("the disk failed")
        nodes[2].replicas[1].self_seal()
        nodes[2].report(1)
        await cluster.runs_on(1, 2, 4)
        assert list((await cluster.node(3)).unknown_streams) == [1]


async def test_a_replica_that_lost_everything_is_synchronised_from_a_peer(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        await nodes[1].crash()
        nodes[1].replicas[1].context = ReplicaContext()
        nodes[1].commits.clear()
        await nodes[1].restart(cluster.address)
        nodes[1].start_heartbeat()
        await all_run(nodes, 1, epoch=2)
        assert "copy 1 to 2" in nodes[2].orders
        assert commits(nodes[1], 1) == commits(nodes[0], 1)


# ---- it comes back


async def test_a_node_that_returns_with_less_is_synchronised_and_used_again(
    tmp_path: Path,
) -> None:
    async with quick(tmp_path, replace_after_s=60.0) as cluster:
        nodes = await started(cluster, 3)
        nodes[2].applies_commits = False
        write_all(nodes, 1, 2)
        await told(nodes[0], 1, 5)
        await nodes[2].crash()
        context = nodes[2].replicas[1].context
        context.uncommitted_llsn_end = context.uncommitted_llsn_begin  # not synced: lost
        nodes[2].applies_commits = True
        await nodes[2].restart(cluster.address)
        nodes[2].start_heartbeat()
        await cluster.runs_on(1, 2, 3)
        assert commits(nodes[2], 1) == commits(nodes[0], 1)
        await goes_on(cluster, nodes)


async def test_a_node_that_returns_while_it_is_being_replaced_is_used_again(
    tmp_path: Path,
) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        for node in nodes[:2]:
            node.copies_at_once = 0
        await nodes[2].crash()
        stream = await cluster.until(lambda s: s.condition.startswith("copying"))
        assert (stream.joining_node, stream.copied_entries) == (4, 0)
        await nodes[2].restart(cluster.address)
        nodes[2].start_heartbeat()
        await cluster.runs_on(1, 2, 3)
        await nodes[3].until(lambda: 1 not in nodes[3].replicas)
        await goes_on(cluster, nodes[:3])


async def test_a_node_that_returns_too_late_is_a_zombie_and_harms_nobody(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        await nodes[2].crash()
        await cluster.runs_on(1, 2, 4)
        nodes[2].orders.clear()
        await nodes[2].restart(cluster.address)
        nodes[2].start_heartbeat()
        nodes[2].write(1, 7)
        await goes_on(cluster, [nodes[0], nodes[1], nodes[3]])
        assert nodes[2].orders == []
        assert list((await cluster.node(3)).unknown_streams) == [1]
        assert (await cluster.node(3)).replicas == 0


async def test_a_zombie_is_used_again_when_nobody_else_is_left(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        await nodes[2].crash()
        await cluster.runs_on(1, 2, 4)
        await goes_on(cluster, [nodes[0], nodes[1], nodes[3]])
        await nodes[2].restart(cluster.address)
        nodes[2].start_heartbeat()
        await nodes[3].crash()
        await cluster.runs_on(1, 2, 3)
        assert commits(nodes[2], 1) == commits(nodes[0], 1)
        assert "add 1" not in nodes[2].orders[1:], "what it had is used"
        await goes_on(cluster, nodes[:3])


async def test_a_newcomer_that_dies_is_replaced_itself_and_forgets_its_part(
    tmp_path: Path,
) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        for node in nodes[:2]:
            node.copies_at_once = 0
        await nodes[2].crash()
        await cluster.until(lambda s: s.condition.startswith("copying"))
        await nodes[3].crash()
        await cluster.until(lambda s: s.joining_node == 0)
        for node in nodes[:2]:
            node.copies_at_once = None
        await cluster.add_beating_nodes(1)
        await cluster.runs_on(1, 2, 5)
        await nodes[3].restart(cluster.address)
        await nodes[3].until(lambda: 1 not in nodes[3].replicas)
        assert list((await cluster.node(4)).unknown_streams) == []


async def test_a_newcomer_whose_connection_breaks_for_a_moment_goes_on(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        for node in nodes[:2]:
            node.copies_at_once = 0
        await nodes[2].crash()
        await cluster.until(lambda s: s.condition.startswith("copying"))
        await nodes[3].restart(cluster.address)
        nodes[3].start_heartbeat()
        for node in nodes[:2]:
            node.copies_at_once = None
        await cluster.runs_on(1, 2, 4)
        assert nodes[3].orders.count("add 1") == 1


# ---- the metadata repository restarts in the middle


def _refuse(kind: str, nodes: tuple[int, ...]) -> Callable[[list[ScriptedNode], bool], None]:
    def stop(found: list[ScriptedNode], on: bool) -> None:
        for node in (found[number - 1] for number in nodes):
            if on:
                node.refuse[kind] = Unavailable("not now")
            else:
                node.refuse.pop(kind)

    return stop


def _no_copies(found: list[ScriptedNode], on: bool) -> None:
    for node in found[:2]:
        node.copies_at_once = 0 if on else None


STEPS = {
    "the seal is not told": (_refuse("seal", (1, 2)), "sealed: telling node 1, 2"),
    "the spare is chosen": (_refuse("add_log_stream", (4,)), "making a replica on node 4"),
    "the spare is empty": (_refuse("synchronise", (1, 2)), "copying from node 2 to node 4"),
    "the copy goes on": (_no_copies, "copying from node 2 to node 4: 0 of 3"),
    "the spare is whole": (_refuse("seal", (4,)), "sealed: telling node 4"),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_restart_in_the_middle_goes_on_there(tmp_path: Path, step: str) -> None:
    hold, condition = STEPS[step]
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        hold(nodes, True)
        await nodes[2].crash()
        await cluster.until(lambda s: s.condition.startswith(condition))
        await cluster.restart_repository()
        hold(nodes, False)
        await cluster.rejoin(nodes[0], nodes[1], nodes[3])
        await cluster.runs_on(1, 2, 4)
        assert commits(nodes[3], 1) == commits(nodes[0], 1)
        assert nodes[3].orders.count("add 1") == 1
        await goes_on(cluster, [nodes[0], nodes[1], nodes[3]])


async def test_a_restart_when_the_spare_has_taken_over_but_nobody_runs_yet(
    tmp_path: Path,
) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        nodes[1].ignore.add("unseal")  # node 4 is told, node 1 is not: partly unsealed
        await nodes[2].crash()
        await nodes[3].until(lambda: "unseal 1 epoch 2" in nodes[3].orders)
        await cluster.restart_repository()
        nodes[1].ignore.clear()
        assert replicas(await cluster.stream()) == (1, 2, 4)
        await cluster.rejoin(nodes[0], nodes[1], nodes[3])
        await cluster.runs_on(1, 2, 4)
        await goes_on(cluster, [nodes[0], nodes[1], nodes[3]])


async def test_a_restart_gives_all_nodes_time_to_return(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        await cluster.restart_repository()
        await cluster.rejoin(nodes[3], nodes[1], nodes[0], nodes[2])
        await turns(20)
        assert replicas(await cluster.runs_on(1, 2, 3)) == (1, 2, 3)
        assert nodes[3].orders == []


# ---- trims


async def test_a_trim_during_a_replacement_reaches_the_newcomer(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 4)
        _no_copies(nodes, True)
        await nodes[2].crash()
        await cluster.until(lambda s: s.condition.startswith("copying"))
        await cluster.trim(2)
        _no_copies(nodes, False)
        await cluster.runs_on(1, 2, 4)
        await nodes[3].until(lambda: nodes[3].trimmed == {1: 2})


async def test_a_trim_that_fails_is_repeated(tmp_path: Path, short_retries: None) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        nodes[1].refuse["trim_log_stream"] = Unavailable("not now")
        assert await cluster.trim(2) == (3, 3)
        assert nodes[1].trimmed == {}
        nodes[1].refuse.clear()
        await nodes[1].until(lambda: nodes[1].trimmed == {1: 2})


@pytest.fixture
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loomlog.metadata.ordered.orders.RETRY", Backoff(0.01, 30.0))


async def test_a_stream_that_is_sealed_is_trimmed_too(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        nodes = await started(cluster, 3)
        await nodes[2].crash()
        await nodes[0].until(lambda: nodes[0].replicas[1].state is ReplicaState.SEALED)
        assert await cluster.trim(2) == (3, 3)
        assert nodes[0].trimmed == {1: 2}
        await nodes[2].restart(cluster.address)
        nodes[2].start_heartbeat()
        await nodes[2].until(lambda: nodes[2].trimmed == {1: 2})
