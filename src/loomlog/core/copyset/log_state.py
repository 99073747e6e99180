"""Changes to the state of a log in the epoch store. Pure.

Each change returns the state to be swapped in, which is the old one if nothing changes. An epoch is
taken once, by one node, with a nodeset that never changes. The nodeset of the next epoch is the
same unless nodes of it are gone or leave, or there are more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from loomlog.core.copyset.messages import (
    Acknowledged,
    EpochEnd,
    Finish,
    LogState,
    SetClean,
    UseShort,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member, choose_nodeset, choose_short
from loomlog.core.copyset.record import (
    OFFSET_MAX,
    Epoch,
    Lsn,
    epoch_of,
    first_epoch_above,
    last_of,
    make,
    offset_of,
)
from loomlog.types import Glsn, LogId, NodeId, ShardId


def first_state(
    nodeset: Sequence[Member], replication: int, start: Glsn = 1, stamp: int = 0, least: int = 0
) -> LogState:
    """Return the state of a log that begins at or above `start`. No epoch is taken yet."""
    first = first_epoch_above(start - 1)
    history = (EpochMetadata(first, tuple(nodeset), replication),)
    return LogState(
        first - 1, 0, history, last_clean=first - 1, tail=start - 1, stamp=stamp, least=least
    )


def take_epoch(
    state: LogState,
    node: NodeId,
    nodeset: Sequence[Member],
    *,
    closed: bool = False,
    short: Collection[ShardId] = (),
    least: int = 0,
) -> LogState:
    """Give the next epoch to a node. With `closed` it and later epochs take no appends. `short`:
    the shards of its short copyset, if it needs one; `least`: the number of copies that must do."""
    epoch, newest = state.epoch + 1, state.history[-1]
    history = state.history
    metadata = EpochMetadata(epoch, tuple(nodeset), newest.replication)
    if short:
        metadata = metadata.with_short(short)
    if newest._replace(since=epoch) != metadata:
        kept = history if newest.since <= state.epoch else history[:-1]  # else it was never used
        history = (*kept, metadata)
    return replace(
        state,
        epoch=epoch,
        sequencer=node,
        history=history,
        closed=closed or state.closed,
        least=least,
    )


def use_short(state: LogState, request: UseShort) -> LogState:
    """Note a short copyset of an epoch that is not recovered yet."""
    epoch = request.epoch
    if request.by != state.epoch or not state.last_clean < epoch < state.epoch:
        return state
    return _with_metadata(state, epoch, state.metadata_of(epoch).with_short(request.shards))


def completed(state: LogState, epoch: Epoch) -> LogState:
    """Forget the short copysets of a recovered epoch: all its records have all their copies. It may
    have been trimmed meanwhile."""
    if not state.history[0].since <= epoch <= state.last_clean:
        return state
    return _with_metadata(state, epoch, state.metadata_of(epoch)._replace(short=()))


def _with_metadata(state: LogState, epoch: Epoch, metadata: EpochMetadata) -> LogState:
    """Change the metadata of one epoch. Neighbours with the same share an item of the history."""
    items = {each.since: each for each in state.history}
    items.setdefault(epoch + 1, state.metadata_of(epoch)._replace(since=epoch + 1))
    items[epoch] = metadata._replace(since=epoch)
    history: list[EpochMetadata] = []
    for _, each in sorted(items.items()):
        if not history or history[-1]._replace(since=each.since) != each:
            history.append(each)
    return replace(state, history=tuple(history))


def short_epochs(state: LogState) -> list[Epoch]:
    """Return the epochs with records that may have fewer copies than wanted."""
    return [
        epoch
        for metadata, last in _stretches(state)
        if metadata.short
        for epoch in range(max(metadata.since, epoch_of(state.trimmed)), last + 1)
        if last_of(epoch) > state.trimmed and not _is_empty(state.end_of(epoch))
    ]


def _is_empty(end: EpochEnd | None) -> bool:
    return end is not None and end.exact and not end.last


def _stretches(state: LogState) -> list[tuple[EpochMetadata, Epoch]]:
    """Return the metadata and the last epoch of each item of the history."""
    lasts = [*(later.since - 1 for later in state.history[1:]), state.epoch]
    return list(zip(state.history, lasts, strict=True))


def set_clean(state: LogState, request: SetClean) -> LogState:
    end = request.end
    if request.by != state.epoch or not state.last_clean < end.epoch < state.epoch:
        return state
    acknowledged = state.acknowledged_in(end.epoch)
    if acknowledged.final and not end.exact:  # it came while the epoch was being recovered
        end = replace(end, last=max(end.last, acknowledged.last), exact=True)
    return replace(
        state,
        last_clean=end.epoch,
        tail=max(state.tail, _tail_of(end)),
        ends=state.ends if _is_empty(end) else (*state.ends, end),
        told=tuple(each for each in state.told if each.epoch > end.epoch),
    )


def _tail_of(end: EpochEnd) -> Lsn:
    """Return the last position of an epoch that may be acknowledged: all, if its end is inexact."""
    if not end.exact:
        return make(end.epoch, OFFSET_MAX)
    return make(end.epoch, end.last) if end.last else 0


def finish(state: LogState, request: Finish) -> LogState:
    return _note(state, Acknowledged(request.epoch, request.last, final=True))


def note_tail(state: LogState, tail: Lsn) -> LogState:
    """Note what a sequencer has acknowledged so far."""
    if not offset_of(tail):
        return state
    return _note(state, Acknowledged(epoch_of(tail), offset_of(tail), final=False))


def _note(state: LogState, news: Acknowledged) -> LogState:
    before = state.acknowledged_in(news.epoch)
    is_news = not before.final and (news.final or news.last > before.last)
    if not (is_news and state.last_clean < news.epoch <= state.epoch):
        return state
    others = (each for each in state.told if each.epoch != news.epoch)
    return replace(state, told=tuple(sorted([*others, news])))


def trim(state: LogState, lsn: Lsn) -> LogState:
    """Trim the log, and forget nodesets that have nothing left."""
    if lsn <= state.trimmed:
        return state
    gone = min(epoch_of(lsn) - 1, state.last_clean)  # all of it, and of those before
    kept = [
        metadata
        for metadata, later in zip(state.history, state.history[1:], strict=False)
        if later.since - 1 > gone
    ]
    ends = tuple(end for end in state.ends if end.epoch > gone)
    return replace(state, trimmed=lsn, history=(*kept, state.history[-1]), ends=ends)


def uncertain(state: LogState) -> list[Epoch]:
    """Return the recovered epochs whose end is unknown."""
    return [end.epoch for end in state.ends if not end.exact and last_of(end.epoch) > state.trimmed]


def lost_together(state: LogState, lost: Mapping[ShardId, Epoch]) -> list[ShardId]:
    """Return the shards that may have had all copies of some record that is not trimmed, given up
    to which epoch each shard lost its copies."""
    together: set[ShardId] = set()
    for metadata in state.history:
        first = max(metadata.since, epoch_of(state.trimmed))
        shards = {shard for shard in metadata.shards if lost.get(shard, 0) >= first}
        if metadata.can_hold_a_copyset(shards):
            together |= shards
    return sorted(together)


def lossy_through(state: LogState, lost: Mapping[ShardId, Epoch]) -> Epoch:
    """Return the newest epoch with records that may have had all their copies on shards that lost
    them, given up to which epoch each did; 0: there is none."""
    found: Epoch = 0
    for metadata, last in _stretches(state):
        first = max(metadata.since, epoch_of(state.trimmed))
        for epoch in {min(last, through) for through in lost.values()}:
            shards = [shard for shard, through in lost.items() if through >= epoch]
            if epoch >= first and metadata.can_hold_a_copyset(shards):
                found = max(found, epoch)
    return found


def is_lossy(state: LogState, lossy: Epoch) -> bool:
    """Return whether something may be lost that is not trimmed: `lossy` is the newest epoch of
    which something may be."""
    kept = [end for end in state.ends if make(end.epoch, end.last) > state.trimmed]
    return state.last_clean < lossy or any(end.epoch <= lossy for end in kept)


def is_recovered(state: LogState) -> bool:
    """Return whether all epochs before the newest are recovered."""
    return state.last_clean >= state.epoch - 1


def holders(state: LogState) -> set[ShardId]:
    """Return the shards that may have records that count."""
    used = [metadata for metadata in state.history if metadata.since <= state.epoch]
    return {shard for metadata in used for shard in metadata.shards}


def can_be_recovered(
    state: LogState, shards: Collection[ShardId], given_up: Collection[ShardId] = ()
) -> bool:
    """Return whether these shards are enough for a sequencer that takes the next epoch. They are
    if all others are given up: nothing else will ever be found."""
    unclean = {state.metadata_of(epoch) for epoch in _unclean(state)}
    there, known = set(shards), {*shards, *given_up}
    return all(
        metadata.is_f_majority(there)
        or (known.issuperset(metadata.shards) and not there.isdisjoint(metadata.shards))
        for metadata in unclean
    )


def waits_for(state: LogState, shard: ShardId) -> bool:
    """Return whether a shard is in the nodeset of an epoch that is to be recovered."""
    if state.closed and is_recovered(state):
        return False
    return any(shard in state.metadata_of(epoch).shards for epoch in _unclean(state))


def awaited(state: LogState, shards: Collection[ShardId], last: Epoch) -> list[ShardId]:
    """Return the shards, some of which recovery up to epoch `last` has to wait for if only `shards`
    are there: to find all that was stored, or to store it often enough."""
    unclean = {state.metadata_of(epoch) for epoch in range(state.last_clean + 1, last + 1)}
    stuck = [
        metadata
        for metadata in unclean
        if not (metadata.is_f_majority(shards) and _can_store(state, metadata, shards))
    ]
    return sorted({shard for metadata in stuck for shard in metadata.shards}.difference(shards))


def _can_store(state: LogState, metadata: EpochMetadata, shards: Collection[ShardId]) -> bool:
    short = choose_short(0, metadata, shards, state.least) if state.least else ()
    return metadata.can_hold_a_copyset(shards) or bool(short)


def _unclean(state: LogState) -> range:
    return range(state.last_clean + 1, state.epoch + 1)


# ---- nodesets


def has_shrunk(state: LogState, size_wanted: int) -> bool:
    """Return whether the nodeset is smaller than the size that is wanted (0: any), than an earlier
    one, or than a copy set. New nodes alone are no reason for an epoch; having lost some is a
    reason to take others."""
    sizes = [len(metadata.nodeset) for metadata in state.history]
    return sizes[-1] < max(size_wanted or max(sizes), state.history[-1].replication)


def next_nodeset(
    log: LogId, state: LogState, usable: Collection[Member], size: int
) -> tuple[Member, ...]:
    """Return the nodeset of the next epoch. `usable` nodes may take records; of those that are away
    they include the ones expected back."""
    newest = state.history[-1]
    is_fit = all(member in usable for member in newest.nodeset)
    if is_fit and len(newest.nodeset) >= min(size, len(usable)):
        return newest.nodeset
    return fresh_nodeset(log, state, usable, size)


def fresh_nodeset(
    log: LogId, state: LogState, usable: Collection[Member], size: int
) -> tuple[Member, ...]:
    """Return the nodeset that the log would have if it began now; the same if it cannot be."""
    newest = state.history[-1]
    chosen = choose_nodeset(log, usable, size)
    can_hold = EpochMetadata(0, chosen, newest.replication).can_hold_a_copyset
    return chosen if can_hold([member.shard for member in chosen]) else newest.nodeset


def newest_state(state: LogState, epoch: Epoch, shards: Collection[ShardId]) -> LogState:
    """Return the state from which the next epoch is above `epoch`, the highest that any node knows.
    The nodesets of the epochs in between are unknown, so all shards are asked, whatever their
    locations, and no record escapes recovery. The last epoch has no sequencer: the next one
    recovers them."""
    careful = _as_careful(state)
    if epoch <= state.epoch:
        return careful
    members = tuple(map(Member, sorted(shards)))
    newest = state.history[-1]
    kept = [each for each in careful.history if each.since <= state.epoch]
    unknown = EpochMetadata(state.epoch + 1, members, state.least or newest.replication)
    next_one = unknown._replace(since=epoch + 2, replication=newest.replication)
    history = (
        (*kept, unknown)
        if next_one.replication == unknown.replication
        else (*kept, unknown, next_one)
    )
    return replace(state, epoch=epoch + 1, sequencer=0, history=history)


def _as_careful(state: LogState) -> LogState:
    """Take every epoch that is not recovered for one with short copysets: which they were may be
    forgotten."""
    newest = state.history[-1]
    if not 0 < state.least < newest.replication:
        return state
    for epoch in _unclean(state):
        metadata = state.metadata_of(epoch)._replace(replication=state.least)
        state = _with_metadata(state, epoch, metadata)
    return state
