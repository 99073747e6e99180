"""The sequencers of this term: one hands out positions for each loglet that takes appends.

A sequencer is created when a projection of this term comes into force, and ends with the term,
because the next leader begins another epoch. So tickets are issued without confirming that this
process leads: if it does not, replicas refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from loomlog.core.chained.chain import Projection
from loomlog.core.chained.messages import (
    Answer,
    FindTicket,
    HandedOut,
    Next,
    Request,
)
from loomlog.core.chained.sequencer import (
    TICKETS_REMEMBERED,
    Sequencer,
    answer_without_sequencer,
)
from loomlog.errors import Busy
from loomlog.types import Glsn, LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import TicketProofs, sequencer_answer_to_wire, sequencer_request_from_wire
from loomlog.wire.link import Connection

REMEMBERED_LEAST: Final = 1_000  # tickets, however many loglets share the memory


class Sequencers:
    """The sequencers of this term, by loglet."""

    def __init__(
        self,
        leader_epoch: int,
        full: Container[LogId],
        why_full: Callable[[LogId], str],
        projection_of: Callable[[LogId], Projection | None],
        proofs: TicketProofs,
    ) -> None:
        """`full` are the loglets with a replica that lacks space. `why_full` returns why no append
        to one of them may begin; "" if it may. `projection_of` returns the projection in force."""
        self._proofs = proofs
        self._last_name = leader_epoch << 32
        self._full = full
        self._why_full = why_full
        self._projection_of = projection_of
        self._sequencers: dict[LogId, Sequencer] = {}
        self._stopped_at: dict[LogId, Glsn] = {}

    def new_name(self) -> int:
        """Return a new, unique name for the sequencer of one attempt at a projection."""
        self._last_name += 1
        return self._last_name

    def begin(self, projection: Projection) -> None:
        """Hand out positions in a projection that this term brought into force."""
        self.end(projection.log_id)
        if projection.first and not projection.closed:
            remembered = max(REMEMBERED_LEAST, TICKETS_REMEMBERED // (len(self._sequencers) + 1))
            self._sequencers[projection.log_id] = Sequencer(projection, remembered)

    def stop(self, loglet: LogId) -> Glsn:
        """Stop handing out positions, because the epoch is over. Return the first one that was not
        handed out; 0 if unknown, because the sequencer belonged to another term."""
        sequencer = self._sequencers.pop(loglet, None)
        if sequencer is not None:
            self._stopped_at[loglet] = sequencer.end
        return self._stopped_at.get(loglet, 0)

    def end(self, loglet: LogId) -> None:
        self._sequencers.pop(loglet, None)
        self._stopped_at.pop(loglet, None)

    def __contains__(self, loglet: LogId) -> bool:
        return loglet in self._sequencers

    def end_of(self, loglet: LogId) -> Glsn:
        """Return the first position that was not handed out; 0: unknown yet."""
        sequencer = self._sequencers.get(loglet)
        return sequencer.end if sequencer else self._stopped_at.get(loglet, 0)

    def answer_frame(self, connection: Connection, frame: pb.Frame) -> pb.Frame:
        loglet, request = sequencer_request_from_wire(frame.sequencer_request)
        is_tight = loglet in self._full and isinstance(request, Next)
        if is_tight and (why := self._why_full(loglet)):
            raise Busy(f"segment {loglet} takes no appends: {why}")
        answered = self.answer(loglet, request)
        if connection.session is not None or isinstance(request, FindTicket):
            answered = self._with_proof(loglet, request, answered)
        answer = pb.Frame()
        sequencer_answer_to_wire(answered, answer.sequencer_answer)
        return answer

    def _with_proof(self, loglet: LogId, request: Request, answer: Answer) -> Answer:
        """Add the proof to a new ticket of a client that is subject to permissions, because nodes
        require it. Clients of an older release do not send it: nodes request it instead, as any
        other client could."""
        if not isinstance(answer, HandedOut):
            return answer
        sequencer, ticket = self._sequencers[loglet], answer.ticket
        if sequencer.is_unproven(ticket) == isinstance(request, Next):
            return answer
        first, count, epoch, _ = ticket
        proof = self._proofs.make(loglet, first % sequencer.width, epoch, first, count)
        return HandedOut(ticket._replace(proof=proof))

    def answer(self, loglet: LogId, request: Request) -> Answer:
        sequencer = self._sequencers.get(loglet)
        if sequencer is not None:
            return sequencer.answer(request)
        return answer_without_sequencer(self._projection_of(loglet), request)
