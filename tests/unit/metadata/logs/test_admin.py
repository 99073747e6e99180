"""Logs are created, described, trimmed and deleted, and invalid requests are refused."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from scripted_node import ScriptedNode
from small_cluster import SmallCluster, told, turns, write_all

from loomlog.config import MetadataSettings
from loomlog.errors import AlreadyExists, Corrupt, InvalidArgument, LoomError, NotFound, Unavailable
from loomlog.metadata import MetadataRepository
from loomlog.wire import loomlog_pb2 as pb


async def test_a_created_log_runs_and_is_described(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(3)
        log = await cluster.create(streams=2, replicas=3)
        assert (log.log_id, log.name, log.protocol, log.replicas) == (1, "events", "ordered", 3)
        assert (log.head, log.tail) == (1, 0)
        assert [s.log_stream_id for s in log.streams] == [1, 2]
        assert {s.state for s in log.streams} == {pb.RUNNING}
        assert {r.state for node in nodes for r in node.replicas.values()} == {"running"}
        listed = {r.address for s in log.streams for r in s.replicas}
        assert listed == {node.address for node in nodes}
        described = await cluster.describe()
        assert described == log
        assert await cluster.names() == ["events"]


async def test_replicas_and_primaries_are_spread(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(3)
        logs = [await cluster.create(f"log-{n}", streams=2, replicas=2) for n in range(3)]
        placed = [
            [r.storage_node_id for r in stream.replicas] for log in logs for stream in log.streams
        ]
        assert Counter(node for nodes in placed for node in nodes) == {1: 4, 2: 4, 3: 4}
        assert Counter(nodes[0] for nodes in placed) == {1: 2, 2: 2, 3: 2}
        assert all(len(set(nodes)) == 2 for nodes in placed)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (pb.CreateLog(name="", protocol="ordered", streams=1, replicas=1), "valid log name"),
        (
            pb.CreateLog(name="a/b", protocol="ordered", streams=1, replicas=1),
            "valid log name",
        ),
        (
            pb.CreateLog(name="a\n", protocol="ordered", streams=1, replicas=1),
            "valid log name",
        ),
        (
            pb.CreateLog(name="x" * 201, protocol="ordered", streams=1, replicas=1),
            "valid log name",
        ),
        (pb.CreateLog(name="a", protocol="magic", streams=1, replicas=1), "available are ordered"),
        (pb.CreateLog(name="a", protocol="ordered", streams=0, replicas=1), "1 to 10000 streams"),
        (pb.CreateLog(name="a", protocol="ordered", streams=10001, replicas=1), "not 10001"),
        (pb.CreateLog(name="a", protocol="ordered", streams=1, replicas=0), "at least 1 replica"),
        (pb.CreateLog(name="a", protocol="ordered", streams=1, replicas=3), "2 are alive"),
    ],
)
async def test_a_log_that_cannot_be_is_refused_with_the_reason(
    tmp_path: Path, request_: pb.CreateLog, told: str
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(2)
        with pytest.raises(InvalidArgument, match=told):
            await cluster.client.ask(pb.Frame(create_log=request_))
        assert await cluster.names() == []


async def test_a_log_waits_for_nodes_that_come_back_after_a_restart(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_beating_nodes(2)
        await cluster.restart_repository()
        creation = asyncio.create_task(cluster.create(replicas=2))
        await turns()
        assert not creation.done()
        await cluster.rejoin(*nodes)
        assert len((await creation).streams[0].replicas) == 2


async def test_a_name_is_given_once(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(1)
        creations = (cluster.create(replicas=1) for _ in range(5))
        results = await asyncio.gather(*creations, return_exceptions=True)
        assert sum(isinstance(result, pb.Log) for result in results) == 1
        assert sum(isinstance(result, AlreadyExists) for result in results) == 4


async def test_a_log_that_does_not_exist_is_named(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        for attempt in (cluster.describe, cluster.bounds, cluster.delete):
            with pytest.raises(NotFound, match="'nothing'"):
                await attempt("nothing")
        with pytest.raises(NotFound, match="'nothing'"):
            await cluster.trim(1, "nothing")


async def test_a_log_that_a_node_refuses_is_taken_back(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        nodes[1].refuse["add_log_stream"] = Unavailable("the disk is full")
        with pytest.raises(LoomError, match="the disk is full"):
            await cluster.create(replicas=2)
        assert await cluster.names() == []
        assert nodes[0].replicas == {}
        nodes[1].refuse.clear()
        log = await cluster.create(replicas=2)
        assert (log.log_id, log.streams[0].log_stream_id) == (2, 2), "ids are never used again"


async def test_a_log_that_was_being_created_in_a_crash_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        nodes[0].ignore.add("unseal")  # the primary, which is unsealed last
        creation = asyncio.ensure_future(cluster.create(replicas=2))
        await nodes[1].until(lambda: "unseal 1 epoch 1" in nodes[1].orders)
        await cluster.restart_repository()
        with pytest.raises(Unavailable):
            await creation
        assert await cluster.names() == []
        nodes[0].ignore.clear()
        for node in nodes:
            await node.join(cluster.address)
            await node.until(lambda node=node: not node.replicas)  # type: ignore[misc]
        assert (await cluster.create(replicas=2)).log_id == 2


async def test_a_deleted_log_is_gone_with_its_data(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 2)
        await told(nodes[0], 1, 2)
        await cluster.delete()
        assert [node.replicas for node in nodes] == [{}, {}]
        with pytest.raises(NotFound):
            await cluster.describe()
        log = await cluster.create(replicas=2)
        assert (log.log_id, log.tail, log.streams[0].log_stream_id) == (2, 0, 2)


async def test_a_node_that_was_away_hears_of_the_deletion_when_it_returns(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        await nodes[1].disconnect()
        await cluster.delete()
        await cluster.restart_repository()
        await nodes[1].join(cluster.address)
        await nodes[1].until(lambda: not nodes[1].replicas)
        assert nodes[1].orders[-1] == "remove 1"


async def test_replicas_that_the_metadata_does_not_know_are_left_alone(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path / "one") as one, SmallCluster(tmp_path / "two") as two:
        (stranger,) = await one.add_nodes(1)
        await one.create(replicas=1)
        (node,) = await two.add_nodes(1)
        await node.disconnect()
        node.replicas = stranger.replicas
        await node.join(two.address)
        assert list((await two.node(1)).unknown_streams) == [1]
        assert await two.names() == []
        assert list(node.replicas) == [1]
        assert node.orders == []


async def test_trim_reaches_all_replicas_and_shows_in_the_bounds(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(streams=2, replicas=2)
        write_all(nodes, 1, 10)
        await told(nodes[0], 1, 10)
        assert await cluster.trim(4) == (5, 10)
        assert [node.trimmed for node in nodes] == [{1: 4, 2: 4}, {1: 4, 2: 4}]
        assert await cluster.trim(2) == (5, 10), "what is trimmed stays trimmed"
        assert await cluster.trim(10) == (11, 10)
        log = await cluster.describe()
        assert (log.head, log.tail) == (11, 10)


async def test_nothing_past_the_tail_can_be_trimmed(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(1)
        await cluster.create(replicas=1)
        with pytest.raises(InvalidArgument, match="ends at position 0"):
            await cluster.trim(1)
        assert await cluster.bounds() == (1, 0)


async def test_a_trim_survives_restarts_and_reaches_who_was_away(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 5)
        await told(nodes[1], 1, 5)
        await nodes[1].disconnect()
        assert await cluster.trim(3) == (4, 5)
        await cluster.restart_repository()
        await nodes[0].join(cluster.address)
        await nodes[1].join(cluster.address)
        assert await cluster.bounds() == (4, 5)
        await nodes[1].until(lambda: nodes[1].trimmed == {1: 3})


async def test_the_version_of_a_log_grows_with_every_change(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(1)
        created = await cluster.create(replicas=1)
        nodes[0].write(1, 1)
        await told(nodes[0], 1, 1)
        await cluster.trim(1)
        trimmed = await cluster.describe()
        await nodes[0].restart(cluster.address)
        await nodes[0].until(lambda: "unseal 1 epoch 2" in nodes[0].orders)
        unsealed = await cluster.describe()
        assert created.version < trimmed.version < unsealed.version


async def test_the_status_names_nodes_logs_and_rounds(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 3)
        await told(nodes[0], 1, 3)
        told_to_people = json.loads(json.dumps(await cluster.repository.status()))
        assert told_to_people["logs"][0]["streams"][0]["state"] == "running"
        assert not (await cluster.status()).nodes[0].HasField("stored_bytes"), "not known yet"
        heartbeat = pb.GetReportResponse(storage_node_id=1, conditions=pb.NodeConditions())
        assert nodes[0].connection is not None
        nodes[0].connection.send(pb.Frame(report=heartbeat))
        await nodes[1].disconnect()
        while (status := await cluster.status()).nodes[1].alive:
            pass
        assert (status.cluster_id, status.metadata_address) == ("test", cluster.address)
        assert status.rounds == 1
        assert [(n.storage_node_id, n.alive, n.replicas) for n in status.nodes] == [
            (1, True, 1),
            (2, False, 1),
        ]
        assert status.nodes[0].stored_bytes == 100
        assert status.logs[0].streams[0].entries == 3
        told_to_people = json.loads(json.dumps(await cluster.repository.status()))
        assert told_to_people["nodes"][1]["alive"] is False
        assert told_to_people["logs"][0]["tail"] == 3


async def test_people_and_monitoring_are_answered_over_http(tmp_path: Path) -> None:
    settings = MetadataSettings("test", str(tmp_path), "127.0.0.1:0", http="127.0.0.1:0")
    repository = MetadataRepository(settings)
    await repository.start()
    assert repository.http_address is not None
    node = ScriptedNode(1)
    await node.join(repository.address)
    assert "ok" in await get(repository.http_address, "/healthz")
    assert '"cluster_id": "test"' in await get(repository.http_address, "/status")
    assert 'loomlog_node_alive{node="1"} 1' in await get(repository.http_address, "/metrics")
    await node.disconnect()
    await repository.stop()


async def get(address: str, path: str) -> str:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


# ---- starting


async def test_an_address_in_use_is_an_error_and_everything_is_let_go(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path / "one") as cluster:
        for listen, http in ((cluster.address, None), ("127.0.0.1:0", cluster.address)):
            settings = MetadataSettings("test", str(tmp_path / "two"), listen, http)
            repository = MetadataRepository(settings)
            with pytest.raises(InvalidArgument, match="choose another address"):
                await repository.start()
            await repository.stop()


async def test_two_repositories_never_run_on_one_directory(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        second = MetadataRepository(cluster.settings)
        with pytest.raises(Unavailable, match="another process"):
            await second.start()


async def test_a_directory_that_cannot_be_made_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = MetadataSettings("test", str(tmp_path / "file" / "data"), "127.0.0.1:0", None)
    with pytest.raises(InvalidArgument, match="cannot use"):
        await MetadataRepository(settings).start()


async def test_metadata_without_its_round_log_is_not_served(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        settings = cluster.settings
    for path in (tmp_path / "vmr/rounds").iterdir():
        path.unlink()
    with pytest.raises(Corrupt, match="no round log"):
        await MetadataRepository(settings).start()
