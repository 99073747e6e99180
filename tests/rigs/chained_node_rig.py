"""Chains on real storage nodes: orders of the metadata repository, requests of clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

from node_rig import PATIENCE_S, Nodes

from loomlog.batch import assign_llsn, assign_position, build
from loomlog.core.chained.chain import Block, Replica
from loomlog.core.chained.messages import (
    Answer,
    Create,
    Done,
    Pull,
    Request,
    Seal,
    SealedAt,
    Stored,
    Write,
)
from loomlog.errors import Unavailable
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import answer_from_wire, request_to_wire
from loomlog.wire.link import Connection

LOGLET = 5
EPOCH = 2


def replica(node: int = 1, chain: int = 0, birth: int = 1) -> Replica:
    return Replica(node, LOGLET, chain, birth)


def block(first: int, count: int = 1, *, sequence: int = 0, size: int = 100) -> Block:
    """A batch that stands at its positions."""
    body = (b"%d " % first * size)[:size]
    batch = build(
        body,
        codec=0,
        flags=0,
        count=count,
        raw_size=size,
        producer_id=7,
        sequence=sequence or first,
        min_timestamp_us=1,
        max_timestamp_us=2,
    )
    assign_llsn(batch, 1, EPOCH, first)
    assign_position(batch, first)
    return Block(first, count, 7, sequence or first, bytes(batch))


async def ask(
    connection: Connection, target: Replica, request: Request, *, wait_ms: int = 0
) -> Answer:
    message, payload = request_to_wire(target, request, wait_ms=wait_ms)
    frame = pb.Frame(chain_request=message)
    answer, content = await connection.request(frame, [payload], timeout_s=PATIENCE_S)
    return answer_from_wire(answer.chain_answer, content)


class ChainNodes(Nodes):
    """`async with ChainNodes(path, 1) as nodes:`"""

    async def order_chain(self, request: Request, target: Replica | None = None) -> Answer:
        target = target or replica()
        return await ask(self.metadata.nodes[target.node_id], target, request)

    async def order_when_connected(self, request: Request) -> Answer:
        """Order it again if the node registers again meanwhile."""
        while True:
            try:
                return await self.order_chain(request)
            except Unavailable:
                await asyncio.sleep(0)

    async def ask(
        self, request: Request, target: Replica | None = None, *, wait_ms: int = 0
    ) -> Answer:
        """Ask as a client does."""
        target = target or replica()
        return await ask(await self.client(target.node_id), target, request, wait_ms=wait_ms)

    async def pull(
        self,
        source: Replica,
        newcomer: Replica,
        position: int,
        bytes_max: int,
        *,
        epoch: int = EPOCH,
    ) -> Answer:
        """Pull as the metadata repository orders it: it knows where the source is."""
        message, _ = request_to_wire(newcomer, Pull(epoch, source, position, bytes_max))
        message.source.address = self.replica(source.node_id).address
        connection = self.metadata.nodes[newcomer.node_id]
        answer, content = await connection.request(
            pb.Frame(chain_request=message), timeout_s=PATIENCE_S
        )
        return answer_from_wire(answer.chain_answer, content)

    def ask_soon(self, request: Request, *, wait_ms: int) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.ask(request, wait_ms=wait_ms))

    async def create(self, *targets: Replica) -> None:
        """New replicas, sealed, and a client."""
        await self.client(1)
        for target in targets or (replica(),):
            assert await self.order_chain(Create(), target) == Done()
            assert await self.order_chain(Seal(EPOCH), target) == SealedAt(0, 0)

    async def until_stored(self, block: Block) -> None:
        """Try again and again."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.ask(Write(EPOCH, block)) != Stored():
                pass

    def chains(self, node: int = 1) -> Path:
        return self._directory / f"vsn-{node}/cid=test/snid={node}/chains"

    def found(self, node: int = 1) -> list[tuple[int, int, int, int]]:
        """The replicas of chains with which the node has registered."""
        registered = self.metadata.registrations[node].chain_replicas
        return [(ref.loglet_id, ref.chain, ref.birth, ref.epoch) for ref in registered]
