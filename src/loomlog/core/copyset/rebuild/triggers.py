"""Decide which event of rebuilding is due for a shard. Pure.

A shard that is away for long is restored elsewhere; one that is back intact ends that. One that
lost its copies is refilled when it is back, also if it was away once more meanwhile: what it got
since it lost them may be nowhere else. One that is drained is relocated once no log stores
anything new there. One that is rebuilt may get copies of later epochs before it counts as intact:
these are restored like those that it had before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from loomlog.core.copyset.rebuild.events import (
    Abort,
    Acknowledged,
    Event,
    Mode,
    NeedsRebuild,
    Refill,
    Status,
    Undrain,
    Unrecoverable,
)
from loomlog.types import ShardId

_HAVE_COPIES: Final = frozenset(
    {Status.INTACT, Status.RESTORING, Status.REFILLING, Status.RELOCATING}
)
_HAD_COPIES: Final = frozenset({Status.EMPTY, Status.DRAINED})


class ShardFacts(NamedTuple):
    """The facts about a shard that decide whether it is rebuilt."""

    here: bool  # its node is connected, and its copies can be opened
    away_s: float = 0.0  # how long it is not
    has_copies: bool = True  # of any log; of one that is rebuilt, others than those
    in_use: bool = False  # a log may store something new there
    lost: int | None = None  # which loss its node reported, or an operator; None: none
    covered: int | None = None  # the loss that rebuilding has begun with
    leaves: bool = False  # it is drained, or removed
    given_up: bool = False  # an operator removed its node, which is away


def due_event(shard: ShardId, status: Status, facts: ShardFacts, after_s: float) -> Event | None:
    """Return the next event, if any. Call it again with the status after that."""
    is_away = not facts.here and facts.has_copies and (facts.away_s >= after_s or facts.given_up)
    is_lost = facts.lost is not None
    is_new_loss = is_lost and facts.lost != facts.covered
    has_copies = status in _HAVE_COPIES or (status in _HAD_COPIES and facts.has_copies)
    if is_new_loss and has_copies:
        return Unrecoverable(shard)
    match status:
        case Status.INTACT:
            if is_away:
                return NeedsRebuild(shard, Mode.RESTORE)
            if facts.leaves and facts.here and facts.has_copies and not facts.in_use:
                return NeedsRebuild(shard, Mode.RELOCATE)
        case Status.RESTORING:
            if facts.given_up:
                return Unrecoverable(shard)
            if facts.here:
                return Refill(shard) if is_lost else Abort(shard)
        case Status.LOST:
            if facts.here and not facts.leaves:
                return Refill(shard)
        case Status.REFILLING:
            if is_away:
                return NeedsRebuild(shard, Mode.RESTORE)
        case Status.RELOCATING:
            if is_away:
                return NeedsRebuild(shard, Mode.RESTORE)
            if not facts.leaves:
                return Undrain(shard)
        case Status.EMPTY:
            if facts.here and not is_new_loss:
                return Acknowledged(shard)
            if is_away and not facts.in_use:
                return NeedsRebuild(shard, Mode.RESTORE)
        case Status.DRAINED:
            if not facts.leaves and not is_new_loss:
                return Undrain(shard)
    return None


def is_restored(status: Status, facts: ShardFacts) -> bool:
    """Return whether nothing is missing any more of what a shard lost."""
    is_covered = facts.lost == facts.covered
    if status in _HAD_COPIES:
        return is_covered or not facts.has_copies
    return status is Status.INTACT and is_covered


def forgotten_event(shard: ShardId, status: Status) -> Event | None:
    """Return the next event for a shard whose node left the cluster: nothing names it any more."""
    match status:
        case Status.RESTORING:
            return Abort(shard)
        case Status.LOST:
            return Refill(shard)
        case Status.EMPTY:
            return Acknowledged(shard)
        case Status.RELOCATING | Status.DRAINED:
            return Undrain(shard)
    return None
