"""Decide what a log's state has become since metadata was copied. Pure; see core/catch_up.py."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from loomlog.core.copyset.epoch_metadata import EpochMetadata, Member
from loomlog.core.copyset.lsn import Epoch
from loomlog.core.copyset.messages import LogState
from loomlog.types import NodeId


def newest_state(state: LogState, epoch: Epoch, nodes: Collection[NodeId]) -> LogState:
    """Return the state from which the next epoch is above `epoch`, the highest that any node knows.
    The nodesets of the epochs in between are unknown, so all nodes are asked, whatever their
    locations, and no record escapes recovery. The last epoch has no sequencer: the next one
    recovers them."""
    if epoch <= state.epoch:
        return state
    members = tuple(Member(node) for node in sorted(nodes))
    newest = state.history[-1]
    kept = state.history if newest.since <= state.epoch else state.history[:-1]
    unknown = EpochMetadata(state.epoch + 1, members, newest.replication)
    return replace(state, epoch=epoch + 1, sequencer=0, history=(*kept, unknown))
