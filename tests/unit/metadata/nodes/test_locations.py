"""Locations of nodes: replicas of a stream are spread over as many as there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from cluster_requests import replicas
from scripted_node import ScriptedNode
from small_cluster import SmallCluster

from loomlog.core.placement import Placed, place, spread
from loomlog.errors import InvalidArgument


def racks(**nodes: tuple[int, ...]) -> dict[int, str]:
    return {node: f"rack={rack}" for rack, members in nodes.items() for node in members}


# ---- placement


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_stream_is_in_as_many_locations_as_there_are(count: int) -> None:
    locations = racks(a=(1, 2, 3), b=(4, 5), c=(6,))
    for chosen in place(20, count, sorted(locations), Placed(), locations):
        assert len(set(chosen)) == count
        assert len({locations[node] for node in chosen}) == min(count, 3)


def test_more_replicas_than_locations_are_spread_evenly() -> None:
    locations = racks(a=(1, 2, 3, 4), b=(5, 6, 7, 8))
    for chosen in place(10, 4, sorted(locations), Placed(), locations):
        assert sorted(Counter(locations[node] for node in chosen).values()) == [2, 2]


def test_nodes_of_equally_large_locations_carry_equally_much() -> None:
    locations = racks(a=(1, 2), b=(3, 4), c=(5, 6))
    placed = place(30, 3, sorted(locations), Placed(), locations)
    assert set(Counter(node for chosen in placed for node in chosen).values()) == {15}
    assert set(Counter(chosen[0] for chosen in placed).values()) == {5}


def test_a_node_without_location_is_in_one_of_its_own() -> None:
    locations = racks(a=(1, 2, 3)) | {4: "", 5: ""}
    for chosen in place(10, 3, [1, 2, 3, 4, 5], Placed(), locations):
        assert sum(node <= 3 for node in chosen) == 1


def test_without_locations_nothing_is_different() -> None:
    nodes, unlabelled = [1, 2, 3, 4], dict.fromkeys((1, 2, 3, 4), "")
    before = Placed([(1, 2)])
    assert place(9, 3, nodes, before) == place(9, 3, nodes, before, unlabelled)
    assert spread([3, 1, 2], 2, unlabelled) == [3, 1]


# ---- in a cluster


def quick(directory: Path) -> SmallCluster:
    return SmallCluster(directory, failure_detection_s=0.4, heartbeat_s=0.05)


async def test_status_names_the_location_and_a_new_one_counts_from_then_on(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1, "rack=a")
        assert (await cluster.node(1)).location == "rack=a"
        node.location = "rack=b"
        await node.restart(cluster.address)
        assert (await cluster.node(1)).location == "rack=b"


async def test_a_location_that_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        node = ScriptedNode(1)
        node.location = "rack\n"
        with pytest.raises(InvalidArgument, match="cannot have the location"):
            await node.join(cluster.address)
        await node.crash()


async def test_a_new_log_and_a_new_stream_are_spread(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(3, "rack=a")
        await cluster.add_nodes(1, "rack=b")
        log = await cluster.create(streams=3, replicas=2)
        assert all(4 in replicas(stream) for stream in log.streams)


async def test_a_dead_node_is_replaced_where_no_other_replica_is(tmp_path: Path) -> None:
    async with quick(tmp_path) as cluster:
        await cluster.add_beating_nodes(1, "rack=a")
        nodes = await cluster.add_beating_nodes(1, "rack=b")
        await cluster.create(replicas=2)
        await cluster.add_beating_nodes(2, "rack=a")
        await cluster.add_beating_nodes(1, "rack=b")
        await nodes[1].crash()
        await cluster.runs_on(1, 5)
