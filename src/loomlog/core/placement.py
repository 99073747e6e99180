"""Decide which nodes get replicas. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias

from loomlog.types import NodeId, StreamId


class Placed:
    """Counts the replicas and primaries of nodes while replicas are placed."""

    def __init__(self, sets: Iterable[tuple[NodeId, ...]] = ()) -> None:
        self.replicas: Counter[NodeId] = Counter()
        self.primaries: Counter[NodeId] = Counter()
        for nodes in sets:
            self.count(nodes)

    def count(self, nodes: tuple[NodeId, ...], by: int = 1) -> None:
        """Add a set of replicas, the primary first, or remove it."""
        for node in nodes:
            self.replicas[node] += by
        for primary in nodes[:1]:
            self.primaries[primary] += by


def place(
    streams: int,
    replicas: int,
    nodes: Sequence[NodeId],
    existing: Placed,
    locations: Mapping[NodeId, str] | None = None,
) -> list[tuple[NodeId, ...]]:
    """Return the nodes of each new stream, the primary first. No node gets two replicas of a
    stream. These are in as many locations as possible, and replicas and primaries are spread as
    evenly as possible. A node without a location counts as one of its own."""
    counts = Placed()
    load, primaries = counts.replicas, counts.primaries
    load.update({node: existing.replicas[node] for node in nodes})
    primaries.update({node: existing.primaries[node] for node in nodes})
    lightest = _Lightest(counts, nodes, locations or {})
    placed: list[tuple[NodeId, ...]] = []
    for _ in range(streams):
        chosen = lightest.take(replicas)
        chosen.sort(key=lambda node: (primaries[node], load[node], node))
        placed.append(tuple(chosen))
        counts.count(placed[-1])
        lightest.put_back(chosen)
    return placed


_Weight: TypeAlias = tuple[int, int, NodeId]


class _Lightest:
    """Nodes in the order of their load. Takes those that `spread` would choose of them all, without
    looking at them all."""

    def __init__(
        self, counts: Placed, nodes: Sequence[NodeId], locations: Mapping[NodeId, str]
    ) -> None:
        self._counts = counts
        self._place_of = {node: locations.get(node) or node for node in nodes}
        self._nodes: defaultdict[str | NodeId, list[_Weight]] = defaultdict(list)  # heaps
        for node, place in self._place_of.items():
            heappush(self._nodes[place], self._weight(node))
        # The lightest node of each place. An entry is outdated when another node is the lightest.
        self._places = [(heap[0], place) for place, heap in self._nodes.items()]
        heapify(self._places)

    def _weight(self, node: NodeId) -> _Weight:
        return self._counts.replicas[node], self._counts.primaries[node], node

    def take(self, wanted: int) -> list[NodeId]:
        """Remove and return nodes: one of each place before the second one of any."""
        chosen: list[NodeId] = []
        used: dict[str | NodeId, None] = {}  # in this pass over the places
        while len(chosen) < wanted and (self._places or used):
            if not self._places:
                self._show(used)
                used = {}
                if not self._places:
                    break
            weight, place = heappop(self._places)
            heap = self._nodes[place]
            if place not in used and heap and heap[0] == weight:
                chosen.append(heappop(heap)[-1])
                used[place] = None
        self._show(used)
        return chosen

    def put_back(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            heappush(self._nodes[self._place_of[node]], self._weight(node))
        self._show({self._place_of[node]: None for node in nodes})

    def _show(self, places: Iterable[str | NodeId]) -> None:
        for place in places:
            if heap := self._nodes[place]:
                heappush(self._places, (heap[0], place))


def spread(nodes: Iterable[NodeId], wanted: int, locations: Mapping[NodeId, str]) -> list[NodeId]:
    """Choose this many nodes from as many locations as possible, preferring those listed first."""
    left = list(nodes)
    chosen: list[NodeId] = []
    while left and len(chosen) < wanted:
        chosen.append(min(left, key=lambda node: neighbours(node, chosen, locations)))
        left.remove(chosen[-1])
    return chosen


def neighbours(node: NodeId, others: Iterable[NodeId], locations: Mapping[NodeId, str]) -> int:
    """Return how many of the other nodes are in the location of this one."""
    location = locations.get(node)
    return sum(locations.get(other) == location for other in others) if location else 0


# ---- one more replica


class Load(NamedTuple):
    """The load of a node. Nodes that compare lower are preferred."""

    has_remains: bool  # old data of the same stream
    replicas: int
    stored_bytes: int


def choose_spare(
    loads: Mapping[NodeId, Load], staying: Collection[NodeId], locations: Mapping[NodeId, str]
) -> NodeId | None:
    """Return the best node for one more replica: one in a location with the fewest replicas that
    stay, then the one with the least load."""

    def burden(node: NodeId) -> tuple[int, Load, NodeId]:
        return neighbours(node, staying, locations), loads[node], node

    return min(loads, key=burden, default=None)


class Candidate(NamedTuple):
    """A node that might take one more replica of a stream."""

    node: NodeId
    reachable: bool = True
    has_room: bool = True
    draining: bool = False
    deleting: bool = False  # is about to delete old data of the stream
    unable: bool = False  # failed to take the stream a moment ago
    has_old_data: bool = False  # of the stream, on which a new replica cannot build


def why_not(
    stream_id: StreamId, replicas: Collection[NodeId], joining: NodeId | None, candidate: Candidate
) -> str | None:
    """Return why the candidate cannot take a replica of the stream; None if it can."""
    node = candidate.node
    reasons = (
        (node in replicas, f"node {node} has a replica of stream {stream_id} already"),
        (node == joining, f"node {node} is being filled with stream {stream_id} already"),
        (not candidate.reachable, f"node {node} is not alive"),
        (
            not candidate.has_room,
            f"node {node} has no volume that works and has room: see `loom node list`",
        ),
        (candidate.draining, f"node {node} is being drained"),
        (
            candidate.deleting,
            f"node {node} is just deleting old data of stream {stream_id}: try again soon",
        ),
        (
            candidate.unable,
            f"node {node} failed to take stream {stream_id} a moment ago: see the logs",
        ),
        (
            candidate.has_old_data,
            f"node {node} has old data of stream {stream_id}: "
            f"delete it with `loom node cleanup {node}` first",
        ),
    )
    return next((reason for holds, reason in reasons if holds), None)
