"""Landmarks of a log (tail, ages), combined from the answers of nodes. Pure.

Each node knows only its own copies. Together they know all records once the nodes that answered
have a copy of every one, in each nodeset that the log was stored on.

Retention must never delete a record whose timestamp is younger than the limit. Timestamps may fall,
with a clock that was set or the next sequencer's. So:

- An f-majority must have answered, of every nodeset that matters. Each record that is stored on R
  nodes then has a copy on a node that answered, and the first young copy on any of them is where
  trimming stops.
- A record that is not stored on R nodes yet may be on none of them, and be acknowledged later.
  Trimming stops before the first such record: below what each node that answered knew to be
  released, or in epochs that were recovered before the question.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import Authority
from loomlog.core.copyset.record import Epoch, Kind, Lsn, Record, epoch_of, last_of
from loomlog.types import ShardId


class SequencerTail(NamedTuple):
    """The answer of a sequencer that was asked for its tail."""

    epoch: Epoch  # its own
    tail: Lsn  # the last that it gave to a record; 0: none


def is_enough(
    state: LogState, answered: Collection[ShardId], authorities: Mapping[ShardId, Authority]
) -> bool:
    """Return whether these nodes have a copy of every record that is fully stored and not trimmed.
    A node that may miss records counts as one that did not answer."""
    full = [node for node in answered if authorities.get(node, Authority.FULL) is Authority.FULL]
    empty = [node for node, authority in authorities.items() if authority is Authority.EMPTY]
    ends = [later.since - 1 for later in state.history[1:]]
    return all(
        metadata.is_f_majority(full, set(empty).intersection(metadata.shards))
        for metadata, end in zip(state.history, [*ends, state.epoch], strict=True)
        if last_of(end) > state.trimmed
    )


class Ages(NamedTuple):
    """The boundary on a node between copies older and younger than a time."""

    older: Lsn  # up to this LSN all of them are; 0: nothing is known to be
    young: Lsn  # no copy below this LSN is younger; LSN_MAX: none is


def last_to_go(
    state: LogState,
    ages: Mapping[ShardId, Ages],
    released: Mapping[ShardId, Lsn],
    authorities: Mapping[ShardId, Authority],
) -> Lsn | None:
    """Return up to where every record is older than a time, or None if too few nodes answered.

    `state` must have been read before they were asked; `released` is what each of them shows."""
    if not is_enough(state, ages, authorities):
        return None
    shown = [released[node] for node in state.all_shards if node in released]
    settled = max(last_of(state.last_clean), min(shown))
    older = max([state.trimmed, *(each.older for each in ages.values())])
    return min(older, settled, *(each.young - 1 for each in ages.values()))


def is_counted(copy: Record, me: ShardId) -> bool:
    """Return whether a shard counts a record when a log is measured: each record is counted once,
    by the first shard that it was sent to. One that was sent to others later is not counted, nor
    what recovery wrote: copies of both may be left where they were sent first."""
    is_first = copy.wave == 1 and not copy.recovered
    return is_first and copy.kind is Kind.DATA and copy.copyset[:1] == (me,)


def tail(state: LogState, sequencer: SequencerTail | None) -> Lsn | None:
    """Return a position at or above all that was acknowledged before the sequencer was asked. None:
    ask again. The state must be read after the answer: it shows if a newer sequencer may have
    acknowledged more."""
    if state.closed and state.last_clean >= state.epoch - 1:
        return state.tail
    if sequencer is None or sequencer.epoch < state.epoch:
        return None
    if epoch_of(sequencer.tail) == sequencer.epoch:
        return sequencer.tail
    return state.tail if state.last_clean >= sequencer.epoch - 1 else None
