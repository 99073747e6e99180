"""Changes to the state of a log in the epoch store. Pure.

Each change returns the state to be swapped in, which is the old one if nothing changes. An epoch is
taken once, by one node, with a nodeset that never changes (core/copyset/nodeset_choice.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, replace

from loomlog.core.copyset.evidence import finished
from loomlog.core.copyset.messages import (
    Acknowledged,
    EpochEnd,
    Finish,
    Life,
    LogState,
    SetClean,
    Taker,
    UseShort,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member, choose_short, node_of
from loomlog.core.copyset.presumption import Presume, Presumption
from loomlog.core.copyset.record import (
    OFFSET_MAX,
    Epoch,
    Lsn,
    epoch_of,
    first_epoch_above,
    make,
    offset_of,
)
from loomlog.types import Glsn, NodeId, ShardId


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
    lives: Mapping[NodeId, int] | None = None,
) -> LogState:
    """Give the next epoch to a node. With `closed` it and later epochs take no appends. `short`:
    the shards of its short copyset, if it needs one; `least`: the number of copies that must do;
    `lives`: of the nodes."""
    tail = state.tail
    if closed:  # it ends here for good, so losses that are found later must be below it
        tail = max([tail, *(end.whole for end in state.ends if _is_doubtful(state, end))])
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
        tail=tail,
        least=least,
        takers=(*state.takers, Taker(state.epoch, state.sequencer))
        if state.epoch > state.last_clean
        else state.takers,
        lives=(*state.lives, *_lives(metadata, lives or {})),
    )


def _lives(metadata: EpochMetadata, lives: Mapping[NodeId, int]) -> Iterator[Life]:
    nodes = dict.fromkeys(member.node for member in metadata.nodeset)
    return (Life(metadata.since, node, lives[node]) for node in nodes if node in lives)


def choose(state: LogState, node: NodeId) -> LogState:
    """Let a node be the sequencer whenever it is there; 0: any node may be."""
    return replace(state, chosen=node)


def use_short(state: LogState, request: UseShort) -> LogState:
    """Note a short copyset of an epoch that is not recovered yet."""
    epoch = request.epoch
    if request.by != state.epoch or not state.last_clean < epoch < state.epoch:
        return state
    return _with_metadata(state, epoch, state.metadata_of(epoch).with_short(request.shards))


def presume(state: LogState, request: Presume) -> LogState:
    """Note that an attempt to recover an epoch does not know everything, or follows one that did
    not. Earlier attempts can no longer end the epoch."""
    _, by, epoch, wave, lng, good = astuple(request)
    if by != state.epoch or not state.last_clean < epoch < state.epoch:
        return state
    if (before := state.presumed_in(epoch)) is not None:
        by, wave = max((by, wave), (before.by, before.wave))
        lng, good = min(lng, before.lng), max(good, before.good)
    others = (each for each in state.presumed if each.epoch != epoch)
    presumed = sorted([*others, Presumption(epoch, by, wave, lng, good)])
    return replace(state, presumed=tuple(presumed))


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
        if make(epoch, OFFSET_MAX) > state.trimmed and not _is_empty(state.end_of(epoch))
    ]


def _is_empty(end: EpochEnd | None) -> bool:
    """Return whether an epoch has no records, as far as it is known."""
    return end is not None and end.exact and not end.last


def _stretches(state: LogState) -> list[tuple[EpochMetadata, Epoch]]:
    """Return the metadata and the last epoch of each item of the history."""
    lasts = [*(later.since - 1 for later in state.history[1:]), state.epoch]
    return list(zip(state.history, lasts, strict=True))


def set_clean(state: LogState, request: SetClean) -> LogState:
    end = request.end
    if request.by != state.epoch or not state.last_clean < end.epoch < state.epoch:
        return state
    presumed = state.presumed_in(end.epoch)
    if presumed is not None and end.precedence < (presumed.by, presumed.wave):
        return state  # it is late: another attempt decides, which may know better
    acknowledged = state.acknowledged_in(end.epoch)
    if acknowledged.final:  # perhaps it came while the epoch was being recovered
        end = finished(end, acknowledged.last)
    is_doubtful = not acknowledged.final and _is_doubtful(state, end)
    tail = end.whole if state.closed and is_doubtful else end.tail
    return replace(
        state,
        last_clean=end.epoch,
        tail=max(state.tail, tail),
        ends=(*state.ends, end) if is_doubtful or not _is_empty(end) else state.ends,
        told=tuple(each for each in state.told if each.epoch > end.epoch),
        takers=tuple(each for each in state.takers if each.epoch > end.epoch),
        lives=tuple(each for each in state.lives if each.epoch > end.epoch),
        witnesses=state.witnesses if _is_empty(end) else _with_witnesses(state, end.epoch),
        presumed=tuple(each for each in state.presumed if each.epoch > end.epoch),
    )


def _is_doubtful(state: LogState, end: EpochEnd) -> bool:
    """Return whether all nodes that recovered an epoch may have forgotten the same records: then a
    loss may be found later."""
    metadata = state.metadata_of(end.epoch)
    vouching = set(metadata.shards).difference(end.crashed)
    return bool(end.absent) or not metadata.is_f_majority(vouching)


def _with_witnesses(state: LogState, epoch: Epoch) -> tuple[Life, ...]:
    """Keep the lives of an epoch that is recovered now, where they differ from the ones before."""
    known = state.witnesses_of(epoch)
    lives = state.lives_in(epoch).items()
    return (
        *state.witnesses,
        *(Life(epoch, node, number) for node, number in lives if known.get(node) != number),
    )


def unchecked(state: LogState, lives: Mapping[NodeId, int]) -> dict[NodeId, int]:
    """Return the nodes, with their lives, that crashed since recovered epochs with records began:
    they may lack copies of these."""
    newest = max((end.epoch for end in state.ends if not _is_empty(end)), default=0)
    crashed = {
        life.node
        for life in state.witnesses
        if life.epoch <= newest and lives.get(life.node, life.number) != life.number
    }
    return {node: lives[node] for node in sorted(crashed.intersection(_nodes(state)))}


def _nodes(state: LogState) -> set[NodeId]:
    return set(map(node_of, state.all_shards))


def checked(state: LogState, lives: Mapping[NodeId, int], through: Epoch) -> LogState:
    """Note that nodes have all copies that they should have up to an epoch, in these lives."""
    later = state.witnesses_of(through + 1) if through < state.last_clean else {}
    witnesses = (
        *(life for life in state.witnesses if life.node not in lives or life.epoch > through + 1),
        *(Life(state.history[0].since, node, number) for node, number in lives.items()),
        *(Life(through + 1, node, later[node]) for node in lives if node in later),
    )
    ends = tuple(
        replace(end, crashed=tuple(s for s in end.crashed if node_of(s) not in lives))
        if end.epoch <= through
        else end
        for end in state.ends
    )
    return replace(state, ends=ends, witnesses=tuple(sorted(witnesses)))


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
    witnesses = (
        *(Life(gone + 1, node, number) for node, number in state.witnesses_of(gone + 1).items()),
        *(life for life in state.witnesses if life.epoch > gone + 1),
    )
    history = (*kept, state.history[-1])
    return replace(state, trimmed=lsn, history=history, ends=ends, witnesses=witnesses)


def uncertain(state: LogState) -> list[Epoch]:
    """Return the recovered epochs whose end is unknown, or of which something is known as lost."""
    untrimmed = (end for end in state.ends if end.whole > state.trimmed)
    return [end.epoch for end in untrimmed if not end.exact or end.lost]


def vanished(state: LogState) -> list[Epoch]:
    """Return the recovered epochs of which nothing was found, though they may have had records."""
    lost = uncertain(state)
    return [end.epoch for end in state.ends if end.epoch in lost and not (end.last or end.lost)]


def lost_together(state: LogState, lost: Mapping[ShardId, Epoch]) -> list[ShardId]:
    """Return the shards that may have had all copies of some record that is not trimmed, given up
    to which epoch each shard lost its copies."""
    together = {
        shard
        for epoch in lossy_epochs(state, lost)
        for shard in state.metadata_of(epoch).shards
        if lost.get(shard, 0) >= epoch
    }
    return sorted(together)


def lossy_epochs(state: LogState, lost: Mapping[ShardId, Epoch]) -> list[Epoch]:
    """Return the epochs with records that may have had all their copies on shards that lost them,
    given up to which epoch each did."""
    through = max(lost.values(), default=0)
    return [
        epoch
        for epoch in _with_records(state, through)
        if state.metadata_of(epoch).can_hold_a_copyset(
            [shard for shard, last in lost.items() if last >= epoch]
        )
    ]


def _with_records(state: LogState, through: Epoch) -> Iterator[Epoch]:
    """Yield the epochs up to one that have, or may have, records that are not trimmed. Of recovered
    ones it is known: many have none, such as those that began because a node was restarted."""
    first = state.history[0].since if state.history else through + 1
    for end in state.ends:
        last = make(end.epoch, end.last) if end.exact else end.whole
        if first <= end.epoch <= through and last > state.trimmed and not _is_empty(end):
            yield end.epoch
    for epoch in range(state.last_clean + 1, min(through, state.epoch) + 1):
        told = state.acknowledged_in(epoch)
        if told.last or not told.final:
            yield epoch


def still_lossy(state: LogState, lossy: Collection[Epoch]) -> list[Epoch]:
    """Return those of the epochs, of which something may be lost, where it is not trimmed."""
    return [epoch for epoch in _with_records(state, max(lossy, default=0)) if epoch in lossy]


def is_recovered(state: LogState) -> bool:
    """Return whether all epochs before the newest are recovered."""
    return state.last_clean >= state.epoch - 1


def last_written(state: LogState) -> Epoch:
    """Return the newest epoch that may have records: the one that closes a log has none."""
    return state.epoch - 1 if state.closed else state.epoch


def holders(state: LogState) -> set[ShardId]:
    """Return the shards that may have records that count."""
    used = [metadata for metadata in state.history if metadata.since <= state.epoch]
    return {shard for metadata in used for shard in metadata.shards}


def newest_with(state: LogState, shard: ShardId, last: Epoch) -> Epoch:
    """Return the newest epoch whose nodeset has a shard, up to `last`; 0: there is none."""
    ends = [*(later.since - 1 for later in state.history[1:]), state.epoch]
    return max(
        (
            min(end, last)
            for metadata, end in zip(state.history, ends, strict=True)
            if shard in metadata.shards and metadata.since <= last
        ),
        default=0,
    )


def can_be_recovered(
    state: LogState, shards: Collection[ShardId], given_up: Collection[ShardId] = ()
) -> bool:
    """Return whether these shards are enough for a sequencer that takes the next epoch. They are
    if all others are given up: nothing else will ever be found. An epoch all of whose shards are
    given up is lost as a whole."""
    unclean = {state.metadata_of(epoch) for epoch in _unclean(state)}
    there, known = set(shards), {*shards, *given_up}
    return all(
        metadata.is_f_majority(there) or known.issuperset(metadata.shards) for metadata in unclean
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


# ---- after a rollback


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
