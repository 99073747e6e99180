"""Decide what it costs a log of protocol `copyset` if nodes are away. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from loomlog.core.copyset.log_state import awaited
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import EpochMetadata
from loomlog.core.copyset.record import Epoch, epoch_of
from loomlog.core.outage import PartOutage, names
from loomlog.types import LogId, NodeId


def outage(
    loglet: LogId,
    state: LogState,
    away: Collection[NodeId],
    refusing: Collection[NodeId],
    lost: Mapping[NodeId, Epoch],
) -> list[PartOutage]:
    """Return the cost for the epochs of each nodeset. `refusing`: nodes that take no copies;
    `lost`: nodes that lost copies, and up to which epoch."""
    stop = "" if state.closed else _why_appends_stop(state, away, refusing)
    parts = []
    for metadata in state.history:
        first = max(metadata.since, epoch_of(state.trimmed))
        gone = {node for node in metadata.nodes if node in away or lost.get(node, 0) >= first}
        has_records = metadata.since <= state.epoch
        left = metadata.replication - (copies_max(metadata, gone) if has_records else 0)
        name = f"segment {loglet} from epoch {metadata.since} on"
        parts.append(PartOutage(name, metadata.replication, left, stop))
    return parts


def copies_max(metadata: EpochMetadata, nodes: Collection[NodeId]) -> int:
    """Return how many copies of a record these nodes may have at most. A copyset spans several
    failure domains, so nodes of one domain never have all of it."""
    members = [member for member in metadata.nodeset if member.node_id in nodes]
    domains = len({member.domain for member in members})
    elsewhere = max(0, metadata.domains_spanned - domains)
    return min(len(members), metadata.replication - elsewhere)


def _why_appends_stop(
    state: LogState, away: Collection[NodeId], refusing: Collection[NodeId]
) -> str:
    newest = state.history[-1]
    there = set(newest.nodes).difference(away, refusing)
    if not newest.can_hold_a_copyset(there):
        return f"{len(there)} of its nodes can store copies, and an entry needs {_needs(newest)}"
    holders = {node for metadata in state.history for node in metadata.nodes}.difference(away)
    if state.sequencer in away and (missing := awaited(state, holders, state.epoch)):
        return f"node {state.sequencer} sequences it, and its epoch needs {names(missing)} to end"
    return ""


def _needs(metadata: EpochMetadata) -> str:
    located = any(member.location for member in metadata.nodeset)
    spread = f" in {metadata.domains_spanned} locations" if located else ""
    return f"{metadata.replication}{spread}"
