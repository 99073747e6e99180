"""Metadata that is older than the nodes never leads to the deletion of what it does not know.

A copy of the metadata repository's directory is put back after a log was created and written. For
that metadata the numbers of the log are free; the nodes hold its data. That such metadata is found
out and stopped (metadata/rollback/gate.py) is tested elsewhere: here nothing stops it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from node_services import chained_on, ordered_on, shard_on

from loomlog.client.cluster import Cluster
from loomlog.errors import LoomError
from loomlog.metadata.ordered import relief
from loomlog.metadata.rollback.gate import Gate
from loomlog.node import StorageNode
from loomlog.testing import LocalCluster

ENTRIES = [b"entry %d" % n for n in range(100)]
DETECTION_S = 0.5
PATIENCE_S = 30.0

Act = Callable[[LocalCluster, Cluster, str, int], Awaitable[None]]


def holdings(node: StorageNode) -> dict[str, int]:
    """Return everything with entries on the node, and its amount."""
    streams = {
        f"stream {held.driver.stream_id}": held.driver.store.last_llsn
        for held in ordered_on(node).held.values()
    }
    chains = {
        f"chain {replica}": len(volume._table.look(replica).scan(1, 1000))
        for volume in chained_on(node)._volumes._volumes
        if volume._table is not None
        for replica in volume.replicas
    }
    store = shard_on(node).copies.volume.store
    copies = {f"log {log}": store.stored_bytes(log) for log in store.logs()} if store else {}
    return {name: size for name, size in {**streams, **chains, **copies}.items() if size}


async def create_another(servers: LocalCluster, cluster: Cluster, protocol: str, node: int) -> None:
    with suppress(LoomError):  # whether it can be created now is another matter
        await cluster.create_log("c", protocol=protocol, replicas=3)


async def add_a_stream(servers: LocalCluster, cluster: Cluster, protocol: str, node: int) -> None:
    with suppress(LoomError):
        await cluster.add_stream("a")


async def lose_a_node(servers: LocalCluster, cluster: Cluster, protocol: str, node: int) -> None:
    """Stop a node of log a: an ordered log gets another stream, a chain a spare, a copyset log
    another sequencer."""
    await servers.stop_node(node)
    with suppress(LoomError):
        await cluster.log("a").append(b"goes on")
    await servers.start_node(node)


async def admit_all(gate: Gate, *_: object) -> None:
    gate._opened.set()


async def restart_metadata(servers: LocalCluster) -> None:
    await servers.start_metadata()
    assert servers.metadata is not None
    assert servers.metadata.term is not None
    nodes = servers.metadata.term.nodes
    async with asyncio.timeout(PATIENCE_S):
        while len(nodes.all_reachable()) < len(servers.nodes):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("act", "protocol"),
    [
        (create_another, "ordered"),
        (create_another, "chained"),
        (create_another, "copyset"),
        (add_a_stream, "ordered"),
        (lose_a_node, "ordered"),
        (lose_a_node, "chained"),
        (lose_a_node, "copyset"),
    ],
)
async def test_older_metadata_deletes_nothing(
    tmp_path: Path, act: Act, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gate, "admit", admit_all)
    monkeypatch.setattr(relief, "PATIENCE_S", 0.0)  # a new stream comes before a spare is filled
    servers = LocalCluster(nodes=4, directory=tmp_path, failure_detection_s=DETECTION_S)
    vmr, older, newer = tmp_path / "vmr", tmp_path / "older", tmp_path / "newer"
    async with servers as cluster:
        await cluster.create_log("a", protocol=protocol, replicas=3)
        (a,) = await cluster.logs()  # unlike describe(), it does not make anybody sequence
        node = a.streams[0].replicas[0].node
        await servers.stop_metadata()
        shutil.copytree(vmr, older)
        await restart_metadata(servers)
        b = await cluster.create_log("b", protocol=protocol, replicas=3)
        await b.append_many(ENTRIES)
        before = {number: holdings(node) for number, node in servers.nodes.items()}
        assert sum(bool(held) for held in before.values()) >= 3
        await servers.stop_metadata()
        vmr.rename(newer)
        shutil.copytree(older, vmr)
        await restart_metadata(servers)
        await act(servers, cluster, protocol, node)
        for number, server in servers.nodes.items():
            after = holdings(server)
            assert {name: after.get(name) for name in before[number]} == before[number]

        # With the metadata that knows it the log is all there.
        await servers.stop_metadata()
        shutil.rmtree(vmr)
        newer.rename(vmr)
        await servers.start_metadata()
        async with asyncio.timeout(PATIENCE_S):
            end = await b.tail()
            read = [entry.value async for entry in b.subscribe(start=1, stop=end)]
        assert read == ENTRIES
