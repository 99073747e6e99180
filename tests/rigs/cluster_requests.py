"""Requests of clients and operators to a metadata repository, one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from scripted_node import PATIENCE_S, Peer

from loomlog.core.chained.messages import Answer, Request
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import sequencer_answer_from_wire, sequencer_request_to_wire
from loomlog.wire.conditions import condition_from_wire


class ClusterRequests:
    def __init__(self) -> None:
        self.client = Peer()

    # ---- what a client asks

    async def create(self, name: str = "events", streams: int = 1, replicas: int = 2) -> pb.Log:
        return await self._create(name, "ordered", streams=streams, replicas=replicas)

    async def create_chained(
        self, name: str = "events", chains: int = 1, replicas: int = 3, min_replicas: int = 0
    ) -> pb.Log:
        return await self._create(
            name, "chained", streams=chains, replicas=replicas, min_replicas=min_replicas
        )

    async def create_copyset(
        self, name: str = "events", replicas: int = 2, nodeset: int = 0, min_replicas: int = 0
    ) -> pb.Log:
        return await self._create(
            name,
            "copyset",
            streams=1,
            replicas=replicas,
            nodeset=nodeset,
            min_replicas=min_replicas,
        )

    async def _create(self, name: str, protocol: str, **wanted: Any) -> pb.Log:
        request = pb.CreateLog(name=name, protocol=protocol, **wanted)
        return (await self.client.ask(pb.Frame(create_log=request))).log

    async def switch(self, protocol: str = "", name: str = "events", **wanted: Any) -> pb.Changed:
        request = pb.SwitchLog(name=name, protocol=protocol, **wanted)
        return (await self.client.ask(pb.Frame(switch_log=request))).changed

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

    async def ask_sequencer(self, loglet: int, request: Request) -> Answer:
        """Ask the sequencer of a chained segment."""
        message = sequencer_request_to_wire(loglet, request)
        answer = await self.client.ask(pb.Frame(sequencer_request=message))
        return sequencer_answer_from_wire(answer.sequencer_answer)

    async def log_is(self, true: Callable[[pb.Log], bool], name: str = "events") -> pb.Log:
        """Wait until the metadata repository says so about a log."""
        log = pb.Log()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not true(log := await self.describe(name)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"it never came true; the log is {log}") from None
        return log

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

    async def restart_node(self, node: int, within_s: float) -> pb.Changed:
        """Say that a node is about to be restarted."""
        action = pb.ChangeNode.RESTART
        request = pb.ChangeNode(action=action, storage_node_id=node, for_s=within_s)
        return (await self.client.ask(pb.Frame(change_node=request))).changed

    async def node(self, node_id: int) -> pb.NodeStatus:
        nodes = (await self.status()).nodes
        (found,) = (node for node in nodes if node.storage_node_id == node_id)
        return found

    async def conditions(self, node_id: int) -> list[str]:
        """Return what the metadata repository says is wrong with a node."""
        found = map(condition_from_wire, (await self.status()).conditions)
        return [condition.sentence for condition in found if condition.node == node_id]

    async def conditions_are(self, node_id: int, *expected: str) -> None:
        """Wait until the metadata repository says exactly this of a node."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.conditions(node_id) != list(expected):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

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
    """The nodes of an ordered stream."""
    return tuple(replica.storage_node_id for replica in stream.replicas)


def chained(log: pb.Log) -> pb.LogStream:
    """The stream of its newest chained segment."""
    return [stream for stream in log.streams if stream.protocol == "chained"][-1]


def nodes_of(stream: pb.LogStream) -> list[list[int]]:
    """The nodes of a chained segment: chain by chain, head first."""
    chains = stream.projection.chains
    return [[replica.storage_node_id for replica in chain.replicas] for chain in chains]


def is_whole(log: pb.Log, replicas: int = 3) -> bool:
    """Every chain of its newest chained segment has all its replicas."""
    return all(len(nodes) == replicas for nodes in nodes_of(chained(log)))


def copyset(log: pb.Log) -> pb.LogStream:
    """The stream of its first copyset segment."""
    return next(stream for stream in log.streams if stream.protocol == "copyset")


def nodeset(stream: pb.LogStream) -> list[int]:
    """The newest one of a copyset segment."""
    return sorted(stream.copyset.history[-1].nodeset)


def segments(log: pb.Log) -> list[tuple[str, int, int | None]]:
    """Protocol, start and end of each."""
    return [(s.protocol, s.start, s.end if s.HasField("end") else None) for s in log.segments]
