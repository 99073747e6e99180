"""Track what one member of a consumer group has handed out of its shards. Pure.

The log is read once for all shards of the member, up to `reading`: all entries of running shards at
or below it were handed out. A shard that is added with a lower position sets `reading` back; how
far other shards were handed out beyond it is remembered as their floor.

A shard that has to move is stopped: no more of its entries are handed out. It is released with the
next commit, or immediately if nothing was handed out since the last one.
"""

from __future__ import annotations

from loomlog.core.groups.state import GroupState, fenced
from loomlog.types import Glsn


class Consumption:
    """The progress of one member. Its user sets `reading` to each entry that it hands out."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.reading: Glsn = 0  # meaningless without running shards
        self.floors: dict[int, Glsn] = {}  # of running shards: handed out at least up to here
        self.stopped: dict[int, Glsn] = {}  # of shards that have to move: handed out up to here
        self._committed_at: Glsn = 0  # `reading` at the last commit; -1: other positions are newer

    @property
    def dirty(self) -> bool:
        """True if entries were handed out since the last commit."""
        return self.reading != self._committed_at

    def adopt(self, state: GroupState) -> bool:
        """Adopt a newer state. Return whether the running shards changed. Raise Fenced if this
        member was removed."""
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
        """Called when nothing up to `position` is left to hand out."""
        if not self.dirty:
            self._committed_at = position
        self.reading = position

    def positions(self) -> dict[int, Glsn]:
        """Return the position up to which each shard was handed out."""
        running = {shard: max(floor, self.reading) for shard, floor in self.floors.items()}
        return self.stopped | running

    def commit(self, state: GroupState) -> GroupState:
        """Return the state with all that was handed out committed, and the stopped shards released.
        Shards that an earlier commit released, whose answer was lost, are left alone."""
        if self.member not in state.members:
            raise fenced(self.member)
        owned = state.owned_by(self.member)
        positions = {s: position for s, position in self.positions().items() if s in owned}
        return state.commit(self.member, positions, self.stopped)

    def committed(self, reading: Glsn) -> None:
        """Called when a commit succeeded that was made at `reading`."""
        self._committed_at = reading
