"""A metadata repository on loopback with scripted nodes, for tests that tell a story."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from scripted_node import PATIENCE_S, Peer, ScriptedNode

from loomlog.config import MetadataSettings
from loomlog.metadata import MetadataRepository
from loomlog.metadata.store.memory import MemoryStore
from loomlog.storage.disk import RealFiles
from loomlog.storage.files import Worker
from loomlog.types import ReplicaState
from loomlog.wire import loomlog_pb2 as pb


class SmallCluster:
    """Starts without nodes. The repository keeps rounds in real files and metadata in SQLite,
    unless a store or a worker is handed in: a worker decides when rounds are written, and then
    metadata is in memory."""

    def __init__(
        self,
        directory: Path,
        *,
        worker: Worker | None = None,
        store: MemoryStore | None = None,
        failure_detection_s: float = 30.0,
        heartbeat_s: float = 1.0,
        replace_after_s: float | None = None,
        round_file_bytes: int = 64 * 1024,
    ) -> None:
        self.settings = MetadataSettings(
            cluster_id="test",
            directory=str(directory),
            listen="127.0.0.1:0",
            http=None,
            failure_detection_s=failure_detection_s,
            heartbeat_s=heartbeat_s,
            replace_after_s=replace_after_s,
        )
        self._rng = random.Random(7)
        self._worker = worker
        self._store = MemoryStore() if store is None and worker is not None else store
        self._round_file_bytes = round_file_bytes
        self.nodes: list[ScriptedNode] = []
        self._addresses: dict[str, ScriptedNode] = {}
        self.client = Peer()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            await node.crash()
        if self.client.connection is not None:
            await self.client.disconnect()
        await self.repository.stop()

    async def _start(self) -> None:
        self.repository = MetadataRepository(
            self.settings,
            files=RealFiles(),
            worker=self._worker,
            store=self._store,
            rng=self._rng,
            round_file_bytes=self._round_file_bytes,
        )
        await self.repository.start()
        await self.client.connect(self.address)

    async def restart_repository(self) -> None:
        """Stop and start it on the same data; nodes have to join again."""
        await self.repository.stop()
        await self.client.until(lambda: self.client.connection is None)
        for node in self.nodes:
            await node.until(lambda node=node: node.connection is None)  # type: ignore[misc]
        await self._start()

    @property
    def address(self) -> str:
        return self.repository.address

    def _new_node(self, node_id: int) -> ScriptedNode:
        return ScriptedNode(node_id)

    async def add_nodes(self, count: int, location: str = "") -> list[ScriptedNode]:
        for _ in range(count):
            node = self._new_node(len(self.nodes) + 1)
            node.location = location
            node.peers = self._addresses
            self._addresses[f"node-{node.node_id}:1"] = node
            await node.join(self.address)
            self.nodes.append(node)
        return self.nodes

    async def add_beating_nodes(self, count: int, location: str = "") -> list[ScriptedNode]:
        for node in (await self.add_nodes(count, location))[-count:]:
            node.start_heartbeat()
        return self.nodes

    async def rejoin(self, *nodes: ScriptedNode) -> None:
        """After a restart of the repository, or of the nodes' processes."""
        away = [node for node in nodes if node.connection is None]
        await asyncio.gather(*(node.join(self.address) for node in away))
        for node in nodes:
            node.stop_heartbeat()
            node.start_heartbeat()

    # ---- what a client asks

    async def create(self, name: str = "events", streams: int = 1, replicas: int = 2) -> pb.Log:
        request = pb.CreateLog(name=name, protocol="ordered", streams=streams, replicas=replicas)
        return (await self.client.ask(pb.Frame(create_log=request))).log

    async def describe(self, name: str = "events") -> pb.Log:
        request = pb.Frame(describe_log=pb.DescribeLog(name=name))
        return (await self.client.ask(request)).log

    async def bounds(self, name: str = "events") -> tuple[int, int]:
        answer = await self.client.ask(pb.Frame(get_bounds=pb.GetBounds(name=name)))
        return answer.bounds.head, answer.bounds.tail

    async def trim(self, position: int, name: str = "events") -> tuple[int, int]:
        request = pb.Frame(trim_log=pb.TrimLog(name=name, position=position))
        answer = await self.client.ask(request)
        return answer.bounds.head, answer.bounds.tail

    async def delete(self, name: str = "events") -> None:
        await self.client.ask(pb.Frame(delete_log=pb.DeleteLog(name=name)))

    async def names(self) -> list[str]:
        answer = await self.client.ask(pb.Frame(list_logs=pb.ListLogs()))
        return [log.name for log in answer.log_list.logs]

    async def status(self) -> pb.Status:
        return (await self.client.ask(pb.Frame(get_status=pb.GetStatus()))).status

    async def stream(self, stream_id: int = 1) -> pb.LogStream:
        logs = (await self.status()).logs
        (found,) = (s for log in logs for s in log.streams if s.log_stream_id == stream_id)
        return found

    async def until(self, true: Callable[[pb.LogStream], bool], stream_id: int = 1) -> pb.LogStream:
        """Wait until the metadata repository says so about a stream."""
        async with asyncio.timeout(PATIENCE_S):
            while not true(found := await self.stream(stream_id)):
                pass
        return found

    async def runs_on(self, *nodes: int, stream_id: int = 1) -> pb.LogStream:
        return await self.until(lambda s: s.state == pb.RUNNING and replicas(s) == nodes, stream_id)

    # ---- what an operator asks

    async def change(
        self, action: pb.ChangeStream.Action, stream_id: int = 1, **more: Any
    ) -> pb.Changed:
        request = pb.ChangeStream(action=action, log_stream_id=stream_id, **more)
        return (await self.client.ask(pb.Frame(change_stream=request))).changed

    async def change_node(
        self, action: pb.ChangeNode.Action, node: int, *, force: bool = False
    ) -> pb.Changed:
        request = pb.ChangeNode(action=action, storage_node_id=node, force=force)
        return (await self.client.ask(pb.Frame(change_node=request))).changed

    async def node(self, node_id: int) -> pb.NodeStatus:
        nodes = (await self.status()).nodes
        (found,) = (node for node in nodes if node.storage_node_id == node_id)
        return found

    async def replace_node(self, node_id: int) -> pb.Changed:
        """Let it come back with empty volumes, once its connection is gone."""
        await self.node_is(node_id, lambda node: not node.alive)
        change = pb.ChangeNode(action=pb.ChangeNode.REPLACE, storage_node_id=node_id)
        return (await self.client.ask(pb.Frame(change_node=change))).changed

    async def node_is(self, node_id: int, true: Callable[[pb.NodeStatus], bool]) -> pb.NodeStatus:
        """Wait until the metadata repository says so about a node."""
        async with asyncio.timeout(PATIENCE_S):
            while not true(node := await self.node(node_id)):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        return node


def replicas(stream: pb.LogStream) -> tuple[int, ...]:
    return tuple(replica.storage_node_id for replica in stream.replicas)


async def all_run(nodes: list[ScriptedNode], stream_id: int, *, epoch: int | None = None) -> None:
    """Wait until the stream runs on all these nodes (in that epoch)."""
    for node in nodes:

        def runs(node: ScriptedNode = node) -> bool:
            replica = node.replicas.get(stream_id)
            return (
                replica is not None
                and replica.state is ReplicaState.RUNNING
                and epoch in (None, replica.epoch)
            )

        await node.until(runs)


def write_all(nodes: list[ScriptedNode], stream_id: int, count: int) -> None:
    for node in nodes:
        if stream_id in node.replicas:
            node.write(stream_id, count)


async def told(node: ScriptedNode, stream_id: int, high_watermark: int) -> None:
    """Wait until the node's replica knows the log up to this position."""
    context = node.replicas[stream_id].context
    await node.until(lambda: context.high_watermark >= high_watermark)


def commits(node: ScriptedNode, stream_id: int) -> list[tuple[int, int, int]]:
    """(first position, first LLSN, length) of what the node's replica was given."""
    found = [commit for stream, commit in node.commits if stream == stream_id]
    return [(c.glsn, c.llsn, c.length) for c in found if c.length]


async def turns(count: int = 3) -> None:
    """Let the loop go round, for things that must NOT happen."""
    for _ in range(count):
        await asyncio.sleep(0)
