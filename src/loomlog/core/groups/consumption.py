"""Track what one member of a consumer group has handed out of its shards. Pure.

The log is read once for all shards of the member. `reading` is how far: everything at or below it
that belongs to a running shard was handed out. A shard that came later, from a position below, sets
`reading` back; what other shards have handed out beyond it is remembered as their floor.

A shard that has to move is stopped: nothing more of it is handed out. It is released with the next
commit, or at once if nothing was handed out since the last one.
"""

from __future__ import annotations

from loomlog.core.groups.state import GroupState, fenced
from loomlog.types import Glsn


class Consumption:
    """The progress of one member. Its user sets `reading` to each entry that it hands out."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.reading: Glsn = 0  # means nothing without running shards
        self.floors: dict[int, Glsn] = {}  # of running shards: handed out up to here at least
        self.stopped: dict[int, Glsn] = {}  # of shards that have to move: handed out up to here
        self._committed_at: Glsn = 0  # what `reading` was; -1: something else is not committed

    @property
    def dirty(self) -> bool:
        """Whether entries were handed out since the last commit."""
        return self.reading != self._committed_at

    def adopt(self, state: GroupState) -> bool:
        """Follow a newer state; return whether `reading` went back or shards came or went. Raise
        Fenced if this member was removed."""
        if self.member not in state.members:
            raise fenced(self.member)
        done, before, was_dirty = self.positions(), set(self.floors), self.dirty
        owned, moving = state.owned_by(self.member), state.moving_from(self.member)
        reached = {s: max(state.shards[s].position, done.get(s, 0)) for s in owned}
        self.stopped = {s: reached[s] for s in owned & moving}
        self.floors = {s: reached[s] for s in owned - moving}
        lowest = min(self.floors.values(), default=self.reading)
        if not before or lowest < self.reading:
            self.reading = lowest
        self._committed_at = -1 if was_dirty else self.reading
        return before != set(self.floors)

    def pass_over(self, position: Glsn) -> None:
        """Note that nothing up to `position` is left to be handed out."""
        if not self.dirty:
            self._committed_at = position
        self.reading = position

    def positions(self) -> dict[int, Glsn]:
        """Return how far each shard was handed out."""
        running = {shard: max(floor, self.reading) for shard, floor in self.floors.items()}
        return self.stopped | running

    def commit(self, state: GroupState) -> GroupState:
        """Return the state with everything committed that was handed out, and without the stopped
        shards. Those that an earlier commit released, whose answer was lost, are left alone."""
        if self.member not in state.members:
            raise fenced(self.member)
        owned = state.owned_by(self.member)
        positions = {s: position for s, position in self.positions().items() if s in owned}
        return state.commit(self.member, positions, self.stopped)

    def committed(self, reading: Glsn) -> None:
        """Note that a commit succeeded that was made at `reading`."""
        self._committed_at = reading
