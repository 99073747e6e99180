"""Decide the next step in the upkeep of a chained loglet, and describe its problems. Pure.

Silent nodes. Their replicas leave immediately, and appends continue if enough others are left. A
spare is filled and joins: immediately if appends wait for it, otherwise once the node has been away
for long.

Drains and moves. A drained node leaves when others have replaced it in all its chains, a moved
replica when another has replaced it.

Crashes. A replica whose node crashed since the epoch began may have forgotten blocks; it gets them
back in a new epoch.

Full volumes. A replica without room leaves when an append waits for it, if enough others are left.

Lost chains. A chain without a whole replica begins again with the blocks that its replicas, and
older ones, still have. Replicas that are missing on a node that serves its other chains may still
be brought back, so they are waited for; but not if the chain is shorter than appends need, because
then everything acknowledged is also on replicas that left.

Removal. A replica that left may be the only one to have a block, so it stays on its node until its
chain has all its replicas again. An unheard one is compared with its chain first. If a replica was
damaged and its chain lost blocks, or if it has blocks that the others lost, an operator may want to
save them; it then stays until they are trimmed, or its node is drained.

Nodes that an operator gave up. Their replicas count as lost while the node is away. If it comes
back before an epoch began without it, it is used; otherwise its replicas have left like any others,
and stay if their chain began again and lost blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from loomlog.core.chained.chain import Chain, Projection, Replica, Unheard
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.reconfigure import Goal
from loomlog.limits import REFERENCE_RECORDS_MAX
from loomlog.types import Glsn, LogId, NodeId


class ChainsStanding(NamedTuple):
    """The state of the chains of a loglet, apart from its nodes."""

    record: ChainedRecord
    replicas_wanted: int
    needs_epoch: str = ""  # why it needs a new epoch regardless of its nodes
    unfit: frozenset[Replica] = frozenset()  # blocks are missing, although their nodes answer
    lost: frozenset[Replica] = frozenset()  # unfit for good: emptied, given up, or an older copy
    damaged: frozenset[Replica] = frozenset()  # unfit for good: blocks are damaged
    missing: frozenset[Replica] = frozenset()  # unfit: absent, although their node serves others
    full: frozenset[Replica] = frozenset()  # appends wait, because they have no room

    @property
    def projection(self) -> Projection:
        return self.record.projection

    def whole(self, chain: int) -> list[Replica]:
        """Return the replicas in force that have all blocks of a chain."""
        return [r for r in self.projection.chains[chain] if r not in self.unfit]

    def has_losses(self, chain: int) -> bool:
        """Return whether a chain lost blocks that are not trimmed."""
        lost = self.projection.lost
        return bool(lost) and lost[chain] > self.record.trimmed + 1


class Nodes(Protocol):
    """The storage nodes, for decisions about chained loglets."""

    def reachable(self, node: NodeId) -> bool:
        """Return whether requests can be sent to the node now."""

    def silent(self, loglet: LogId, node: NodeId) -> bool:
        """Return whether the node has been silent for long enough to be left out. A node that is
        neither reachable nor silent may be back in a moment."""

    def replaced(self, node: NodeId) -> bool:
        """Return whether other nodes may replace it, because it was away for too long, or because
        it is back already and need not be waited for."""

    def leaving(self, node: NodeId) -> bool:
        """Return whether the node is being drained."""

    def life(self, node: NodeId) -> int:
        """Return the node's life, which changes when it crashes; 0: not known."""

    def spare(
        self, record: ChainedRecord, chain: int, preferred: NodeId | None = None
    ) -> NodeId | None:
        """Return a node that can take another replica of a chain, the preferred one if possible.
        That may be the node of a replica which is moved to another volume."""

    def fresh(self, record: ChainedRecord) -> NodeId | None:
        """Return a node where a chain that lost all its replicas can begin again."""


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """Begin an epoch without the nodes that do not answer, and without those that leave."""

    reason: str
    leaving: frozenset[NodeId] = frozenset()
    unfit: frozenset[Replica] = frozenset()
    fresh: tuple[tuple[int, NodeId], ...] = ()  # lost chains, and the nodes where they begin again
    older: tuple[Replica, ...] = ()  # may have blocks of the lost chains, too
    damaged: frozenset[Replica] = frozenset()
    moved: frozenset[Replica] = frozenset()
    short: bool = False  # chains may become shorter than appends need
    given_up: tuple[Replica, ...] = ()  # of the lost chains; not waited for

    def goal(self, *fresh: Replica) -> Goal:
        """Return the goal of the epoch. Lost chains begin again with `fresh` replicas."""
        return Goal(
            leaving=self.leaving,
            unfit=self.unfit,
            fresh=fresh,
            older=self.older,
            damaged=self.damaged,
            moved=self.moved,
            short=self.short,
        )


@dataclass(frozen=True, slots=True)
class Join:
    """Fill a replica of a chain on this node, and let it join."""

    chain: int
    node: NodeId


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing now."""

    reason: str = ""  # empty: all is well


Action: TypeAlias = NewEpoch | Join | Wait


def decide(chains: ChainsStanding, nodes: Nodes) -> Action:
    """Return the next step in the upkeep of the chains."""
    reason = chains.needs_epoch or _why_epoch_is_needed(chains, nodes)
    if not reason and _can_spare_full_replicas(chains, nodes):
        chains = chains._replace(unfit=chains.unfit | chains.full)
        reason = f"node {min(chains.full).node_id} has no room"
    if reason:
        return _obstacle(chains, nodes) or _new_epoch(chains, nodes, reason)
    if moved := _replaced_by_moves(chains, nodes):
        return NewEpoch(f"others took the place of {len(moved)} replicas", moved=moved)
    if (node := _node_that_may_leave(chains, nodes)) is not None:
        why = "emptied" if nodes.leaving(node) else "one more than needed"
        return NewEpoch(f"node {node} is {why}", frozenset([node]))
    return _join(chains, nodes)


def _why_epoch_is_needed(chains: ChainsStanding, nodes: Nodes) -> str:
    for replica in chains.projection.replicas:
        if nodes.silent(replica.log_id, replica.node_id):
            return f"node {replica.node_id} is silent"
        if replica in chains.unfit:
            return f"node {replica.node_id} is there without its blocks"
        life = nodes.life(replica.node_id)
        if nodes.reachable(replica.node_id) and chains.projection.has_crashed(
            replica.node_id, life
        ):
            return f"node {replica.node_id} crashed, and may have forgotten blocks"
    return ""


def _can_spare_full_replicas(chains: ChainsStanding, nodes: Nodes) -> bool:
    """Return whether every chain would keep as many replicas as appends need without full ones."""
    others = [
        sum(replica not in chains.full and nodes.reachable(replica.node_id) for replica in chain)
        for chain in chains.projection.chains
    ]
    return bool(chains.full) and min(others) >= chains.projection.least


def _obstacle(chains: ChainsStanding, nodes: Nodes) -> Wait | None:
    """Return what an epoch has to wait for: a whole replica of each chain, and nodes that are
    expected back in a moment."""
    for replica in chains.projection.replicas:
        if not (nodes.reachable(replica.node_id) or nodes.silent(replica.log_id, replica.node_id)):
            return Wait(f"node {replica.node_id} is expected back in a moment")
    for index, chain in enumerate(chains.projection.chains):
        if _is_lost(chains, chain, nodes):
            if away := _away(chains, index, nodes):
                names = " and ".join(f"node {node}" for node in away)
                return Wait(f"chain {index} is lost but for what {names} may have left: start it")
        elif not any(nodes.reachable(r.node_id) for r in chains.whole(index)):
            return Wait(f"nobody has all of chain {index}: {_what_helps(chain, nodes)}")
    return None


def _is_lost(chains: ChainsStanding, chain: Chain, nodes: Nodes) -> bool:
    """Return whether no replica of a chain is whole or can become whole."""
    gone = {r for r in chain if r in chains.damaged and nodes.reachable(r.node_id)} | chains.lost
    if len(chain) < chains.projection.least and chains.record.older(chain[0].chain):
        gone |= chains.missing
    return gone.issuperset(chain)


def _away(chains: ChainsStanding, chain: int, nodes: Nodes) -> list[NodeId]:
    """Return the unreachable nodes with older replicas of a chain."""
    awaited = (replica for replica in chains.record.older(chain) if replica not in chains.lost)
    return sorted({r.node_id for r in awaited if not nodes.reachable(r.node_id)})


def is_needless(chains: ChainsStanding, replica: Replica, nodes: Nodes) -> bool:
    """Return whether a replica that left, or did not join, may be removed from its node.

    A newcomer may be removed earlier than others: its blocks are also on the replica that it was
    filled from, while a whole replica is reachable."""
    if chains.record.is_unheard(replica):
        return False
    whole = chains.whole(replica.chain)
    if len(whole) >= chains.replicas_wanted:
        is_kept = _has_lost_blocks(chains, replica)
        return not is_kept or replica in chains.lost or nodes.leaving(replica.node_id)
    is_copy = replica in chains.record.given_up
    return is_copy and any(nodes.reachable(r.node_id) for r in whole)


def _has_lost_blocks(chains: ChainsStanding, replica: Replica) -> bool:
    """Return whether a replica may have blocks that are lost. For a witness, the loss may be
    recorded for any chain, because the junk in its place may be on any."""
    if replica in chains.record.witnesses:
        return any(map(chains.has_losses, range(len(chains.projection.chains))))
    return replica in chains.record.damaged and chains.has_losses(replica.chain)


def to_compare(record: ChainedRecord, nodes: Nodes) -> list[Unheard]:
    """Return the unheard replicas that can be compared with their chains now."""
    return [each for each in record.unheard if nodes.reachable(each.replica.node_id)]


def is_trimmed(record: ChainedRecord, unheard: Unheard) -> bool:
    """Return whether all positions that an unheard replica may have are trimmed."""
    return unheard.end <= record.trimmed + 1


def _new_epoch(chains: ChainsStanding, nodes: Nodes, reason: str) -> NewEpoch | Wait:
    fresh = []
    projection = chains.projection
    for index, chain in enumerate(projection.chains):
        if _is_lost(chains, chain, nodes):
            if (node := nodes.fresh(chains.record)) is None:
                return Wait(f"chain {index} is lost, and there is no node where it can begin again")
            fresh.append((index, node))
    given_up = frozenset(r for r in chains.lost if not nodes.reachable(r.node_id))
    begin_again = [index for index, _ in fresh]
    return NewEpoch(
        reason,
        leaving=frozenset(replica.node_id for replica in given_up),
        unfit=chains.unfit,
        fresh=tuple(fresh),
        older=tuple(chains.record.older(*begin_again)),
        damaged=chains.damaged,
        short=may_become_short(chains, nodes),
        given_up=tuple(sorted(r for r in given_up if r.chain in begin_again)),
    )


def may_become_short(chains: ChainsStanding, nodes: Nodes) -> bool:
    """Return whether an epoch may leave a chain with fewer replicas than appends need. It may if
    fewer nodes are reachable, and after a failed attempt, because it is known by then which nodes
    answer."""
    least = chains.projection.least
    return bool(chains.needs_epoch) or any(
        sum(nodes.reachable(replica.node_id) for replica in chains.whole(index)) < least
        for index in range(len(chains.projection.chains))
    )


def _what_helps(chain: Chain, nodes: Nodes) -> str:
    away = [str(r.node_id) for r in chain if not nodes.reachable(r.node_id)]
    if away:
        return f"start node {' or '.join(away)}"
    there = " and ".join(f"node {replica.node_id}" for replica in chain)
    return f"what {there} had of it is lost, or the disk fails: bring the volumes back"


def _replaced_by_moves(chains: ChainsStanding, nodes: Nodes) -> frozenset[Replica]:
    """Return the moving replicas that others have replaced."""
    return frozenset(
        replica
        for chain in chains.projection.chains
        if len(_staying(chains, chain, nodes)) >= chains.replicas_wanted
        for replica in chain
        if chains.record.is_moving(replica)
    )


def _node_that_may_leave(chains: ChainsStanding, nodes: Nodes) -> NodeId | None:
    """Return a node that may leave: a drained one, or one more than needed. Of several, the one
    that joined last leaves first."""
    places = sorted(
        (index, replica.node_id)
        for chain in chains.projection.chains
        for index, replica in enumerate(chain)
    )
    for node in dict.fromkeys(node for _, node in reversed(places)):
        staying = [
            len(_staying(chains, chain, nodes))
            for chain in chains.projection.chains
            if any(replica.node_id == node for replica in chain)
        ]
        if min(staying) >= chains.replicas_wanted + (not nodes.leaving(node)):
            return node
    return None


def _staying(chains: ChainsStanding, chain: Chain, nodes: Nodes) -> list[Replica]:
    is_moving = chains.record.is_moving
    return [r for r in chain if not nodes.leaving(r.node_id) and not is_moving(r)]


def _join(chains: ChainsStanding, nodes: Nodes) -> Join | Wait:
    reason = ""
    for index, chain in enumerate(chains.projection.chains):
        joining = [replica for replica in chains.record.joining if replica.chain == index]
        lacking = chains.replicas_wanted - len(_staying(chains, chain, nodes)) - len(joining)
        left = {r.node_id for r in chains.record.needless if r.chain == index}
        awaited = sorted(node for node in left if not nodes.replaced(node))
        if len(chain) + len(joining) < chains.projection.least:
            awaited = []  # appends wait: any node will do
        if lacking > len(awaited):
            targets = (node for replica, node in chains.record.moving if replica.chain == index)
            if (node := nodes.spare(chains.record, index, next(targets, None))) is not None:
                return Join(index, node)
            reason = "there is no spare node"
        elif lacking > 0:
            reason = reason or f"node {awaited[0]} may come back before it is replaced"
    return Wait(reason)


def why_appends_wait(record: ChainedRecord, nodes: Nodes) -> str:
    """Return a text that names a chain with fewer replicas than appends need, and which nodes to
    start; "" if there is none."""
    projection = record.projection
    if projection.closed:
        return ""
    for index, chain in enumerate(projection.chains):
        if shortage := projection.shortage(index):
            left = {replica.node_id for replica in record.dropping if replica.chain == index}
            away = sorted(node for node in left if not nodes.reachable(node))
            conjunction = " or " if len(chain) + len(away) > projection.least else " and "
            what = conjunction.join(f"node {node}" for node in away) or "another node"
            is_filled = any(replica.chain == index for replica in record.joining)
            return f"appends wait: {shortage}" + ("" if is_filled else f": start {what}")
    return ""


def unreadable(chains: ChainsStanding, nodes: Nodes) -> list[int]:
    """Return the chains of which no reachable node has all blocks."""
    return [
        index
        for index in range(len(chains.projection.chains))
        if not any(nodes.reachable(replica.node_id) for replica in chains.whole(index))
    ]


def describe_losses(projection: Projection, trimmed: Glsn) -> list[str]:
    """Return a text for each chain that lost blocks which are not trimmed. Readers get DataLoss for
    exactly the positions that it names."""
    texts = []
    for chain in range(len(projection.lost)):
        lost = projection.lost_range(chain)
        lost = range(max(lost.start, trimmed + 1), lost.stop)
        if len(lost) >= REFERENCE_RECORDS_MAX:  # the longest that is filled at once
            what = f"entries from position {lost.start} on: nobody knows how many there were"
            texts.append(f"chain {chain} may have lost {what}")
        elif len(lost) == 1:
            texts.append(f"chain {chain} lost position {lost.start}")
        elif lost:
            texts.append(f"chain {chain} lost entries from position {lost[0]} to {lost[-1]}")
    return texts


def condition(
    projection: Projection,
    wanted: int,
    waiting: str,
    action: Action,
    filled: Mapping[Replica, int],
    trouble: str,
    trimmed: Glsn,
    refusing: Mapping[NodeId, str],
    *,
    runs: bool,
) -> str:
    """Return a text about missing replicas, copies in progress, what is waited for, and losses that
    are not trimmed; "" if all is well.

    `waiting`: why appends wait. `refusing`: nodes that take no data, and why. `runs`: all chains
    can be read."""
    fewest = min((len(chain) for chain in projection.chains), default=0)
    words = []
    if fewest < wanted and runs:
        words.append(f"runs with {fewest} of {wanted} replicas")
    words += [waiting] if waiting else []
    if fewest < wanted:
        words += [f"node {node} takes nothing: {why}" for node, why in refusing.items()]
    words += [
        f"node {replica.node_id} is being filled, {percent} % copied"
        for replica, percent in filled.items()
    ]
    words += describe_losses(projection, trimmed)
    match action:
        case NewEpoch(reason):
            words.append(f"begins a new epoch: {reason}")
        case Join(chain, node):
            words.append(f"node {node} joins chain {chain}")
        case Wait(reason) if reason:
            words.append(reason)
    if trouble:
        words.append(trouble)
    return "; ".join(words)
