"""Decide what it costs a log of protocol `copyset` if nodes are away. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from loomlog.core.copyset.log_state import awaited, short_epochs
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import EpochMetadata, choose_short, node_of
from loomlog.core.copyset.record import Epoch, epoch_of
from loomlog.core.outage import PartOutage, names
from loomlog.types import LogId, NodeId, ShardId


def outage(
    loglet: LogId,
    state: LogState,
    away: Collection[NodeId],
    refusing: Collection[ShardId],
    lost: Mapping[ShardId, Epoch],
) -> list[PartOutage]:
    """Return the cost for the epochs of each nodeset. `refusing`: shards that take no copies;
    `lost`: shards that lost copies, and up to which epoch."""
    stop = "" if state.closed else _why_appends_stop(state, away, refusing)
    short_since = {state.metadata_of(epoch).since for epoch in short_epochs(state)}
    parts = []
    for metadata in state.history:
        first = max(metadata.since, epoch_of(state.trimmed))
        gone = {
            member.shard
            for member in metadata.nodeset
            if member.node in away or lost.get(member.shard, 0) >= first
        }
        has_records = metadata.since <= state.epoch
        left = metadata.replication - (copies_max(metadata, gone) if has_records else 0)
        if metadata.since in short_since:
            left = min([left, *(len(set(short) - gone) for short in metadata.short)])
        name = f"segment {loglet} from epoch {metadata.since} on"
        parts.append(PartOutage(name, metadata.replication, left, stop))
    return parts


def copies_max(metadata: EpochMetadata, shards: Collection[ShardId]) -> int:
    """Return how many copies of a record these shards may have at most. A copyset spans several
    failure domains, so shards of one domain never have all of it."""
    members = [member for member in metadata.nodeset if member.shard in shards]
    nodes, domains = {member.node for member in members}, {member.domain for member in members}
    elsewhere = max(0, metadata.domains_spanned - len(domains))
    return min(len(nodes), metadata.replication - elsewhere)


def _why_appends_stop(
    state: LogState, away: Collection[NodeId], refusing: Collection[ShardId]
) -> str:
    newest = state.history[-1]
    there = _without(newest, away).difference(refusing)
    is_short = not newest.can_hold_a_copyset(there)
    least = state.least or newest.replication
    if is_short and not choose_short(0, newest, there, least):
        nodes = {node_of(shard) for shard in there}
        needs = f"an entry needs {_needs(newest._replace(replication=least))}"
        return f"{len(nodes)} of its nodes can store copies, and {needs}"
    holders = {shard for metadata in state.history for shard in _without(metadata, away)}
    if (is_short or state.sequencer in away) and (missing := awaited(state, holders, state.epoch)):
        needed = names({node_of(shard) for shard in missing})
        if is_short:
            return f"its epoch needs {needed} to end"
        return f"node {state.sequencer} sequences it, and its epoch needs {needed} to end"
    return ""


def _without(metadata: EpochMetadata, away: Collection[NodeId]) -> set[ShardId]:
    return {member.shard for member in metadata.nodeset if member.node not in away}


def _needs(metadata: EpochMetadata) -> str:
    located = any(member.location for member in metadata.nodeset)
    spread = f" in {metadata.domains_spanned} locations" if located else ""
    return f"{metadata.replication}{spread}"
