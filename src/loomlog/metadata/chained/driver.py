"""Carry out the operations of core.chained: ask replicas over the connections of their nodes, the
catalog of projections, and the sequencers of this term.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import (
    Answer,
    ChainedAsk,
    InForce,
    Pull,
    Pulled,
    Refused,
    Request,
    Steps,
    Swap,
    Swapped,
)
from loomlog.core.requests import Lost, Outcome, Service, drive
from loomlog.errors import Busy, InvalidArgument, LoomError, NotLeader
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.chained.records import ChainedCatalog
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import answer_from_wire, request_to_wire

BUSY_S: Final = 0.05  # until a busy node is asked again


class Driver:
    """Carries out operations on chained loglets."""

    def __init__(
        self,
        catalog: Catalog,
        records: ChainedCatalog,
        sequencers: Sequencers,
        connected: ConnectedNodes,
        request_timeout_s: float,
    ) -> None:
        self._catalog = catalog
        self._records = records
        self._sequencers = sequencers
        self._connected = connected
        self._request_timeout_s = request_timeout_s

    async def drive(self, loglet: LogId, steps: Steps[Outcome], bytes_per_s: int = 0) -> Outcome:
        """Carry out an operation and return its outcome. Newcomers pull at most `bytes_per_s`; 0:
        without a limit."""

        async def answer(asks: list[ChainedAsk]) -> list[Answer]:
            answers = await asyncio.gather(*(self._answer(loglet, ask) for ask in asks))
            if bytes_per_s:
                pulled = sum(answer.size for answer in answers if isinstance(answer, Pulled))
                await asyncio.sleep(pulled / bytes_per_s)
            return answers

        return await drive(steps, answer)

    async def _answer(self, loglet: LogId, ask: ChainedAsk) -> Answer:
        match ask.target:
            case Replica():
                return await self.ask(ask.target, ask.request)
            case Service.SEQUENCER:
                return self._sequencers.answer(loglet, ask.request)
            case Service.METADATA:
                return await self._metadata(loglet, ask.request)

    async def ask(self, replica: Replica, request: Request) -> Answer:
        """Return the answer of a replica; Lost if there is none. Silent nodes are not asked."""
        needed = {replica.node_id}
        if isinstance(request, Pull):
            needed.add(request.source.node_id)
        if not all(self._connected.reachable(node) for node in needed):
            return Lost()
        try:
            async with asyncio.timeout(self._request_timeout_s):
                return await self._ask(replica, request)
        except InvalidArgument as error:
            return Refused(str(error))
        except (LoomError, TimeoutError):
            return Lost()

    async def _ask(self, replica: Replica, request: Request) -> Answer:
        message, payload = request_to_wire(replica, request)
        if isinstance(request, Pull):
            message.source.address = self._catalog.nodes[request.source.node_id].address
        frame = pb.Frame(chain_request=message)
        while True:
            try:
                answer, content = await self._connected.exchange(
                    replica.node_id, frame, [payload], self._request_timeout_s
                )
                return answer_from_wire(answer.chain_answer, content)
            except Busy:
                await asyncio.sleep(BUSY_S)

    async def _metadata(self, loglet: LogId, request: Request) -> Answer:
        if isinstance(request, Swap):
            try:
                if await self._records.swap(request.projection, request.unheard):
                    self._sequencers.begin(request.projection)
                    return Swapped()
            except NotLeader:
                raise
            except LoomError:
                return Lost()
        record = self._records.get(loglet)
        return Lost() if record is None else InForce(record.projection)
