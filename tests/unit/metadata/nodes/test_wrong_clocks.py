"""The metadata repository finds wrong clocks, and deletes nothing because of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_node import PATIENCE_S, ScriptedNode
from small_cluster import SmallCluster, all_run, told, write_all

from loomlog.core.conditions import Kind
from loomlog.errors import Unavailable
from loomlog.metadata.nodes.clocks import Clocks
from loomlog.metadata.term import Term
from loomlog.wire import loomlog_pb2 as pb

pytestmark = pytest.mark.usefixtures("arrived_long_ago")

DAY_S = 86_400.0
HOUR_S = 3600


def term_of(cluster: SmallCluster) -> Term:
    assert cluster.repository.term is not None
    return cluster.repository.term


async def tell_clocks(cluster: SmallCluster, nodes: list[ScriptedNode]) -> None:
    """The metadata repository has heard the clock of each."""
    for node in nodes:
        await node.ask(pb.Frame(get_status=pb.GetStatus()))
        node.report()
        await node.ask(pb.Frame(get_status=pb.GetStatus()))


async def with_a_log(cluster: SmallCluster) -> list[ScriptedNode]:
    """Three nodes, and a log of ten entries that are kept for an hour; all of them are older."""
    nodes = await cluster.add_nodes(3)
    request = pb.CreateLog(
        name="events", protocol="ordered", streams=1, replicas=3, retention_s=HOUR_S
    )
    await cluster.client.ask(pb.Frame(create_log=request))
    await all_run(nodes, 1)
    write_all(nodes, 1, 10)
    for node in nodes:
        await told(node, 1, 10)
    return nodes


def asked_us(nodes: list[ScriptedNode]) -> list[int]:
    """Return the times from which on entries were to be kept."""
    return [timestamp_us for node in nodes for _, timestamp_us, _ in node.questions]


async def test_a_node_whose_clock_is_wrong_is_named(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(3)
        nodes[1].clock_ahead_s = -DAY_S
        await tell_clocks(cluster, nodes)
        (condition,) = await cluster.conditions(2)
        assert condition.startswith("its clock is 86400 s behind most others: check NTP")
        assert not await cluster.conditions(1)
        nodes[1].clock_ahead_s = 0.0
        await tell_clocks(cluster, nodes)
        assert not await cluster.conditions(2)


async def test_a_metadata_repository_whose_clock_is_wrong_says_so_and_deletes_nothing_early(
    tmp_path: Path,
) -> None:
    """The repository sees the clocks of all nodes a day behind its own."""
    async with SmallCluster(tmp_path) as cluster:
        nodes = await with_a_log(cluster)
        for node in nodes:
            node.clock_ahead_s = -DAY_S
        await tell_clocks(cluster, nodes)
        status = (await cluster.client.ask(pb.Frame(get_status=pb.GetStatus()))).status
        (condition,) = (each for each in status.conditions if each.kind == Kind.CLOCK_SKEW)
        assert condition.text == "its clock is 86400 s ahead of most others"
        assert not condition.storage_node_id, "it is about the metadata repository"
        await term_of(cluster).retention.trim_all()
        (kept_us,) = asked_us(nodes)
        assert abs(kept_us / 1e6 - (time.time() - DAY_S - HOUR_S)) < 60


async def test_nothing_is_deleted_while_most_nodes_are_away(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await with_a_log(cluster)
        await tell_clocks(cluster, nodes)
        for node in nodes[1:]:
            await node.crash()
        async with asyncio.timeout(PATIENCE_S):
            while cluster_is_known(term_of(cluster).clocks):
                await cluster.node(1)
        await term_of(cluster).retention.trim_all()
        assert not asked_us(nodes)
        status = (await cluster.client.ask(pb.Frame(get_status=pb.GetStatus()))).status
        assert "start those that are down" in " ".join(each.text for each in status.conditions)
        with pytest.raises(Unavailable):
            await cluster.client.ask(pb.Frame(find_expired=pb.FindExpired(name="events")))


def cluster_is_known(clocks: Clocks) -> bool:
    return not clocks.why_unknown()


async def test_when_all_clocks_jump_ahead_entries_stay_as_long_as_the_log_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await with_a_log(cluster)
        await tell_clocks(cluster, nodes)
        clocks = term_of(cluster).clocks
        before_us = clocks.oldest_kept_us(HOUR_S)
        jump(monkeypatch, clocks, time.time)
        for node in nodes:
            node.clock_ahead_s = DAY_S
        await tell_clocks(cluster, nodes)
        assert abs(clocks.oldest_kept_us(HOUR_S) - before_us) < 60e6
        assert clocks.oldest_kept_us(0) - before_us > DAY_S * 1e6


def jump(patch: pytest.MonkeyPatch, clocks: Clocks, wall_s: Callable[[], float]) -> None:
    patch.setattr(clocks, "_wall_s", lambda: wall_s() + DAY_S)


async def test_who_looks_after_a_log_is_told_what_is_too_old(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await with_a_log(cluster)
        await tell_clocks(cluster, nodes)
        for node in nodes:
            node.young_from[1] = 7
        question = pb.Frame(find_expired=pb.FindExpired(name="events"))
        assert (await cluster.client.ask(question)).expired.position == 6
        forever = pb.SetRetention(name="events", retention_s=0)
        await cluster.client.ask(pb.Frame(set_retention=forever))
        assert (await cluster.client.ask(question)).expired.position == 0
