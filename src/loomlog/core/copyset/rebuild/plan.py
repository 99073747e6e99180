"""Plan the rebuilding of a log: its epochs, who restores a record, where, in which nodesets. Pure.

Only recovered epochs are rebuilt: their content never changes. `through` names, for each shard that
is rebuilt, the newest epoch that the log had at its event; a shard may have copies that count in
later epochs. The nodeset of an epoch always contains every copyset: it is widened before records
go to another node, and narrowed after what a shard had of the epoch is rebuilt. So one epoch whose
records may all be on shards that are away holds up only shards of its nodeset, and only itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from loomlog.core.copyset.log_state import is_recovered, last_written
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member, mixed, shuffled
from loomlog.core.copyset.record import Epoch, Lsn, epoch_of
from loomlog.core.copyset.settlement import completed
from loomlog.types import NodeId, ShardId


class Part(NamedTuple):
    """Neighbouring epochs on the same nodes that a rebuilt shard may have copies of."""

    metadata: EpochMetadata
    first: Epoch
    last: Epoch


def parts(state: LogState, through: Mapping[ShardId, Epoch]) -> list[Part]:
    """Return what has to be scanned for shards that are rebuilt."""
    found = []
    ends = [*(later.since - 1 for later in state.history[1:]), state.epoch]
    for metadata, end in zip(state.history, ends, strict=True):
        first = max(metadata.since, epoch_of(state.trimmed))
        last = min(end, max((through.get(node, 0) for node in metadata.shards), default=0))
        if first <= last:
            found.append(Part(metadata, first, last))
    return found


def is_ready(state: LogState, through: Mapping[ShardId, Epoch]) -> bool:
    """Return whether all epochs that have to be scanned are recovered."""
    return all(part.last <= state.last_clean for part in parts(state, through))


def uncertain(
    state: LogState,
    through: Mapping[ShardId, Epoch],
    absent: Collection[ShardId],
    may_return: Collection[ShardId],
    unchecked: Collection[ShardId] = (),
) -> list[EpochMetadata]:
    """Return the nodesets of which a record may have all its copies on absent shards of which one
    may return, or that may have forgotten it."""
    found = []
    for part in parts(state, through):
        gone = gone_at(part.first, through).intersection(absent, part.metadata.shards)
        if gone.intersection(may_return) and part.metadata.can_hold_a_copyset({*gone, *unchecked}):
            found.append(part.metadata)
    return found


class Delay(StrEnum):
    """A reason of a log for which a shard does not count as rebuilt yet."""

    UNRECOVERED = "epochs that the shard may have copies of are not recovered"
    UNCERTAIN = "records may have all their copies on absent shards of which one may return"
    UNCHECKED = "records may be on no other shards than some that crashed and may have forgotten"


def delay(
    shard: ShardId,
    state: LogState,
    through: Mapping[ShardId, Epoch],
    absent: Collection[ShardId],
    may_return: Collection[ShardId],
    unchecked: Collection[ShardId] = (),
) -> Delay | None:
    """Return why a log delays a shard, if it does: not if the shard has nothing of it. `unchecked`:
    these may have forgotten records of recovered epochs, and that is not found out yet."""
    if shard not in through:
        return None
    if not is_ready(state, {shard: through[shard]}):
        return Delay.UNRECOVERED
    if _doubts(shard, state, through, absent, may_return):
        return Delay.UNCERTAIN
    if doubts(shard, state, through, absent, may_return, unchecked):
        return Delay.UNCERTAIN if shard in may_return else Delay.UNCHECKED
    return None


def doubts(
    shard: ShardId,
    state: LogState,
    through: Mapping[ShardId, Epoch],
    absent: Collection[ShardId],
    may_return: Collection[ShardId],
    unchecked: Collection[ShardId] = (),
) -> list[EpochMetadata]:
    """Return the nodesets that a shard may not leave yet, though all donors have scanned twice."""
    suspects = set(unchecked).difference(absent)
    found = _doubts(shard, state, through, absent, may_return)
    if suspects:
        found += _doubts(shard, state, through, absent, [shard], suspects)
    return list(dict.fromkeys(found))


def _doubts(
    shard: ShardId,
    state: LogState,
    through: Mapping[ShardId, Epoch],
    absent: Collection[ShardId],
    may_return: Collection[ShardId],
    suspects: Collection[ShardId] = (),
) -> list[EpochMetadata]:
    if shard not in absent:
        return []
    found = uncertain(state, through, absent, may_return, suspects)
    return [metadata for metadata in found if shard in metadata.shards]


def gone_at(epoch: Epoch, through: Mapping[ShardId, Epoch]) -> set[ShardId]:
    """Return the rebuilt shards whose copies of an epoch are needed elsewhere."""
    return {shard for shard, last in through.items() if epoch <= last}


# ---- records


def donor_of(copyset: Iterable[ShardId], lsn: Lsn, absent: Collection[ShardId]) -> ShardId | None:
    """Return the shard that has to restore the record in the first scan."""
    return next((shard for shard in shuffled(copyset, lsn) if shard not in absent), None)


def choose_targets(
    copyset: Collection[ShardId],
    kept: Collection[ShardId],
    metadata: EpochMetadata,
    usable: Collection[ShardId],
) -> tuple[ShardId, ...] | None:
    """Choose the shards that complete a record which only `kept` shards of its copyset still have:
    first those that had it before. Records that are on the same shards get the same ones. None: too
    few are usable."""
    if metadata.can_replicate(kept):
        return ()
    writable = set(metadata.shards).intersection(usable).union(kept)
    again = writable.intersection(copyset).union(kept)
    chosen = completed(again, writable, metadata, mixed(*sorted(copyset)))
    if not metadata.can_hold_a_copyset(chosen):
        return None
    return tuple(shard for shard in chosen if shard not in kept)


# ---- nodesets of recovered epochs


def widened(
    state: LogState, through: Mapping[ShardId, Epoch], usable: Collection[Member]
) -> LogState:
    """Add nodes to the nodesets where a rebuilt shard leaves too few others.

    Every older copyset must still count as one. So a new node brings no new failure domain, unless
    all nodes are domains of their own: it takes the one of a node that leaves. If too few domains
    are left even so, they no longer count."""
    history = []
    due = {part.metadata: part.last for part in parts(state, through)}
    for metadata in state.history:
        last = min(due.get(metadata, 0), state.last_clean)
        nodeset = _with_seats(metadata, usable)
        if last < metadata.since or nodeset == metadata.nodeset:
            history.append(metadata)
            continue
        history.append(metadata._replace(nodeset=nodeset))
        if metadata == state.history[-1] or state.metadata_of(last + 1) == metadata:
            history.append(metadata._replace(since=last + 1))
    return replace(state, history=tuple(history))


def _with_seats(metadata: EpochMetadata, usable: Collection[Member]) -> tuple[Member, ...]:
    there = {member.shard for member in usable}
    spares = [member for member in usable if member.shard not in metadata.shards]
    while spares and not metadata.can_replicate(there):
        domains = [member.domain for member in metadata.nodeset]
        nodes = {member.node for member in metadata.nodeset}
        left = [member for member in metadata.nodeset if member.shard in there]
        taken = {member.domain for member in left}
        seats = [domain for domain in domains if domain not in taken] or domains
        rank = partial(_unfitness, seats, taken, {member.node for member in left})
        spare = min(spares, key=rank)
        spares.remove(spare)
        if spare.domain not in seats and len({*domains, spare.domain}) <= len(nodes):
            spare = Member(spare.shard, seats[0])
        metadata = metadata._replace(nodeset=(*metadata.nodeset, spare))
    if metadata.can_replicate(there):
        return metadata.nodeset
    merged = tuple(Member(node, metadata.nodeset[0].domain) for node in metadata.shards)
    is_enough = metadata._replace(nodeset=merged).can_replicate(there)
    return merged if is_enough else metadata.nodeset


def _unfitness(
    seats: Collection[str], taken: Collection[str], nodes: Collection[NodeId], spare: Member
) -> tuple[bool, bool, bool, int]:
    """Return a rank of shards that could join: of other `nodes`, which alone can have one more
    copy; in a vacant failure domain; in one that the nodeset does not have."""
    is_there = spare.node in nodes
    return is_there, spare.domain not in seats, spare.domain in taken, mixed(spare.shard)


def narrowed(
    state: LogState, shard: ShardId, through: Epoch, kept: Collection[EpochMetadata] = ()
) -> LogState:
    """Drop a shard from the nodesets of the epochs that it was rebuilt for, but for those that are
    `kept`. One that closes a log is never recovered; it has no records, and needs no nodeset of its
    own."""
    history, items, last = [], state.history, last_written(state)
    is_closed = state.closed and is_recovered(state)
    if is_closed and len(items) > 1 and items[-1].since > last:
        items = items[:-1]
    ends = [*(later.since - 1 for later in items[1:]), last]
    for metadata, end in zip(items, ends, strict=True):
        rest = [member for member in metadata.nodeset if member.shard != shard]
        short = tuple(each for each in metadata.short if shard not in each)
        smaller = metadata._replace(nodeset=tuple(rest), short=short)
        is_due = shard in metadata.shards and metadata not in kept
        is_due &= end <= min(through, state.last_clean)
        is_enough = smaller.can_replicate(smaller.shards)
        history.append(smaller if is_due and is_enough else metadata)
    return replace(state, history=tuple(history))
