"""Decide when a follower of a segment inquires about its next block, which has not arrived. Pure.

If later blocks have arrived, the fetch may have passed the missing one. It is then read from its
tail (a peek). If it is not there, the follower gives the writer some time, and then decides the
position (a look).
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Final, NamedTuple

from loomlog.core.backoff import Backoff

STALL_S: Final = 0.1  # first interval between looks, and longest between peeks
PEEK_S: Final = 0.005  # until the first peek: few blocks take longer; then doubled
IDLE_S: Final = 5.0  # longest interval between looks
LOOKS: Final = Backoff(STALL_S, IDLE_S)
PEEKS: Final = Backoff(PEEK_S, STALL_S)


class Absence(NamedTuple):
    """The circumstances of the next block while it has not arrived."""

    is_void: bool  # its writer can no longer write it
    is_lost: bool  # its chain lost blocks, perhaps this one
    is_wanted: bool  # the follower has an end, so the block exists or will exist
    is_passed: bool  # later blocks were fetched from its chain
    later_s: float | None  # when the first later block of any chain arrived; None: none has


class Inquiry(Enum):
    """A way to find out about the next block."""

    PEEK = "read it, and blocks after it, from its tail"
    LOOK = "decide its position"


class Patience:
    """Schedules the inquiries about the next block."""

    def __init__(self, hole_timeout_s: float, now_s: float) -> None:
        self._hole_timeout_s = hole_timeout_s
        self.advance(now_s)

    def advance(self, now_s: float) -> None:
        """Start over: another block is the next one."""
        self.looks = self._peeks = 0
        self._looked_s = self._peeked_s = now_s  # the last inquiry, or when the block became next

    def due_s(self, absence: Absence) -> float:
        """Return when the next inquiry is due."""
        return min(self._look_s(absence), self._peek_s(absence))

    def begin(self, absence: Absence, now_s: float) -> Inquiry | None:
        """Return the inquiry to make now, if one is due. Call `end` afterwards."""
        look_s, peek_s = self._look_s(absence), self._peek_s(absence)
        if now_s >= peek_s and (now_s < look_s or not self._peeks):
            self._peeks += 1
            return Inquiry.PEEK
        if now_s >= look_s:
            self.looks += 1
            return Inquiry.LOOK
        return None

    def end(self, inquiry: Inquiry, now_s: float) -> None:
        if inquiry is Inquiry.PEEK:
            self._peeked_s = now_s
        else:
            self._looked_s = now_s

    def _look_s(self, absence: Absence) -> float:
        again_s = self._looked_s + LOOKS.delay_s(self.looks)
        if absence.is_void:
            if absence.is_lost and not self.looks:
                return self._looked_s + PEEK_S
            return self._looked_s if self._peeks and not self.looks else again_s
        if absence.later_s is not None:
            hole_s = absence.later_s + self._hole_timeout_s
            return max(hole_s, again_s) if self.looks else hole_s
        if absence.is_wanted:
            return max(again_s, self._looked_s + self._hole_timeout_s)
        return self._looked_s + IDLE_S

    def _peek_s(self, absence: Absence) -> float:
        """Return when to peek; inf unless the fetch has passed the block."""
        if absence.later_s is None or not absence.is_passed:
            return inf
        if self._peeks:
            return inf if absence.is_void else self._peeked_s + PEEKS.delay_s(self._peeks)
        return absence.later_s if absence.is_void else absence.later_s + PEEK_S
