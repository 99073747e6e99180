"""The places of a log that can be asked for, put together from what nodes answer. Pure.

Each node knows of its own copies only. Together they know of all records as soon as those that
answered have a copy of every one, in each nodeset that the log has lain on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.lsn import Epoch, Lsn, epoch_of, last_of
from loomlog.core.copyset.messages import LogState
from loomlog.types import NodeId


class SequencerTail(NamedTuple):
    """What a sequencer answers."""

    epoch: Epoch  # its own
    tail: Lsn  # the last that it gave to a record; 0: none


def is_enough(
    state: LogState, answered: Collection[NodeId], authorities: Mapping[NodeId, Authority]
) -> bool:
    """Whether these nodes have a copy of every record that is fully stored and not trimmed. A node
    that says of itself that it may miss some has not answered."""
    full = [node for node in answered if authorities.get(node, Authority.FULL) is Authority.FULL]
    empty = [node for node, authority in authorities.items() if authority is Authority.EMPTY]
    ends = [later.since - 1 for later in state.history[1:]]
    return all(
        metadata.is_f_majority(full, set(empty).intersection(metadata.nodes))
        for metadata, end in zip(state.history, [*ends, state.epoch], strict=True)
        if last_of(end) > state.trimmed
    )


def find_time(
    state: LogState, olders: Mapping[NodeId, Lsn], authorities: Mapping[NodeId, Authority]
) -> Lsn | None:
    """Where a time begins, given up to where all copies on each node are older. None: ask more."""
    if not is_enough(state, olders, authorities):
        return None
    return max([state.trimmed, *olders.values()]) + 1


def last_to_go(expired: Mapping[NodeId, Lsn]) -> Lsn:
    """Up to where nothing has to be kept that is older than a time, given where the partitions end
    on each node that are over by then; 0: nothing may go. Times grow with LSNs, so one node is
    enough to know, and what others have of that time goes with its partitions."""
    return max(expired.values(), default=0)


def is_empty(
    state: LogState, empties: Mapping[NodeId, bool], authorities: Mapping[NodeId, Authority]
) -> bool | None:
    """Whether there is no batch, given whether there is none on each node. None: ask more."""
    if not all(empties.values()):
        return False
    return True if is_enough(state, empties, authorities) else None


def tail(state: LogState, sequencer: SequencerTail | None) -> Lsn | None:
    """All that was acknowledged before the sequencer was asked is at or below. None: ask again.

    The state must have been read after the sequencer answered: a newer one may have acknowledged
    more before, and that would show there."""
    if state.closed and state.last_clean >= state.epoch - 1:
        return state.tail
    if sequencer is None or sequencer.epoch < state.epoch:
        return None
    if epoch_of(sequencer.tail) == sequencer.epoch:
        return sequencer.tail
    return state.tail if state.last_clean >= sequencer.epoch - 1 else None
