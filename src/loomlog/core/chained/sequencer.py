"""The sequencer hands out the positions of one epoch. Pure; its state is not stored.

A projection has exactly one, created by the party that made the projection. If it is lost, its
epoch is over: a second sequencer of the same epoch could hand out positions that overlap with
tickets of the first, and because they may be on different chains nobody would notice.

It hands out nothing while a chain has fewer replicas than appends need.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from loomlog.core.chained.chain import Projection
from loomlog.core.chained.messages import (
    Answer,
    Beyond,
    EpochOver,
    FindEnd,
    FindTicket,
    Forgotten,
    HandedOut,
    Next,
    Refused,
    Request,
    Ticket,
)
from loomlog.errors import InvalidArgument
from loomlog.limits import REFERENCE_RECORDS_MAX
from loomlog.types import Glsn

TICKETS_REMEMBERED: Final = 100_000  # for the lengths of holes; takes a few MB

NOT_YET: Final = Refused("positions are not handed out yet, or not any more: try again soon")


class Sequencer:
    """Hands out positions from the start of its projection.

    It remembers the newest tickets, so that a hole can be filled as a whole; older holes are filled
    position by position. It also remembers the tickets of writers of an older release, which cannot
    show proofs."""

    def __init__(self, projection: Projection, remembered: int = TICKETS_REMEMBERED) -> None:
        if projection.closed:
            raise InvalidArgument(f"log {projection.log_id} is sealed: it takes no more appends")
        self.epoch = projection.epoch
        self.width = len(projection.chains)
        self.end: Glsn = projection.start  # the first position that is not handed out
        shortages = filter(None, map(projection.shortage, range(len(projection.chains))))
        self._shortage = next(shortages, "")
        self._remembered = remembered
        self._firsts: list[Glsn] = []  # of the remembered tickets
        self._unproven: set[Glsn] = set()  # of those whose writers show no proofs

    def next(self, count: int, proves: bool = True) -> Ticket:
        ticket = Ticket(self.end, count, self.epoch)
        self.end += count
        self._firsts.append(ticket.first)
        if len(self._firsts) > 2 * self._remembered:
            del self._firsts[: self._remembered]
            self._unproven.intersection_update(self._firsts)
        if not proves:
            self._unproven.add(ticket.first)
        return ticket

    def is_unproven(self, ticket: Ticket) -> bool:
        """Return whether a ticket is remembered as one whose writer will show no proof."""
        return ticket.first in self._unproven

    def answer(self, request: Request) -> Answer:
        if isinstance(request, Next):
            if not 0 < request.count <= REFERENCE_RECORDS_MAX:
                return Refused(f"{request.count} records cannot be appended at once")
            if request.epoch == self.epoch:
                if self._shortage:
                    return Refused(f"appends wait: {self._shortage}")
                if request.expected not in (None, self.end - 1):
                    return Beyond(self.end)
                return HandedOut(self.next(request.count, request.proves))
        match request:
            case FindTicket(epoch, position) if epoch == self.epoch:
                return self._holding(position)
            case FindEnd(epoch) if epoch == self.epoch:
                return Beyond(self.end)
            case Next(epoch) | FindTicket(epoch) | FindEnd(epoch) if epoch < self.epoch:
                return EpochOver(self.epoch)
            case Next(epoch) | FindTicket(epoch) | FindEnd(epoch):
                return Refused(f"this is the sequencer of epoch {self.epoch}, not {epoch}")
        return Refused(f"a sequencer does not answer {type(request).__name__}")

    def _holding(self, position: Glsn) -> Answer:
        if position >= self.end:
            return Beyond(self.end)
        index = bisect_right(self._firsts, position)
        if not index:
            return Forgotten()
        first = self._firsts[index - 1]
        end = self._firsts[index] if index < len(self._firsts) else self.end
        return HandedOut(Ticket(first, end - first, self.epoch))


def answer_without_sequencer(projection: Projection | None, request: Request) -> Answer:
    """Answer for a projection without a running sequencer. A closed projection never gets one; all
    positions that were handed out are below its start."""
    if projection is None or not projection.closed or not isinstance(request, FindEnd):
        return NOT_YET
    if request.epoch < projection.epoch:
        return EpochOver(projection.epoch)
    return Beyond(projection.start) if request.epoch == projection.epoch else NOT_YET
