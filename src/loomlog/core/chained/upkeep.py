"""What a chained loglet needs next, so that its chains become what they should be. Pure.

A replica whose node is silent leaves at once: appends go on with the others. A spare is filled
beside that and joins when it is. A node that is to be emptied leaves when others have taken its
place in all its chains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from loomlog.core.chained.projection import Chain, Projection, Replica
from loomlog.types import NodeId


class Loglet(NamedTuple):
    """What is known of it besides its nodes."""

    projection: Projection
    replicas_wanted: int
    needs_epoch: str = ""  # why, if it needs a new one whatever its nodes do
    unfit: frozenset[Replica] = frozenset()  # their nodes are there, their blocks are not
    joining: tuple[Replica, ...] = ()
    left: tuple[Replica, ...] = ()  # are not removed from their nodes yet


class Nodes(Protocol):
    """The nodes as one loglet sees them."""

    def reachable(self, node: NodeId) -> bool:
        """It can be asked now."""

    def silent(self, node: NodeId) -> bool:
        """It was missed for long enough. One that is neither may be back in a moment."""

    def replaced(self, node: NodeId) -> bool:
        """It was missed for so long that others take its place; or it is back."""

    def leaving(self, node: NodeId) -> bool:
        """It is to be emptied."""

    def spare(self, chain: int) -> NodeId | None: ...


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """Without those that do not answer, and those that leave."""

    reason: str
    leaving: frozenset[NodeId] = frozenset()
    unfit: frozenset[Replica] = frozenset()


@dataclass(frozen=True, slots=True)
class Join:
    """Fill a replica of a chain on a node, and let it join."""

    chain: int
    node: NodeId


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str = ""  # empty: all is well


Action: TypeAlias = NewEpoch | Join | Wait


def decide(loglet: Loglet, nodes: Nodes) -> Action:
    reason = loglet.needs_epoch or _who_is_missing(loglet, nodes)
    if reason:
        return _obstacle(loglet, nodes) or NewEpoch(reason, unfit=loglet.unfit)
    if (node := _who_may_leave(loglet, nodes)) is not None:
        why = "emptied" if nodes.leaving(node) else "one more than needed"
        return NewEpoch(f"node {node} is {why}", frozenset([node]))
    return _join(loglet, nodes)


def _who_is_missing(loglet: Loglet, nodes: Nodes) -> str:
    for replica in loglet.projection.replicas:
        if nodes.silent(replica.node_id):
            return f"node {replica.node_id} is silent"
        if replica in loglet.unfit:
            return f"node {replica.node_id} is there without its blocks"
    return ""


def _obstacle(loglet: Loglet, nodes: Nodes) -> Wait | None:
    """Every chain keeps a replica, and nobody is left behind who is only late."""
    for replica in loglet.projection.replicas:
        if not (nodes.reachable(replica.node_id) or nodes.silent(replica.node_id)):
            return Wait(f"node {replica.node_id} is expected back in a moment")
    for index, chain in enumerate(loglet.projection.chains):
        if not any(nodes.reachable(r.node_id) and r not in loglet.unfit for r in chain):
            needed = " or ".join(str(replica.node_id) for replica in chain)
            return Wait(f"nobody has all of chain {index}: start node {needed}")
    return None


def _who_may_leave(loglet: Loglet, nodes: Nodes) -> NodeId | None:
    """One that is to be emptied, or was to be when another took its place; rather the newest."""
    places = sorted((r.birth, r.node_id) for r in loglet.projection.replicas)
    for node in dict.fromkeys(node for _, node in reversed(places)):
        staying = [
            len(_staying(chain, nodes))
            for chain in loglet.projection.chains
            if any(replica.node_id == node for replica in chain)
        ]
        if min(staying) >= loglet.replicas_wanted + (not nodes.leaving(node)):
            return node
    return None


def _staying(chain: Chain, nodes: Nodes) -> list[Replica]:
    return [replica for replica in chain if not nodes.leaving(replica.node_id)]


def _join(loglet: Loglet, nodes: Nodes) -> Join | Wait:
    reason = ""
    for index, chain in enumerate(loglet.projection.chains):
        joining = [replica for replica in loglet.joining if replica.chain == index]
        lacking = loglet.replicas_wanted - len(_staying(chain, nodes)) - len(joining)
        awaited = [r for r in loglet.left if r.chain == index and not nodes.replaced(r.node_id)]
        if lacking > len(awaited):
            if (node := nodes.spare(index)) is not None:
                return Join(index, node)
            reason = "there is no spare node"
        elif lacking > 0:
            reason = reason or f"node {awaited[0].node_id} may come back before it is replaced"
    return Wait(reason)
