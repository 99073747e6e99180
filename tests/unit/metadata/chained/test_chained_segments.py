"""Logs of protocol `chained` as the metadata repository runs them, on real storage nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_requests import chained, is_whole, nodes_of
from small_cluster import QUICK, SmallCluster

from loomlog.errors import AlreadyExists, InvalidArgument, NotFound, Unavailable
from loomlog.wire import loomlog_pb2 as pb


async def test_a_log_is_created_and_takes_appends(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        log = await cluster.create_chained(chains=2)
        (stream,) = log.streams
        assert (log.protocol, stream.state, stream.condition) == ("chained", pb.RUNNING, "")
        assert stream.projection.epoch == 1
        assert sorted(map(sorted, nodes_of(stream))) == [[1, 2, 3], [1, 2, 3]]
        assert await cluster.bounds() == (1, 0)
        assert [await cluster.log.append(b"one"), await cluster.log.append(b"two", 3)] == [
            1,
            2,
        ]
        assert await cluster.bounds() == (1, 4)
        assert await cluster.log.entries() == {1: b"one", 2: b"two", 3: b"two", 4: b"two"}
        with pytest.raises(AlreadyExists):
            await cluster.create_chained()


async def test_without_enough_nodes_a_log_is_not_created(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=2, heartbeat_s=0.1) as cluster:
        with pytest.raises(InvalidArgument, match="3 replicas need as many nodes"):
            await cluster.create_chained()
        assert await cluster.names() == []
        await cluster.create_chained(replicas=2)
        assert await cluster.log.append(b"one") == 1


async def test_a_log_has_a_bounded_number_of_chains(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=1, failure_detection_s=10.0, heartbeat_s=0.1) as cluster:
        with pytest.raises(InvalidArgument, match="at most 256 chains, not 257"):
            await cluster.create_chained(chains=257, replicas=1)
        assert await cluster.names() == []
        await cluster.create_chained(chains=256, replicas=1)
        assert await cluster.log.append(b"one") == 1


async def test_what_a_log_has_that_could_not_be_created_is_removed(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        heal = cluster.refuse_chains(2)
        with pytest.raises(Unavailable, match=r"node 2 cannot take a chain: .* cannot be opened"):
            await cluster.create_chained()
        assert await cluster.names() == []
        await cluster.no_chains_left(1, 3)
        heal()  # until its table opens, nobody knows what node 2 has
        await cluster.no_records_left()


async def test_a_dead_node_is_not_enough_for_a_log(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await cluster.stop_node(3)
        words = "3 replicas need as many nodes, and 2 are alive: start node 3"
        with pytest.raises(Unavailable, match=words):
            await cluster.create_chained(min_replicas=3)


async def test_a_new_metadata_repository_begins_a_new_epoch(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one")
        await cluster.restart_repository()
        log = await cluster.log_is(lambda log: chained(log).state == pb.RUNNING)
        assert chained(log).projection.epoch == 2
        assert is_whole(log)
        assert await cluster.bounds() == (1, 1)
        assert await cluster.log.append(b"two") == 2
        assert await cluster.log.entries() == {1: b"one", 2: b"two"}


async def test_what_a_deleted_log_had_is_removed_from_its_nodes(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one")
        await cluster.delete()
        with pytest.raises(NotFound):
            await cluster.describe()
        assert await cluster.names() == []
        await cluster.no_chains_left(1, 2, 3)
        await cluster.no_records_left()


async def test_a_node_that_was_away_removes_what_a_deleted_log_had(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await cluster.create_chained()
        await cluster.stop_node(3)
        await cluster.delete()
        await cluster.restart_repository()
        await cluster.start_node(3)
        await cluster.no_chains_left(1, 2, 3)
        await cluster.no_records_left()
