"""How the state of a log changes, in the epoch store. Pure: each change gives the state that is to
be swapped in, which is the old one if nothing changes.

An epoch is taken once, by one node, with a nodeset that never changes. What a later epoch may have
is decided anew: as it is, unless nodes of it are gone or leave, or there are more to be had.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from loomlog.core.copyset.epoch_metadata import EpochMetadata, Member
from loomlog.core.copyset.lsn import Epoch, Lsn, epoch_of, first_epoch_above
from loomlog.core.copyset.messages import LogState, SetClean
from loomlog.core.copyset.placement import choose_nodeset
from loomlog.types import Glsn, LogId, NodeId


def first_state(nodeset: Sequence[Member], replication: int, start: Glsn = 1) -> LogState:
    """Of a log whose first position is at or above `start`: nobody took an epoch yet."""
    first = first_epoch_above(start - 1)
    history = (EpochMetadata(first, tuple(nodeset), replication),)
    return LogState(first - 1, 0, history, last_clean=first - 1, tail=start - 1)


def take_epoch(
    state: LogState, node: NodeId, nodeset: Sequence[Member], *, closed: bool = False
) -> LogState:
    """The next one is the node's; with `closed` it takes no appends, and there is none after it but
    such ones."""
    epoch, newest = state.epoch + 1, state.history[-1]
    history = state.history
    if newest.nodeset != tuple(nodeset):
        kept = history if newest.since <= state.epoch else history[:-1]  # else nobody had it
        history = (*kept, EpochMetadata(epoch, tuple(nodeset), newest.replication))
    return replace(
        state, epoch=epoch, sequencer=node, history=history, closed=closed or state.closed
    )


def set_clean(state: LogState, request: SetClean) -> LogState:
    if request.by != state.epoch or not state.last_clean < request.epoch < state.epoch:
        return state
    return replace(state, last_clean=request.epoch, tail=max(state.tail, request.tail))


def trim(state: LogState, lsn: Lsn) -> LogState:
    """Nodesets of which all is gone are not remembered."""
    if lsn <= state.trimmed:
        return state
    gone = min(epoch_of(lsn) - 1, state.last_clean)  # all of it, and of those before
    kept = [
        metadata
        for metadata, later in zip(state.history, state.history[1:], strict=False)
        if later.since - 1 > gone
    ]
    return replace(state, trimmed=lsn, history=(*kept, state.history[-1]))


def is_recovered(state: LogState) -> bool:
    """All epochs but the newest, which takes no appends if the log is closed."""
    return state.last_clean >= state.epoch - 1


def holders(state: LogState) -> set[NodeId]:
    """The nodes that may have records that count."""
    used = [metadata for metadata in state.history if metadata.since <= state.epoch]
    return {node for metadata in used for node in metadata.nodes}


def can_be_recovered(state: LogState, nodes: Collection[NodeId]) -> bool:
    """By these nodes: one that takes the next epoch can go on at once."""
    unclean = {state.metadata_of(epoch) for epoch in _unclean(state)}
    return all(metadata.is_f_majority(nodes) for metadata in unclean)


def awaited(state: LogState, nodes: Collection[NodeId], last: Epoch) -> list[NodeId]:
    """Recovery of the epochs up to `last` has to wait for some of these, if only `nodes` are there:
    to find all that was stored, or to store it R times. None: for nobody."""
    unclean = {state.metadata_of(epoch) for epoch in range(state.last_clean + 1, last + 1)}
    short = [
        metadata
        for metadata in unclean
        if not (metadata.is_f_majority(nodes) and metadata.can_hold_a_copyset(nodes))
    ]
    return sorted({node for metadata in short for node in metadata.nodes}.difference(nodes))


def _unclean(state: LogState) -> range:
    return range(state.last_clean + 1, state.epoch + 1)


# ---- nodesets


def has_shrunk(state: LogState, asked: int) -> bool:
    """The nodeset is smaller than what was asked for (0: nothing was), or than one before it, as
    far as that is remembered. New nodes alone are no reason for an epoch, but to have lost some
    is one to take others."""
    sizes = [len(metadata.nodeset) for metadata in state.history]
    return sizes[-1] < (asked or max(sizes))


def next_nodeset(
    log: LogId, state: LogState, usable: Collection[Member], size: int
) -> tuple[Member, ...]:
    """For the next epoch. `usable` are the nodes that may take records; of those that are away only
    the ones that are expected back."""
    newest = state.history[-1]
    is_fit = all(member in usable for member in newest.nodeset)
    if is_fit and len(newest.nodeset) >= min(size, len(usable)):
        return newest.nodeset
    chosen = choose_nodeset(log, usable, size)
    can_hold = EpochMetadata(0, chosen, newest.replication).can_hold_a_copyset
    return chosen if can_hold([member.node_id for member in chosen]) else newest.nodeset
