"""Describe in words what is wrong with a copyset loglet. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from loomlog.core.copyset.log_state import awaited, is_recovered, lost_together, uncertain
from loomlog.core.copyset.lsn import Epoch
from loomlog.core.copyset.messages import LogState
from loomlog.types import NodeId


def condition(
    state: LogState,
    alive: Collection[NodeId],
    lost: Mapping[NodeId, Epoch],
    reason: str,
    trouble: str,
) -> str:
    """Return a text about missing nodes, epochs that are not recovered, losses and work under way;
    "" if all is well. `lost`: nodes that lost copies, and up to which epoch."""
    words = []
    nodes, replication = state.history[-1].nodes, state.history[-1].replication
    there = len(set(nodes).intersection(alive))
    if there < len(nodes) and not state.closed:
        words.append(f"{there} of {len(nodes)} nodes of the nodeset are alive")
        if there < replication:
            words.append(f"appends wait for {replication} of them")
    if not is_recovered(state):
        first, last = state.last_clean + 1, state.epoch - 1
        span = f"epoch {first} is" if first == last else f"epochs {first} to {last} are"
        words.append(f"{span} not recovered yet{_waiting(state, alive)}")
    words += _losses(state, lost)
    if reason:
        words.append(f"gets a new epoch: {reason}")
    if trouble:
        words.append(trouble)
    return "; ".join(words)


def _losses(state: LogState, lost: Mapping[NodeId, Epoch]) -> list[str]:
    words = []
    if epochs := uncertain(state):
        which = ", ".join(map(str, epochs))
        words.append(f"how far epoch {which} was acknowledged is not known: its end is lost")
    if nodes := lost_together(state, lost):
        which = ", ".join(f"node {node}" for node in nodes)
        words.append(f"entries may be lost that only {which} had, which lost their disks")
    return words


def why_not_closed(state: LogState, alive: Collection[NodeId]) -> str:
    """Return why the log could not be closed now; "" if it could."""
    away = awaited(state, alive, state.epoch)
    return f"it cannot be closed, too few of its nodes are there: {_start(away)}" if away else ""


def _waiting(state: LogState, alive: Collection[NodeId]) -> str:
    away = awaited(state, alive, state.epoch - 1)
    whose = "its" if state.last_clean + 2 == state.epoch else "their"
    return f": too few of {whose} nodes are there: {_start(away)}" if away else ""


def _start(nodes: Collection[NodeId]) -> str:
    return f"start {', '.join(f'node {node}' for node in nodes)}"
