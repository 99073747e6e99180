"""The sequencer gives the proof of a ticket to its writer, or to nodes if that cannot show it."""

from __future__ import annotations

from typing import Any

import pytest

from loomlog.core.chained.chain import first_projection
from loomlog.core.chained.messages import FindTicket, HandedOut, Next, Request, Ticket
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import TicketProofs, sequencer_answer_from_wire, sequencer_request_to_wire

LOGLET = 5
PROOFS = TicketProofs("secret")


class Peer:
    def __init__(self, *, judged: bool) -> None:
        self.session = object() if judged else None


class Desk:
    def __init__(self) -> None:
        projection = first_projection(LOGLET, [[1], [2], [3]], birth=1, sequencer=1, first=100)
        self.sequencers = Sequencers(1, (), lambda loglet: "", lambda loglet: None, PROOFS)
        self.sequencers.begin(projection)

    def ask(self, request: Request, *, judged: bool = True) -> Ticket:
        peer: Any = Peer(judged=judged)
        frame = pb.Frame(sequencer_request=sequencer_request_to_wire(LOGLET, request))
        reply = self.sequencers.answer_frame(peer, frame)
        answer = sequencer_answer_from_wire(reply.sequencer_answer)
        assert isinstance(answer, HandedOut)
        return answer.ticket


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_writer_that_is_judged_gets_the_proof_and_nobody_else(desk: Desk) -> None:
    proof = PROOFS.make(LOGLET, 1, 1, 100, 3)
    assert desk.ask(Next(1, 3)) == Ticket(100, 3, 1, proof)
    assert desk.ask(Next(1, 1), judged=False) == Ticket(103, 1, 1)
    for judged in (True, False):
        assert desk.ask(FindTicket(1, 101), judged=judged) == Ticket(100, 3, 1)


@pytest.mark.parametrize("judged", [True, False])
def test_the_proof_of_a_writer_that_cannot_show_it_is_given_to_who_asks(
    desk: Desk, judged: bool
) -> None:
    assert desk.ask(Next(1, 2, proves=False), judged=judged) == Ticket(100, 2, 1)
    desk.ask(Next(1, 2))
    proof = PROOFS.make(LOGLET, 1, 1, 100, 2)
    assert desk.ask(FindTicket(1, 101), judged=judged) == Ticket(100, 2, 1, proof)
    assert desk.ask(FindTicket(1, 102)) == Ticket(102, 2, 1)
