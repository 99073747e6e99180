"""A client of chained segments, no larger than tests need: core.chained over real connections."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from scripted_node import PATIENCE_S, Peer

from loomlog.batch import HEADER_BYTES, assign_llsn, assign_position, build, read_header
from loomlog.core.chained.append import Appended, Overtaken, append, resolve
from loomlog.core.chained.chain import Block, Projection, Replica, block_of
from loomlog.core.chained.messages import (
    Answer,
    ChainedAsk,
    Found,
    HandedOut,
    Next,
    NotWritten,
    Refused,
    Request,
    Steps,
    Ticket,
    Trimmed,
)
from loomlog.core.chained.read import decide_at
from loomlog.core.requests import Lost, Service, drive
from loomlog.errors import InvalidArgument, LoomError
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import (
    answer_from_wire,
    projection_from_wire,
    request_to_wire,
    sequencer_answer_from_wire,
    sequencer_request_to_wire,
)

Outcome = TypeVar("Outcome")
PRODUCER = 7


class ChainedClient:
    """Appends to the active segment of a log, and reads all chained ones."""

    def __init__(self, metadata: Peer, log: str = "events") -> None:
        self._metadata = metadata
        self._log = log
        self._nodes: dict[str, Peer] = {}
        self._addresses: dict[int, str] = {}
        self._sequence = 0
        self.acknowledged: dict[int, bytes] = {}  # by position
        self.reports = 0

    async def close(self) -> None:
        for node in self._nodes.values():
            if node.connection is not None:
                await node.disconnect()

    # ---- what is asked

    async def projections(self) -> list[Projection]:
        """Of the chained segments, oldest first."""
        request = pb.Frame(describe_log=pb.DescribeLog(name=self._log))
        log = (await self._metadata.ask(request)).log
        found = []
        for stream in log.streams:
            if stream.protocol == "chained":
                projection, addresses = projection_from_wire(stream.projection)
                self._addresses.update(addresses)
                found.append(projection)
        return sorted(found, key=lambda projection: projection.first)

    async def drive(self, loglet: int, steps: Steps[Outcome]) -> Outcome:
        async def answer(asks: list[ChainedAsk]) -> list[Answer]:
            return await asyncio.gather(*(self._answer(loglet, ask) for ask in asks))

        return await drive(steps, answer)

    async def _answer(self, loglet: int, ask: ChainedAsk) -> Answer:
        if isinstance(ask.target, Replica):
            return await self._ask_replica(ask.target, ask.request)
        assert ask.target is Service.SEQUENCER
        return await self.ask_sequencer(loglet, ask.request)

    async def ask_sequencer(self, loglet: int, request: Request) -> Answer:
        message = sequencer_request_to_wire(loglet, request)
        try:
            answer = await self._metadata.ask(pb.Frame(sequencer_request=message))
        except LoomError:
            return Lost()
        return sequencer_answer_from_wire(answer.sequencer_answer)

    async def _ask_replica(self, replica: Replica, request: Request) -> Answer:
        message, payload = request_to_wire(replica, request)
        try:
            node = await self._node(self._addresses[replica.node_id])
            assert node.connection is not None
            answer, content = await node.connection.request(
                pb.Frame(chain_request=message), [payload], timeout_s=PATIENCE_S
            )
        except InvalidArgument as error:
            return Refused(str(error))
        except LoomError:
            await self._report(replica)
            return Lost()
        found = answer_from_wire(answer.chain_answer, content)
        if isinstance(found, Refused):
            await self._report(replica)
        return found

    async def _node(self, address: str) -> Peer:
        node = self._nodes.setdefault(address, Peer())
        if node.connection is None:
            await node.connect(address)
        return node

    async def _report(self, replica: Replica) -> None:
        for projection in await self.projections():
            if replica in projection.replicas:
                self.reports += 1
                report = pb.ReportChain(
                    loglet_id=projection.log_id,
                    epoch=projection.epoch,
                    storage_node_id=replica.node_id,
                )
                try:
                    await self._metadata.ask(pb.Frame(report_chain=report))
                except LoomError:
                    await asyncio.sleep(0.02)

    # ---- appending

    async def append(self, text: bytes, count: int = 1) -> int:
        """The position, however often it has to be tried."""
        return await self.append_within(PATIENCE_S, text, count)

    async def append_within(self, patience_s: float, text: bytes, count: int = 1) -> int:
        self._sequence += 1
        sequence = self._sequence
        async with asyncio.timeout(patience_s):
            while True:
                projection = (await self.projections())[-1]
                ticket = await self._ticket(projection, count)
                if ticket is None:
                    await asyncio.sleep(0.01)
                    continue
                block = _block(ticket, text, sequence)
                if isinstance(await self._write(ticket, block), Appended):
                    self.acknowledged[block.first] = text
                    return block.first

    async def _ticket(self, projection: Projection, count: int) -> Ticket | None:
        answer = await self.ask_sequencer(projection.log_id, Next(projection.epoch, count))
        return answer.ticket if isinstance(answer, HandedOut) else None

    async def _write(self, ticket: Ticket, block: Block) -> Appended | Overtaken:
        while True:
            projection = (await self.projections())[-1]
            steps = (
                append(projection, ticket, block)
                if ticket.epoch == projection.epoch
                else resolve(projection, block)
            )
            outcome = await self.drive(projection.log_id, steps)
            if isinstance(outcome, Appended | Overtaken):
                return outcome
            await asyncio.sleep(0.01)

    # ---- reading

    async def entries(self) -> dict[int, bytes]:
        """All blocks with records of the chained segments, by position."""
        found: dict[int, bytes] = {}
        for projection in await self.projections():
            found |= await self._entries(projection)
        return found

    async def _entries(self, projection: Projection) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        position = projection.first
        async with asyncio.timeout(PATIENCE_S):
            while True:
                outcome = await self.drive(projection.log_id, decide_at(projection, position))
                match outcome:
                    case Found(block):
                        if not block.is_junk:
                            found[block.first] = _text(block)
                        position = block.end
                    case Trimmed(trimmed):
                        position = trimmed + 1
                    case NotWritten():
                        return found
                    case _:
                        await asyncio.sleep(0.01)
                        newest = await self.projections()
                        projection = next(p for p in newest if p.log_id == projection.log_id)


def _block(ticket: Ticket, text: bytes, sequence: int) -> Block:
    batch = build(
        text,
        codec=0,
        flags=0,
        count=ticket.count,
        raw_size=len(text),
        producer_id=PRODUCER,
        sequence=sequence,
        min_timestamp_us=1,
        max_timestamp_us=1,
    )
    assign_llsn(batch, 1, ticket.epoch, ticket.first)
    assign_position(batch, ticket.first)
    return block_of(bytes(batch))


def _text(block: Block) -> bytes:
    size = read_header(block.batch).body_size
    return bytes(block.batch[HEADER_BYTES : HEADER_BYTES + size])
