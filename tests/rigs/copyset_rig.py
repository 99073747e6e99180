"""Real storage nodes with real files and sockets, and a metadata repository with an epoch store
that a test plays."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Self

from loomlog.batch import build
from loomlog.config import NodeSettings
from loomlog.core.copyset import log_state
from loomlog.core.copyset.messages import (
    Activate,
    Contradict,
    Delivered,
    Finish,
    LogState,
    NodeAnswer,
    NodeRequest,
    Read,
    SetClean,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member, ranked
from loomlog.core.copyset.record import LSN_MAX, Epoch, Kind, Lsn, Record
from loomlog.errors import LoomError, NotLeader, RolledBack, Sealed, Unavailable
from loomlog.net.endpoints import connect
from loomlog.node import StorageNode
from loomlog.testing.ports import free_address
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.copyset import (
    KnownNode,
    answer_from_wire,
    request_to_wire,
    state_to_wire,
    store_request_from_wire,
)
from loomlog.wire.link import Connection, Frame, Server, Service

LOG = 7
STREAM = 3
STAMP = 0x5EED
PATIENCE_S = 30.0  # never waited for in full, unless something is broken


class PlayedEpochs(Service):
    """A metadata repository for tests, which say which nodes are alive."""

    def __init__(self, nodes: int, replication: int) -> None:
        codec = Codec("vmr", cluster_id="test")
        super().__init__(
            codec,
            {
                "register": self._register,
                "report": lambda *_: None,
                "epoch_store_request": self._swap,
            },
        )
        self.server = Server(codec, self)
        nodeset = tuple(Member(node) for node in range(1, nodes + 1))
        history = (EpochMetadata(1, nodeset, replication),)
        self.state = LogState(0, 0, history, 0, 0, stamp=STAMP)
        self.addresses: dict[int, str] = {}
        self.connections: dict[int, Connection] = {}
        self.dead: set[int] = set()
        self.lost: dict[int, int] = {}  # through which epoch
        self.rebuilt: list[pb.CopysetThrough] = []
        self.unanswered: dict[int, asyncio.Event] = {}  # nodes; set when they ask in vain
        self.registrations: dict[int, pb.Register] = {}
        self.contradictions: list[Contradict] = []

    async def _register(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        node = frame.register.storage_node_id
        known = self.registrations.get(node)
        if frame.register.lost_shards or (
            known is not None and known.node_secret != frame.register.node_secret
        ):
            self.lost[node] = self.state.epoch
        self.registrations[node] = frame.register
        self.addresses[node] = frame.register.address
        self.connections[node] = connection
        registered = pb.Registered(cluster_id="test", cluster_secret="secret")
        if node in self.lost:
            registered.lost.add(loglet_id=LOG, epoch=self.lost[node])
        return pb.Frame(registered=registered)

    async def _swap(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        state, taken = self.state, False
        node = next(n for n, known in self.connections.items() if known is connection)
        if node in self.unanswered:
            self.unanswered[node].set()
            raise Unavailable("there is no leader")
        match request := store_request_from_wire(frame.epoch_store_request, node):
            case Activate(expected=state.epoch) if not state.closed:
                taken = True
                self.state = replace(state, epoch=state.epoch + 1, sequencer=node)
            case SetClean():
                self.state = log_state.set_clean(state, request)
            case Finish():
                self.state = log_state.finish(state, request)
            case Contradict():
                self.contradictions.append(request)
                raise RolledBack("epochs are missing here")
        message = self.to_wire()
        message.taken = taken
        return pb.Frame(copyset_state=message)

    def to_wire(self) -> pb.CopysetState:
        nodes = [
            KnownNode(node, address, node not in self.dead)
            for node, address in sorted(self.addresses.items())
        ]
        message = state_to_wire(LOG, self.state, nodes)
        message.log_stream_id = STREAM
        message.rebuilt.extend(self.rebuilt)
        return message


class CopysetRig:
    """`async with CopysetRig(directory) as rig`: nodes 1 to `nodes` are started."""

    def __init__(self, directory: Path, nodes: int = 4, replication: int = 2) -> None:
        self._directory = directory
        self._codec = Codec("client", cluster_id="test")
        self._clients: dict[int, Connection] = {}
        self.epochs = PlayedEpochs(nodes, replication)
        self.nodes: dict[int, StorageNode] = {}

    async def __aenter__(self) -> Self:
        await self.epochs.server.start(free_address())
        for node in self.epochs.state.history[0].shards:
            await self.start(node)
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in list(self.nodes):
            await self.stop(node)
        await self.epochs.server.stop()
        await self.epochs.stop()

    @property
    def favourites(self) -> list[int]:
        """The nodes, the one that sequences first."""
        return ranked(LOG, dict.fromkeys(self.epochs.state.history[0].shards, 1.0))

    def path(self, node: int) -> Path:
        return self._directory / f"vsn-{node}"

    async def start(self, node: int) -> StorageNode:
        self.path(node).mkdir(exist_ok=True)
        started = StorageNode(
            NodeSettings(
                node_id=node,
                cluster_id="test",
                volumes=(str(self.path(node)),),
                metadata=(self.epochs.server.address,),
                listen=self.epochs.addresses.get(node) or free_address(),
            )
        )
        await started.start()
        self.nodes[node] = started
        await started.registered()
        self.epochs.dead.discard(node)
        return started

    async def stop(self, node: int) -> None:
        """Stop it as a crash would: pending requests stay open."""
        self.epochs.dead.add(node)
        client = self._clients.pop(node, None)
        if client is not None:
            client.close()
        await self.nodes.pop(node).stop()

    def wipe(self, node: int, what: str = "") -> None:
        """Lose its disk, or a part of it."""
        shutil.rmtree(next(self.path(node).rglob(what)) if what else self.path(node))

    # ---- what clients do

    async def client(self, node: int) -> Connection:
        known = self._clients.get(node)
        if known is None or known.closed:
            known = await connect(self.epochs.addresses[node], self._codec, self)
            self._clients[node] = known
        return known

    async def ask(self, node: int, frame: Frame, payload: bytes | bytearray = b"") -> Frame:
        connection = await self.client(node)
        answer, _ = await connection.request(frame, (payload,) if payload else ())
        return answer

    async def ordered(self, node: int, frame: Frame) -> Frame:
        """Ask a node as the metadata repository does."""
        answer, _ = await self.epochs.connections[node].request(frame)
        return answer

    async def append(
        self,
        node: int | None = None,
        *,
        count: int = 1,
        producer_id: int = 0,
        sequence: int = 0,
        repeated: bool = False,
        epoch: Epoch = 0,
    ) -> Lsn:
        """Append at the node that sequences, or at this one. Return 0 if it was not taken."""
        order = pb.CopysetAppend(loglet_id=LOG, repeated=repeated, epoch=epoch)
        batch = a_batch(count, producer_id, sequence)
        target = node or next(n for n in self.favourites if n not in self.epochs.dead)
        answer = await self.ask(target, pb.Frame(copyset_append=order), batch)
        assert answer.appended.first_glsn == answer.appended.first_llsn
        return int(answer.appended.first_glsn)

    async def is_refused(self, node: int) -> bool:
        """Return whether a sequencer that was replaced takes nothing. On a busy machine it may have
        noticed by now that it was, and then it says so instead."""
        try:
            return not await self.append(node)
        except (NotLeader, Sealed):
            return True

    async def tail(self, node: int) -> pb.CopysetTail:
        order = pb.Frame(find_copyset_tail=pb.FindCopysetTail(loglet_id=LOG))
        tail: pb.CopysetTail = (await self.ask(node, order)).copyset_tail
        return tail

    async def copies(
        self, node: int, request: NodeRequest, wait_ms: int = 0, stamp: int = STAMP
    ) -> NodeAnswer:
        connection = await self.client(node)
        message, batch = request_to_wire(node, request, stamp, wait_ms=wait_ms)
        answer, payload = await connection.request(
            pb.Frame(copyset_request=message), (batch,) if len(batch) else ()
        )
        return answer_from_wire(answer.copyset_answer, payload)

    async def shown(self, node: int, first: Lsn = 1) -> Delivered:
        """Return all records that a node returns."""
        answer = await self.copies(node, Read(LOG, first, LSN_MAX, 1 << 24, everything=True))
        assert isinstance(answer, Delivered), answer
        return answer

    async def data(self) -> dict[Lsn, Record]:
        """Return what the nodes that run show together."""
        found: dict[Lsn, Record] = {}
        for node in sorted(self.nodes):
            records = (await self.shown(node)).records
            found |= {record.first: record for record in records if record.kind is Kind.DATA}
        return dict(sorted(found.items()))

    async def shows(self, lsns: Collection[Lsn]) -> None:
        """Wait until the nodes show these batches, and no others."""
        async with asyncio.timeout(PATIENCE_S):
            while set(await self.data()) != set(lsns):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

    def frame_received(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> None:
        pass

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        pass


def a_batch(count: int = 1, producer_id: int = 0, sequence: int = 0) -> bytearray:
    return build(
        bytes(100),
        codec=0,
        flags=0,
        count=count,
        raw_size=100,
        producer_id=producer_id,
        sequence=sequence,
        min_timestamp_us=1,
        max_timestamp_us=2,
    )
