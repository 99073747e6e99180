"""Replicas of chains that are going to join get their blocks from another node, part by part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from loomlog.core.chained.joining import pull
from loomlog.core.chained.messages import Answer, Ask, Pull, Refused, Request
from loomlog.core.chained.projection import Replica
from loomlog.errors import Busy, LoomError
from loomlog.net.connection import OnlyAnswers
from loomlog.net.links import Links
from loomlog.storage.write_once import Answered
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import answer_from_wire, request_to_wire
from loomlog.wire.codec import Codec

AskHere: TypeAlias = Callable[[Replica, Request, Answered], None]


class Pulling:
    """For all replicas of one node. Stays connected to the nodes that it pulled from."""

    def __init__(self, codec: Codec, ask_here: AskHere) -> None:
        self._ask_here = ask_here
        self._links = Links(codec, OnlyAnswers())

    async def pull(self, replica: Replica, request: Pull, address: str) -> Answer:
        """From its source, which is at this address. Busy: one of the two has too much to do."""
        steps = pull(replica, request)
        try:
            asks = next(steps)
            while True:
                waiting = [self._answer(replica, ask, address) for ask in asks]
                asks = steps.send(list(await asyncio.gather(*waiting)))
        except StopIteration as end:
            answer: Answer = end.value
            return answer

    def stop(self) -> None:
        self._links.close()

    async def _answer(self, replica: Replica, ask: Ask, address: str) -> Answer:
        assert isinstance(ask.target, Replica)
        if ask.target == replica:
            return await answer_to(lambda done: self._ask_here(replica, ask.request, done))
        message, _ = request_to_wire(ask.target, ask.request)
        try:
            connection = await self._links.connect(address)
            reply, content = await connection.request(pb.Frame(chain_request=message))
        except Busy:
            raise
        except LoomError as error:
            return Refused(f"node {ask.target.node_id}: {error}")
        return answer_from_wire(reply.chain_answer, content)


async def answer_to(ask: Callable[[Answered], None]) -> Answer:
    """Ask, and wait for the answer."""
    waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def answered(answer: Answer) -> None:
        if not waiting.done():  # else the node is about to stop
            waiting.set_result(answer)

    ask(answered)
    return await waiting
