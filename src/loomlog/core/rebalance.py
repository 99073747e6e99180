"""Plan moves of replicas that spread the load evenly over the nodes. Pure.

The load of a node is the bytes that its replicas store, plus a fixed amount per replica: even an
empty one takes its share of appends. Each move goes from a node with more load to one with less and
makes the two more even, so planning ends. A cluster that is even enough gets no moves. A move never
puts two replicas of the same data on one node, or spreads them over fewer locations than before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from loomlog.core.placement import neighbours
from loomlog.types import NodeId, StreamId

REPLICA_BYTES: Final = 64 << 20  # the fixed load of a replica
TOLERANCE: Final = 0.1  # of the average load: a smaller difference is not worth a copy
GAIN_MIN: Final = 0.5  # of the load of a replica: a move must reduce the difference by this much


class ReplicaGroup(NamedTuple):
    """Replicas of the same data, any of which may move to another node."""

    stream_id: StreamId
    part: int  # number of the chain, if the stream has several
    nodes: tuple[NodeId, ...]
    stored_bytes: int = 0  # by each of them

    @property
    def load(self) -> int:
        return REPLICA_BYTES + self.stored_bytes


class Move(NamedTuple):
    """One replica that moves from one node to another."""

    stream_id: StreamId
    part: int
    origin: NodeId
    target: NodeId
    stored_bytes: int


class NodeLoad(NamedTuple):
    """The load of a node: its replicas that may move."""

    replicas: int = 0
    stored_bytes: int = 0


class RebalancePlan(NamedTuple):
    """Moves, in order, and the load of each node before and after them."""

    moves: tuple[Move, ...]
    before: Mapping[NodeId, NodeLoad]
    after: Mapping[NodeId, NodeLoad]


def plan_moves(
    groups: Iterable[ReplicaGroup],
    usable: Collection[NodeId],
    locations: Mapping[NodeId, str],
    moves_max: int | None = None,
) -> RebalancePlan:
    """Plan moves between usable nodes."""
    work = _Work(list(groups), usable, locations)
    before = work.node_loads()
    while (moves_max is None or len(work.moves) < moves_max) and work.step():
        pass
    return RebalancePlan(tuple(work.moves), before, work.node_loads())


def imbalance(loads: Iterable[NodeLoad]) -> float:
    """Return how far the node with the most load is above the average: 0.5 means by half."""
    weights = [load.replicas * REPLICA_BYTES + load.stored_bytes for load in loads]
    average = sum(weights) / len(weights) if weights else 0
    return max(weights) / average - 1 if average else 0.0


class _Work:
    """The placement while it is being planned."""

    def __init__(
        self,
        groups: Sequence[ReplicaGroup],
        usable: Collection[NodeId],
        locations: Mapping[NodeId, str],
    ) -> None:
        self._groups = groups
        self._locations = locations
        self._nodes = [set(group.nodes) for group in groups]
        self._load = dict.fromkeys(sorted(usable), 0)
        self._on: defaultdict[NodeId, dict[int, None]] = defaultdict(dict)  # groups, by index
        self.moves: list[Move] = []
        for index, group in enumerate(groups):
            for node in group.nodes:
                self._on[node][index] = None
                if node in self._load:
                    self._load[node] += group.load
        self._enough = TOLERANCE * sum(self._load.values()) / max(1, len(self._load))

    def node_loads(self) -> dict[NodeId, NodeLoad]:
        return {
            node: NodeLoad(
                len(self._on[node]), sum(self._groups[i].stored_bytes for i in self._on[node])
            )
            for node in self._load
        }

    def step(self) -> bool:
        """Plan the next move, from the most loaded node that has one. Return False if none has."""
        by_load = sorted(self._load, key=lambda node: (self._load[node], node))
        for origin in reversed(by_load):
            for target in by_load:
                difference = self._load[origin] - self._load[target]
                if difference <= self._enough:
                    break
                if (index := self._choose(origin, target, difference)) is not None:
                    self._move(index, origin, target)
                    return True
        return False

    def _choose(self, origin: NodeId, target: NodeId, difference: int) -> int | None:
        """Return the group whose move reduces the difference most; None if none is worth a copy."""
        best, best_rest = None, difference
        for index in self._on[origin]:
            load = self._groups[index].load
            rest = abs(difference - 2 * load)
            is_worth_it = difference - rest >= GAIN_MIN * load
            if is_worth_it and rest < best_rest and self._may_move(index, origin, target):
                best, best_rest = index, rest
        return best

    def _may_move(self, index: int, origin: NodeId, target: NodeId) -> bool:
        nodes = self._nodes[index]
        if target in nodes:
            return False
        staying = nodes - {origin}
        crowd_after = neighbours(target, staying, self._locations)
        return crowd_after <= neighbours(origin, staying, self._locations)

    def _move(self, index: int, origin: NodeId, target: NodeId) -> None:
        group = self._groups[index]
        self._nodes[index] = (self._nodes[index] - {origin}) | {target}
        del self._on[origin][index]
        self._on[target][index] = None
        self._load[origin] -= group.load
        self._load[target] += group.load
        self.moves.append(Move(group.stream_id, group.part, origin, target, group.stored_bytes))
