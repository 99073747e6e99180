"""Chains in one process: every question is answered at once, unless a node is silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memory_tables import MemoryTable

from loomlog.core.chained.admission import Admission
from loomlog.core.chained.append import Appended, append
from loomlog.core.chained.chain import Block, Projection, Replica, Unheard, first_projection
from loomlog.core.chained.messages import (
    Answer,
    ChainedAsk,
    Create,
    Current,
    HandedOut,
    InForce,
    Next,
    Pull,
    Refused,
    Request,
    Seal,
    SealedAt,
    Steps,
    Swap,
    Swapped,
    Ticket,
    Write,
)
from loomlog.core.chained.newcomer import Newcomer, create, pull
from loomlog.core.chained.reconfigure import Goal, Reconfigured, reconfigure
from loomlog.core.chained.replica import decide
from loomlog.core.chained.sequencer import Sequencer
from loomlog.core.requests import Lost, Outcome, Service
from loomlog.types import Glsn, NodeId

LOG = 1


class Chains:
    """A log on nodes 1, 2, 3 (and spares), with a sequencer and a metadata repository."""

    def __init__(
        self, *, chains: int = 1, nodes: int = 3, remembered: int = 100, least: int = 1
    ) -> None:
        self.tables: dict[NodeId, MemoryTable] = {}
        self.silent: set[NodeId] = set()
        self.lives: dict[NodeId, int] = {}
        self.unheard: tuple[Unheard, ...] = ()  # of the last epoch
        self.asked: list[ChainedAsk] = []
        self.remembered = remembered
        order = list(range(1, nodes + 1))
        self.projection = first_projection(LOG, [order] * chains, birth=1, sequencer=1, least=least)
        for replica in self.projection.replicas:
            self.replica_answers(replica, Create())
            self.replica_answers(replica, Seal(1))
        self.sequencer: Sequencer | None = Sequencer(self.projection, remembered)
        self._numbers = 1

    # ---- answering

    def run(self, steps: Steps[Outcome]) -> Outcome:
        """Answer all that an operation asks."""
        try:
            asks = next(steps)
            while True:
                self.asked += asks
                asks = steps.send([self.answer(ask) for ask in asks])
        except StopIteration as ended:
            outcome: Outcome = ended.value
            return outcome

    def answer(self, ask: ChainedAsk) -> Answer:
        if isinstance(ask.target, Replica):
            if ask.target.node_id in self.silent:
                return Lost()
            if isinstance(ask.request, Pull):
                return self.run(pull(ask.target, ask.request))
            return self.replica_answers(ask.target, ask.request)
        if ask.target is Service.SEQUENCER:
            return self.sequencer.answer(ask.request) if self.sequencer else Refused("gone")
        match ask.request:
            case Swap(new, unheard) if new.epoch == self.projection.epoch + 1:
                self.projection, self.unheard = new, unheard
                return Swapped()
            case Swap() | Current():
                return InForce(self.projection)
        raise AssertionError(ask)

    def replica_answers(self, replica: Replica, request: Request) -> Answer:
        table = self.tables.setdefault(replica.node_id, MemoryTable())
        stored = table.look(replica)
        answer, changes = decide(request, stored.standing, stored)
        if changes:
            table.commit([(replica, change) for change in changes], sync=True)
        if isinstance(answer, SealedAt):
            answer = replace(answer, life=self.lives.get(replica.node_id, 0))
        return answer

    # ---- what tests do

    def ticket(self, count: int = 1) -> Ticket:
        assert self.sequencer is not None
        answer = self.sequencer.answer(Next(self.projection.epoch, count))
        assert isinstance(answer, HandedOut)
        return answer.ticket

    def appended(self, count: int = 1, sequence: int = 1) -> Block:
        block = batch(self.ticket(count), sequence)
        ticket = Ticket(block.first, block.count, self.projection.epoch)
        assert self.run(append(self.projection, ticket, block)) == Appended()
        return block

    def at_head_only(self, count: int = 1, sequence: int = 1) -> Block:
        """Write a block to the head alone: its writer died after the first step."""
        block = batch(self.ticket(count), sequence)
        head = self.projection.chain_of(block.first)[0]
        self.replica_answers(head, Write(self.projection.epoch, block))
        return block

    def on(self, node_id: NodeId, chain: int = 0) -> list[Block]:
        """Return what a node has of a chain in force."""
        [replica] = [r for r in self.projection.chains[chain] if r.node_id == node_id]
        stored = self.tables[node_id].look(replica)
        return [stored.load(extent) for extent in stored.scan(0, 1 << 20)]

    def reconfigured(
        self, goal: Goal | None = None, stop: Callable[[bool], Glsn] = lambda _: 0
    ) -> Projection:
        """Begin an epoch with its sequencer; return its projection."""
        self._numbers += 1
        ending = self.run(reconfigure(self.projection, goal or Goal(), self._numbers, stop))
        assert isinstance(ending, Reconfigured), ending
        closed = ending.projection.closed
        self.sequencer = None if closed else Sequencer(ending.projection, self.remembered)
        return ending.projection


def batch(ticket: Ticket, sequence: int = 1) -> Block:
    return Block(ticket.first, ticket.count, 9, sequence, b"batch")


def newcomer(log: Chains, node_id: int = 4, birth: int = 77) -> Newcomer:
    """Return a replica of the first chain that was filled."""
    made = log.run(create(log.projection, Replica(node_id, 1, 0, birth)))
    assert isinstance(made, Newcomer)
    admission = Admission(made)
    assert log.run(admission.catch_up(log.projection)) is None
    return admission.newcomer
