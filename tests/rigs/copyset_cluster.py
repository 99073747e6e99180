"""A metadata repository with scripted nodes that take epochs and recover, for copyset logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripted_node import PATIENCE_S, ScriptedNode
from small_cluster import SmallCluster

from loomlog.core.copyset.record import Lsn, epoch_of, offset_of
from loomlog.errors import LoomError
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

_KINDS = pb.EpochStoreRequest


class ScriptedCopysetNode(ScriptedNode):
    """Its orders: "recover <loglet> epoch <epoch>", "TRIM <loglet> <lsn>", "FORGET <loglet> 0",
    "tail <loglet>"."""

    def __init__(self, node_id: int, tails: dict[int, Lsn]) -> None:
        super().__init__(node_id)
        self.tails = tails  # of loglets: shared by all nodes
        self.landmarks = pb.CopysetLandmarks()
        self.recovers = True  # False: recovery takes for ever
        self._recovering: set[asyncio.Task[None]] = set()

    # ---- what it asks

    async def get(self, loglet: int) -> pb.CopysetState:
        return await self._epochs(kind=_KINDS.GET, loglet_id=loglet)

    async def activate(self, loglet: int, expected: int) -> pb.CopysetState:
        return await self._epochs(kind=_KINDS.ACTIVATE, loglet_id=loglet, expected=expected)

    async def set_clean(self, loglet: int, by: int, epoch: int, tail: Lsn) -> pb.CopysetState:
        return await self._epochs(
            kind=_KINDS.SET_CLEAN,
            loglet_id=loglet,
            by=by,
            end=pb.CopysetEnd(epoch=epoch, last=offset_of(tail) if epoch_of(tail) == epoch else 0),
        )

    async def _epochs(self, **fields: Any) -> pb.CopysetState:
        request = pb.EpochStoreRequest(**fields)
        return (await self.ask(pb.Frame(epoch_store_request=request))).copyset_state

    # ---- what it is told

    def frame_received(self, connection: Connection, frame: Any, payload: memoryview) -> None:
        if not frame.HasField("recover_copyset") or "recover_copyset" in self.refuse:
            super().frame_received(connection, frame, payload)
            return
        state = frame.recover_copyset.state
        self.orders.append(f"recover {state.loglet_id} epoch {state.epoch}")
        self._happened.set()
        if self.recovers:
            task = asyncio.get_running_loop().create_task(
                self._recover(connection, frame.id, state)
            )
            self._recovering.add(task)
            task.add_done_callback(self._recovering.discard)

    async def _recover(self, connection: Connection, request: int, state: pb.CopysetState) -> None:
        loglet = state.loglet_id
        tail = self.tails.get(loglet, state.tail)
        try:
            for epoch in range(state.last_clean + 1, state.epoch):
                found = tail if epoch_of(tail) == epoch else state.tail
                await self.set_clean(loglet, state.epoch, epoch, found)
        except LoomError:
            return  # the connection is gone
        connection.send(pb.Frame(id=request, reply=True, done=pb.Done()))

    def _copyset_request(self, order: pb.CopysetRequest) -> pb.Frame:
        kind = pb.CopysetRequest.Kind.Name(order.kind)
        self.orders.append(f"{kind} {order.loglet_id} {order.lsn}")
        return pb.Frame(copyset_answer=pb.CopysetAnswer(kind=pb.CopysetAnswer.DONE))

    def _find_copyset_tail(self, question: pb.FindCopysetTail) -> pb.Frame:
        self.orders.append(f"tail {question.loglet_id}")
        tail = self.tails.get(question.loglet_id, 0)
        return pb.Frame(copyset_tail=pb.CopysetTail(tail=tail, epoch=epoch_of(tail)))

    def _find_copyset_landmarks(self, question: pb.FindCopysetLandmarks) -> pb.Frame:
        return pb.Frame(copyset_landmarks=self.landmarks)


class CopysetCluster(SmallCluster):
    """`async with CopysetCluster(path, nodes=3) as cluster:`"""

    def __init__(self, directory: Path, nodes: int = 3, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self._count = nodes
        self.tails: dict[int, Lsn] = {}

    def _new_node(self, node_id: int) -> ScriptedNode:
        return ScriptedCopysetNode(node_id, self.tails)

    async def __aenter__(self) -> CopysetCluster:
        await super().__aenter__()
        await self.add_beating_nodes(self._count)
        return self

    def vsn(self, node_id: int) -> ScriptedCopysetNode:
        node = self.nodes[node_id - 1]
        assert isinstance(node, ScriptedCopysetNode)
        return node

    async def create_copyset(
        self, name: str = "events", replicas: int = 2, nodeset: int = 0
    ) -> pb.Log:
        request = pb.CreateLog(
            name=name, protocol="copyset", streams=1, replicas=replicas, nodeset=nodeset
        )
        return (await self.client.ask(pb.Frame(create_log=request))).log

    async def switch(self, name: str = "events", **wanted: Any) -> pb.Changed:
        request = pb.SwitchLog(name=name, **wanted)
        return (await self.client.ask(pb.Frame(switch_log=request))).changed

    async def no_records_left(self) -> None:
        """Of copyset loglets, in the store."""
        term = self.repository.term
        assert term is not None
        async with asyncio.timeout(PATIENCE_S):
            while await term.store.list("copyset/"):
                pass

    async def log_is(self, true: Callable[[pb.Log], bool], name: str = "events") -> pb.Log:
        """Wait until the metadata repository says so."""
        async with asyncio.timeout(PATIENCE_S):
            while not true(log := await self.describe(name)):
                pass
        return log


def nodeset(stream: pb.LogStream) -> list[int]:
    """The newest one."""
    return sorted(stream.copyset.history[-1].nodeset)


def copyset(log: pb.Log) -> pb.LogStream:
    """The stream of its first copyset segment."""
    return next(stream for stream in log.streams if stream.protocol == "copyset")
