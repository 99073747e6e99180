"""A log as a sequence of segments. Pure: every change returns a new layout, swapped as a whole.

    segments     [1 … 100] ordered   [101 … 250] chained   [251 …] ordered
                                                            the active one: no end yet

Invariants: a segment starts one above the end of the previous one; only the last has no end; a
recorded start or end never changes. So a position belongs to the same segment forever, and an older
layout is never wrong, only incomplete.

The layout shows a switch from its beginning: the successor of the active segment is recorded before
anything else is done. So any party that finds an interrupted switch can finish it, and two that
start one at the same time conflict on the layout.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from loomlog.batch import COMPRESSIONS
from loomlog.errors import InvalidArgument, Trimmed
from loomlog.limits import STREAMS_PER_LOG_MAX
from loomlog.types import Glsn, LogId, NodeId


class Settings(NamedTuple):
    """The settings of a segment. Equal settings need no switch."""

    protocol: str
    streams: int
    replicas: int
    nodeset: int = 0  # for `copyset`: the number of nodes that share the records; 0: the default
    min_replicas: int = 0  # appends continue with this many; 0: the default
    compression: str = COMPRESSIONS[0]  # of batches, unless the client chooses another

    @property
    def replicas_least(self) -> int:
        """The number of replicas with which appends continue while nodes are down. By default one
        less than wanted, but at least two unless only one is wanted."""
        return self.min_replicas or min(self.replicas, max(2, self.replicas - 1))

    def check(self) -> None:
        """Raise InvalidArgument for settings that no protocol can use."""
        if not 1 <= self.streams <= STREAMS_PER_LOG_MAX:
            raise InvalidArgument(
                f"a log has 1 to {STREAMS_PER_LOG_MAX} streams, not {self.streams}"
            )
        if self.replicas < 1:
            raise InvalidArgument("a stream has at least 1 replica")
        if self.min_replicas > self.replicas:
            raise InvalidArgument(
                f"{self.min_replicas} of {self.replicas} replicas cannot be there: ask for at most "
                f"{self.replicas} that appends need"
            )
        if self.compression not in COMPRESSIONS:
            raise InvalidArgument(
                f"there is no compression {self.compression!r}: use one of "
                f"{', '.join(COMPRESSIONS)}"
            )


class Segment(NamedTuple):
    """The part of a log that one loglet runs."""

    loglet: LogId
    settings: Settings
    start: Glsn
    end: Glsn | None = None  # the last position; start - 1 if it is empty; None: it is active

    def covers(self, position: Glsn) -> bool:
        return self.start <= position and (self.end is None or position <= self.end)


class Successor(NamedTuple):
    """The replacement of the active segment."""

    loglet: LogId
    settings: Settings
    ready: bool = False  # its loglet exists, so the active segment may be sealed
    # Where an operator wants each set of its replicas; none: on the best nodes.
    nodes: tuple[tuple[NodeId, ...], ...] = ()


class SwitchState(StrEnum):
    """The progress of a switch."""

    NONE = "none"
    PREPARING = "preparing"  # the successor is being made; appends continue
    SEALING = "sealing"  # the active segment takes no more appends


TRANSITIONS: Final = {
    (SwitchState.NONE, SwitchState.PREPARING): "a successor was chosen",
    (SwitchState.PREPARING, SwitchState.NONE): "it cannot be made: all stays as it was",
    (SwitchState.PREPARING, SwitchState.SEALING): "it is made",
    (SwitchState.SEALING, SwitchState.NONE): "the tail is known: the successor is active",
}
"""Never from NONE to SEALING: a log is not sealed before its successor exists. Never back from
SEALING to PREPARING: the segment may have been sealed already."""


class Layout(NamedTuple):
    """All segments of a log and the state of its switch, swapped as a whole."""

    segments: tuple[Segment, ...]
    trimmed: Glsn = 0
    successor: Successor | None = None

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def switch(self) -> SwitchState:
        if self.successor is None:
            return SwitchState.NONE
        return SwitchState.SEALING if self.successor.ready else SwitchState.PREPARING

    def takes_appends(self, loglet: LogId) -> bool:
        return loglet == self.active.loglet and self.switch is not SwitchState.SEALING

    def settings_of(self, loglet: LogId) -> Settings | None:
        """Return the settings of a loglet; None if it is not part of this log (any more)."""
        for part in (*self.segments, self.successor):
            if part is not None and part.loglet == loglet:
                return part.settings
        return None

    # ---- finding positions

    def segment_of(self, position: Glsn) -> Segment:
        """Return the segment of a position. Raise Trimmed if the position was trimmed."""
        if position > self.trimmed:
            for segment in reversed(self.segments):
                if segment.covers(position):
                    return segment
        raise Trimmed(f"position {position} was trimmed; the first one kept is {self.trimmed + 1}")

    # ---- changes

    def prepare(
        self, loglet: LogId, settings: Settings, nodes: tuple[tuple[NodeId, ...], ...] = ()
    ) -> Layout:
        self._check(SwitchState.NONE, SwitchState.PREPARING)
        return self._replace(successor=Successor(loglet, settings, nodes=nodes))

    def give_up(self) -> Layout:
        self._check(SwitchState.PREPARING, SwitchState.NONE)
        return self._replace(successor=None)

    def ready(self) -> Layout:
        self._check(SwitchState.PREPARING, SwitchState.SEALING)
        assert self.successor is not None
        return self._replace(successor=self.successor._replace(ready=True))

    def extend(self, tail: Glsn) -> Layout:
        """End the active segment at `tail`; the successor starts above it. Segments before it that
        are empty are dropped."""
        self._check(SwitchState.SEALING, SwitchState.NONE)
        successor, active = self.successor, self.active
        assert successor is not None
        if tail < active.start - 1:
            raise InvalidArgument(f"a segment from {active.start} on cannot end at {tail}")
        ended = active._replace(end=tail)
        begun = Segment(successor.loglet, successor.settings, tail + 1)
        older = _with_something_left(self.segments[:-1], self.trimmed)
        return self._replace(segments=(*older, ended, begun), successor=None)

    def trim(self, position: Glsn) -> Layout:
        """Trim up to and including `position`. Segments that become empty are dropped."""
        if position <= self.trimmed:
            return self
        kept = _with_something_left(self.segments, position)
        return self._replace(segments=kept, trimmed=position)

    def _check(self, before: SwitchState, after: SwitchState) -> None:
        if self.switch is not before or (before, after) not in TRANSITIONS:
            raise InvalidArgument(f"a switch that is {self.switch} cannot become {after}")


def _with_something_left(segments: tuple[Segment, ...], trimmed: Glsn) -> tuple[Segment, ...]:
    return tuple(s for s in segments if s.end is None or s.end > trimmed)
