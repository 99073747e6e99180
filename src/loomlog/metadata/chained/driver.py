"""Carries out the operations of core.chained: asks replicas over the nodes' connections, the
catalog of projections, and the sequencers of this term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from loomlog.core.chained.messages import (
    Answer,
    Ask,
    InForce,
    Lost,
    Pull,
    Pulled,
    Refused,
    Request,
    Service,
    Steps,
    Swap,
    Swapped,
)
from loomlog.core.chained.projection import Replica
from loomlog.errors import Busy, InvalidArgument, LoomError, NotLeader
from loomlog.metadata.chained.catalog import ChainedCatalog
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.metadata.members import Members
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import answer_from_wire, request_to_wire

BUSY_S: Final = 0.05  # a node that has too much to do is asked again after so long

Outcome = TypeVar("Outcome")
Copied = Callable[[Pulled], None]


class Driver:
    def __init__(
        self,
        catalog: ChainedCatalog,
        sequencers: Sequencers,
        members: Members,
        request_timeout_s: float,
        address_of: Callable[[NodeId], str],
    ) -> None:
        self._catalog = catalog
        self._sequencers = sequencers
        self._members = members
        self._request_timeout_s = request_timeout_s
        self._address_of = address_of

    async def drive(
        self,
        loglet: LogId,
        steps: Steps[Outcome],
        copied: Copied | None = None,
        bytes_per_s: int = 0,
    ) -> Outcome:
        """What comes of it. `copied` is told whatever a newcomer has pulled, which is not more than
        so many bytes a second, unless that is 0."""
        try:
            asks = next(steps)
            while True:
                answers = await asyncio.gather(*(self._answer(loglet, ask) for ask in asks))
                for answer in answers:
                    if copied is not None and isinstance(answer, Pulled):
                        copied(answer)
                        if bytes_per_s:
                            await asyncio.sleep(answer.size / bytes_per_s)
                asks = steps.send(answers)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

    async def _answer(self, loglet: LogId, ask: Ask) -> Answer:
        match ask.target:
            case Replica():
                return await self.ask(ask.target, ask.request)
            case Service.SEQUENCER:
                return self._sequencers.answer(loglet, ask.request)
            case Service.METADATA:
                return await self._metadata(loglet, ask.request)

    async def ask(self, replica: Replica, request: Request) -> Answer:
        """Its answer; Lost if there is none: at once, if its node is known to be silent."""
        needed = {replica.node_id}
        if isinstance(request, Pull):
            needed.add(request.source.node_id)
        if not all(self._members.reachable(node) for node in needed):
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
            message.source.address = self._address_of(request.source.node_id)
        frame = pb.Frame(chain_request=message)
        while True:
            try:
                answer, content = await self._members.exchange(
                    replica.node_id, frame, [payload], self._request_timeout_s
                )
                return answer_from_wire(answer.chain_answer, content)
            except Busy:
                await asyncio.sleep(BUSY_S)

    async def _metadata(self, loglet: LogId, request: Request) -> Answer:
        if isinstance(request, Swap):
            try:
                if await self._catalog.swap(request.projection):
                    self._sequencers.begin(request.projection)
                    return Swapped()
            except NotLeader:
                raise
            except LoomError:
                return Lost()
        record = self._catalog.get(loglet)
        return Lost() if record is None else InForce(record.projection)
