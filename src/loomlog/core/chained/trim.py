"""Trim the oldest positions, and find out how far to trim by age and size. Pure.

A log is trimmed only up to a decided block, so that it never begins within a hole, where the next
address would be unknown. A block that is trimmed in part stays until all of it is trimmed.

The search for a time walks over the blocks of all chains. In case of doubt, entries count as young:
timestamps come from writers and need not grow with positions. A position that is handed out but not
written yet may get young entries from a slow writer; so in a log that takes appends, the walk stops
at the first position that no block covers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from loomlog.core.chained.chain import Extent, Projection, Replica
from loomlog.core.chained.messages import (
    Done,
    Found,
    List,
    Listed,
    Measure,
    MeasuredBlocks,
    NotWritten,
    Steps,
    Stop,
    Trim,
    Trimmed,
    first_stop,
)
from loomlog.core.chained.read import decide_at
from loomlog.core.requests import Ask
from loomlog.core.sizes import Measured
from loomlog.types import Glsn


def trim(projection: Projection, position: Glsn) -> Steps[Trimmed | NotWritten | Stop]:
    """Trim up to a position. NotWritten if the log does not reach that far."""
    outcome = yield from decide_at(projection, position)
    if not isinstance(outcome, Found | Trimmed):
        return outcome
    request = Trim(projection.epoch, position)
    answers = yield [Ask(replica, request) for replica in projection.replicas]
    return first_stop(answers, Done) or Trimmed(position)


_BLOCKS_AT_ONCE: Final = 1024  # of a chain; takes a node some milliseconds


def measure(projection: Projection, first: Glsn, last: Glsn) -> Steps[list[Measured] | Stop]:
    """Return the size of each chain from `first` to `last`, or to where its tail measures in one
    request."""
    request = Measure(projection.epoch, first, last, _BLOCKS_AT_ONCE)
    answers = yield [Ask(chain[-1], request) for chain in projection.chains]
    if (stop := first_stop(answers, MeasuredBlocks)) is not None:
        return stop
    return [Measured(a.through, a.size) for a in answers if isinstance(a, MeasuredBlocks)]


def find_time(
    projection: Projection, timestamp_us: int, first: Glsn, last: Glsn, *, ended: bool
) -> Steps[Glsn | Stop]:
    """Return a position from `first` to one past `last` below which every entry is older. `ended`:
    positions up to `last` that are not written never will be."""
    walks = [_Walk(chain[-1], first) for chain in projection.chains]
    reach = first
    while reach <= last and (walking := [walk for walk in walks if walk.wants_more]):
        answers = yield [Ask(walk.tail, walk.request(projection, timestamp_us)) for walk in walking]
        if (stop := first_stop(answers, Listed)) is not None:
            return stop
        for walk, answer in zip(walking, answers, strict=True):
            assert isinstance(answer, Listed)
            walk.learn(answer)
        if ended:
            for walk in walking:
                walk.older.clear()  # only young blocks matter
        else:
            reach = _advance(walks, reach)
    if not ended:
        return min(reach, last + 1)
    return min((last + 1, *(max(walk.young, first) for walk in walks if walk.young)))


class _Walk:
    """A walk over the blocks of one chain that are older than the time."""

    def __init__(self, tail: Replica, first: Glsn) -> None:
        self.tail = tail
        self.older: deque[Extent] = deque()  # listed, and not passed yet
        self.young: Glsn = 0  # where the first block begins that is not older; 0: not found yet
        self._position = first  # blocks below were listed
        self._more = True

    @property
    def wants_more(self) -> bool:
        return self._more and not self.older

    def request(self, projection: Projection, timestamp_us: int) -> List:
        return List(projection.epoch, self._position, _BLOCKS_AT_ONCE, timestamp_us)

    def learn(self, answer: Listed) -> None:
        self.older.extend(answer.extents)
        self.young, self._more = answer.young, answer.more
        if answer.extents:
            self._position = answer.extents[-1].end


def _advance(walks: Sequence[_Walk], reach: Glsn) -> Glsn:
    """Return the first position at or above `reach` that no older block covers."""
    while True:
        covering = (walk for walk in walks if walk.older and walk.older[0].first <= reach)
        if (walk := next(covering, None)) is None:
            return reach
        reach = max(reach, walk.older.popleft().end)
