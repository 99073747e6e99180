"""Choose the nodeset of the next epoch of a log, and let operators widen and narrow it. Pure.

The nodeset stays the same unless nodes of it are gone or leave, it has shrunk, or an operator named
nodes. Existing copies stay where they are, whatever the next nodeset is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member, choose_nodeset
from loomlog.limits import NODESET_MAX
from loomlog.types import LogId, NodeId


class NodesetAim(NamedTuple):
    """The part of a log's history, and of what operators asked for, that its next nodesets depend
    on."""

    size: int = 0  # when an epoch began, or as an operator left it; 0: not known
    joined: tuple[NodeId, ...] = ()  # named by operators: in the nodeset whenever they are usable
    left: tuple[NodeId, ...] = ()  # named by operators: in it only if too few others are usable
    wider: int = 0  # members more than the settings of the log ask for

    def sized(self, size: int) -> int:
        """Return the number of members that the nodeset may have, given that of the settings."""
        return min(max(size + self.wider, 1), NODESET_MAX)

    def fit(self, usable: Iterable[Member], replication: int) -> set[Member]:
        """Return the members without those that left, unless too few others would remain."""
        others = without(usable, self.left)
        metadata = EpochMetadata(0, others, replication)
        is_enough = metadata.can_replicate([member.shard for member in others])
        return set(others if is_enough else usable)

    def lacking(self, nodeset: Sequence[Member], usable: Iterable[Member]) -> list[Member]:
        """Return the usable members on nodes that an operator named, which a nodeset lacks."""
        named = {member for member in usable if member.node in self.joined}
        return sorted(named.difference(nodeset))

    def is_met(self, nodeset: Sequence[Member], usable: Iterable[Member]) -> bool:
        """Return whether a nodeset is as operators want it, as far as nodes are usable."""
        has_left = any(member.node in self.left for member in nodeset)
        return not (has_left or self.lacking(nodeset, usable))

    # ---- changes

    def begun(self, before: LogState, after: LogState) -> NodesetAim:
        """Note the size of the nodeset of an epoch that has begun. Later, nodesets of epochs may be
        widened for a rebuilding, which is no reason for a larger one."""
        if after.epoch <= before.epoch:
            return self
        known = self.size or max(len(metadata.nodeset) for metadata in before.history)
        return self._replace(size=max(known, len(after.history[-1].nodeset)))

    def widen(self, nodeset: Sequence[Member], joining: Collection[Member]) -> NodesetAim:
        nodes = {member.node for member in joining}
        return NodesetAim(
            len({*nodeset, *joining}),
            tuple(sorted(nodes.union(self.joined))),
            tuple(node for node in self.left if node not in nodes),
            self.wider + len(without(joining, self.joined)),  # others were counted before
        )

    def narrow(self, nodeset: Sequence[Member], nodes: Collection[NodeId]) -> NodesetAim:
        rest = without(nodeset, nodes)
        leaving = [member for member in nodeset if member not in rest]
        return NodesetAim(
            len(rest),
            tuple(node for node in self.joined if node not in nodes),
            tuple(sorted({*self.left, *nodes})),
            self.wider - len(without(leaving, self.left)),  # others were counted before
        )


def without(nodeset: Iterable[Member], nodes: Collection[NodeId]) -> tuple[Member, ...]:
    return tuple(member for member in nodeset if member.node not in nodes)


def last_choice(log: LogId, nodeset: Sequence[Member]) -> NodeId:
    """Return the node that would be in the nodeset last if it were chosen again."""
    return choose_nodeset(log, nodeset, len(nodeset))[-1].node


def has_shrunk(state: LogState, aim: NodesetAim, size_asked: int) -> bool:
    """Return whether the nodeset is smaller than the size that was asked for (0: any), than an
    earlier one, or than a copy set. New nodes alone are no reason for an epoch; having lost some is
    a reason to take others."""
    newest = state.history[-1]
    earlier = aim.size or max(len(metadata.nodeset) for metadata in state.history)
    wanted = aim.sized(size_asked) if size_asked else earlier
    return len(newest.nodeset) < max(wanted, newest.replication)


def next_nodeset(
    log: LogId,
    state: LogState,
    usable: Collection[Member],
    size: int,
    aim: NodesetAim,
) -> tuple[Member, ...]:
    """Return the nodeset of the next epoch. `usable` nodes may take records; of those that are away
    they include the ones expected back."""
    nodeset, fit = state.history[-1].nodeset, aim.fit(usable, state.history[-1].replication)
    is_fit = fit.issuperset(nodeset) and aim.is_met(nodeset, fit)
    if is_fit and len(nodeset) >= min(aim.sized(size), len(fit)):
        return nodeset
    kept = nodeset if aim.joined or aim.left else ()  # what an operator did is not undone by chance
    return _chosen(log, state, fit, aim.sized(size), (*aim.lacking((), fit), *kept))


def fresh_nodeset(
    log: LogId,
    state: LogState,
    usable: Collection[Member],
    size: int,
    aim: NodesetAim,
) -> tuple[Member, ...]:
    """Return the nodeset that the log would have if it began now; the same if it cannot be."""
    fit = aim.fit(usable, state.history[-1].replication)
    return _chosen(log, state, fit, aim.sized(size), aim.lacking((), fit))


def _chosen(
    log: LogId, state: LogState, fit: set[Member], size: int, first: Iterable[Member]
) -> tuple[Member, ...]:
    newest = state.history[-1]
    kept = [member for member in dict.fromkeys(first) if member in fit]
    chosen = (*kept, *choose_nodeset(log, fit.difference(kept), size))[:size]
    can_hold = EpochMetadata(0, chosen, newest.replication).can_hold_a_copyset
    if not can_hold([member.shard for member in chosen]) or {*chosen} == {*newest.nodeset}:
        return newest.nodeset
    return chosen


def why_not_narrowed(state: LogState, nodes: Collection[NodeId]) -> str:
    """Return why the nodeset cannot do without these nodes; "" if it can."""
    newest = state.history[-1]
    rest = without(newest.nodeset, nodes)
    if newest._replace(nodeset=rest).can_replicate([member.shard for member in rest]):
        return ""
    left = len({member.node for member in rest})
    would = "node would" if left == 1 else "nodes would"
    return f"its entries have {newest.replication} copies, and {left} {would} be left for them"
