"""Who hands out positions: a sequencer for each loglet that takes appends, of this term alone.

They are made when a projection that this term swapped in came into force, and die with the term:
the next leader begins another epoch. So nobody has to confirm that this process leads before a
ticket is given: replicas refuse it if it does not.
"""

from __future__ import annotations

from typing import Final

from loomlog.core.chained.messages import Answer, Refused, Request
from loomlog.core.chained.projection import Projection
from loomlog.core.chained.sequencer import Sequencer
from loomlog.limits import TICKETS_REMEMBERED
from loomlog.types import Glsn, LogId

REMEMBERED_LEAST: Final = 1_000  # tickets, however many loglets share the memory

NOT_YET: Final = Refused("positions are not handed out yet, or not any more: try again soon")


class Sequencers:
    def __init__(self, leader_epoch: int) -> None:
        self._last_name = leader_epoch << 32
        self._sequencers: dict[LogId, Sequencer] = {}
        self._stopped_at: dict[LogId, Glsn] = {}

    def new_name(self) -> int:
        """Of the sequencer of one attempt at a projection: never given before, by whomever."""
        self._last_name += 1
        return self._last_name

    def begin(self, projection: Projection) -> None:
        """It came into force, by our own swap."""
        self.end(projection.log_id)
        if projection.first and not projection.closed:
            remembered = max(REMEMBERED_LEAST, TICKETS_REMEMBERED // (len(self._sequencers) + 1))
            self._sequencers[projection.log_id] = Sequencer(projection, remembered)

    def stop(self, loglet: LogId) -> Glsn:
        """Hand out nothing more: its epoch is over. The first position that was not handed out; 0:
        nobody knows, it was another term's."""
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
        """The first position that is not handed out; 0: nobody knows yet."""
        sequencer = self._sequencers.get(loglet)
        return sequencer.end if sequencer else self._stopped_at.get(loglet, 0)

    def answer(self, loglet: LogId, request: Request) -> Answer:
        sequencer = self._sequencers.get(loglet)
        return NOT_YET if sequencer is None else sequencer.answer(request)
