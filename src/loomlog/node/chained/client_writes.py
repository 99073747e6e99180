"""Blocks that clients write to the replicas of chains. Some are stored only after asking the
metadata repository.

- Where permissions are enforced, only the writer of a block can have it stored: it shows the proof
  of its ticket (wire/chained.py). Readers also send writes, to complete a block that a writer left
  half-way, or to fill a hole, but the contents of these are not stored. Instead the metadata
  repository, which knows what was handed out, is asked to decide the position, and writes from the
  head down. The client is then told whether its block is there.
- Clients of an older release show no proofs. The sequencer returns the proof of such a ticket to
  anyone who asks for the ticket, including this node.
- A block far above everything known to be handed out is stored only if the sequencer confirms it.
  The next epoch begins above all blocks, so a block near the last position would end the log.

If the metadata repository is older than this node and does not support one of these steps, blocks
are stored without it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import (
    Answer,
    Beyond,
    FindEnd,
    FindTicket,
    Found,
    HandedOut,
    Missing,
    Read,
    Refused,
    Request,
    Stored,
    Write,
    Written,
)
from loomlog.core.chained.replica import REACH
from loomlog.errors import Busy, InvalidArgument, LoomError, PermissionDenied
from loomlog.node.workers import called_back
from loomlog.storage.chained.write_once import Answered
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import TicketProofs, sequencer_answer_from_wire, sequencer_request_to_wire
from loomlog.wire.link import Connection, Frame
from loomlog.wire.permissions import BLOCK_WRITE

ASKING_MAX: Final = 64  # concurrent questions of each kind to the metadata repository
ANSWER_S: Final = 0.8  # less than clients wait for a node

Ask: TypeAlias = Callable[[Replica, Request, Answered], None]
Question: TypeAlias = Callable[[Replica, Write], Awaitable[Answer]]
_TOO_OLD: Final = (InvalidArgument, PermissionDenied)  # answers of an older metadata repository


class ClientWrites:
    """The writes of clients to the replicas on one node."""

    def __init__(
        self,
        ask: Ask,
        end_of: Callable[[Replica], Glsn],
        request: Callable[[Frame], Awaitable[Frame]],
    ) -> None:
        """`ask` sends a request to a replica on this node, `end_of` returns the end of its blocks
        (0: it is not here), and `request` asks the metadata repository."""
        self._ask = ask
        self._end_of = end_of
        self._request = request
        self.proofs: TicketProofs | None = None  # None: tickets have no proofs
        self.reach: dict[Replica, Glsn] = {}  # blocks that end at or below are stored directly
        # Counted by kind, so that readers, which may be hostile, do not block writers.
        self._asking: Counter[Question] = Counter()

    def take(
        self, connection: Connection, replica: Replica, write: Write, done: Answered
    ) -> Awaitable[Answer] | None:
        """Handle a write: either call `done` with the answer, or return an awaitable of it. Not
        needed for a block within `reach` of a client without a session."""
        session = connection.session
        if session is not None:
            if (BLOCK_WRITE, replica.log_id) in session.lesser:
                return self._answer_later(self._decide, replica, write)
            if self.proofs is not None:
                if not self._is_proven(replica, write, write.proof):
                    return self._answer_later(self._decide_or_store, replica, write)
                self._ask(replica, write, done)
                return None
        if write.block.end > self.reach.get(replica, 0) and not self._is_near(replica, write):
            return self._answer_later(self._confirm, replica, write)
        self._ask(replica, write, done)
        return None

    def forget(self, replica: Replica) -> None:
        self.reach.pop(replica, None)

    def _is_near(self, replica: Replica, write: Write) -> bool:
        """Return whether the block is within reach. The reach is derived from the stored blocks
        only once, and later only from the sequencer, because any client may write blocks. Replicas
        that are not here store nothing and are not remembered, because any client may name them."""
        if replica not in self.reach:
            if not (end := self._end_of(replica)):
                return True
            self.reach[replica] = end + REACH
        return write.block.end <= self.reach[replica] or not write.block.is_sane

    async def _answer_later(self, question: Question, replica: Replica, write: Write) -> Answer:
        if self._asking[question] >= ASKING_MAX:
            raise Busy("this node asks about too many positions: try again later")
        self._asking[question] += 1
        try:
            return await question(replica, write)
        finally:
            self._asking[question] -= 1

    # ---- blocks without a proof

    def _is_proven(self, replica: Replica, write: Write, proof: bytes) -> bool:
        block, (_, loglet, chain, _) = write.block, replica
        return (
            self.proofs is not None
            and bool(proof)
            and block.is_sane
            and self.proofs.is_right(proof, loglet, chain, write.epoch, block.first, block.count)
        )

    async def _decide_or_store(self, replica: Replica, write: Write) -> Answer:
        """Store the block if its ticket belongs to a writer that cannot show proofs; otherwise
        decide the position."""
        if write.block.is_sane and not write.block.is_junk:
            find = FindTicket(write.epoch, write.block.first)
            try:
                answer = await self._ask_sequencer(replica, find)
            except (LoomError, TimeoutError) as error:
                return _refused(error)
            if isinstance(answer, HandedOut) and self._is_proven(
                replica, write, answer.ticket.proof
            ):
                return await self._answer(replica, write)
        return await self._decide(replica, write)

    async def _decide(self, replica: Replica, write: Write) -> Answer:
        block = write.block
        if not block.is_sane:
            return Refused(f"no block can be at [{block.first}, {block.end})")
        read = Read(write.epoch, block.first)
        answer = await self._answer(replica, read)
        if isinstance(answer, Missing):
            question = pb.DecidePosition(
                loglet_id=replica.log_id, epoch=write.epoch, position=block.first
            )
            try:
                await self._ask_metadata(pb.Frame(decide_position=question))
            except _TOO_OLD as error:
                return await self._answer(replica, write) if block.is_junk else _refused(error)
            except (LoomError, TimeoutError) as error:
                return _refused(error)
            answer = await self._answer(replica, read)
        match answer:
            case Found(stored):
                return Stored() if stored.is_same(block) else Written()
            case Missing():
                return Refused(f"position {block.first} is not decided on this chain")
        return answer

    # ---- a block far ahead

    async def _confirm(self, replica: Replica, write: Write) -> Answer:
        try:
            answer = await self._ask_sequencer(replica, FindEnd(write.epoch))
        except _TOO_OLD:
            return await self._answer(replica, write)
        except (LoomError, TimeoutError) as error:
            return _refused(error)
        if not isinstance(answer, Beyond):
            return answer if isinstance(answer, Refused) else Refused("no position is handed out")
        reach = max(self.reach.get(replica, 0), answer.end + REACH)
        if replica in self.reach:  # otherwise it was removed meanwhile
            self.reach[replica] = reach
        if write.block.end > reach:
            return Refused(
                f"no block can be at [{write.block.first}, {write.block.end}): positions are "
                f"handed out up to {answer.end - 1}"
            )
        return await self._answer(replica, write)

    # ---- asking

    async def _ask_sequencer(self, replica: Replica, request: Request) -> Answer:
        question = sequencer_request_to_wire(replica.log_id, request)
        reply = await self._ask_metadata(pb.Frame(sequencer_request=question))
        return sequencer_answer_from_wire(reply.sequencer_answer)

    async def _ask_metadata(self, question: Frame) -> Frame:
        async with asyncio.timeout(ANSWER_S):
            return await self._request(question)

    async def _answer(self, replica: Replica, request: Request) -> Answer:
        return await called_back(partial(self._ask, replica, request))


def _refused(error: Exception) -> Refused:
    return Refused(f"the metadata repository was asked: {error or 'it has not answered yet'}")
