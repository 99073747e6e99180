"""Decide whether a copyset log needs another epoch, and describe what is wrong with it. Pure.

It needs an epoch without an append when its segment ends, when its sequencer is gone or drained,
when a node leaves its nodeset or lost its copies, when an operator changes the nodeset, when too
few nodes take copies, when enough do again, and when nodes are back for a nodeset that has shrunk.
Without that, readers would wait until the next append for the last records that a dead sequencer
acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from loomlog.core.copyset.log_state import (
    awaited,
    can_be_recovered,
    is_recovered,
    lost_together,
    short_epochs,
    still_lossy,
    uncertain,
    vanished,
)
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member, index_of, node_of, shard_name
from loomlog.core.copyset.nodeset_choice import NodesetAim, has_shrunk
from loomlog.core.copyset.record import Epoch
from loomlog.types import NodeId, ShardId


class LogSituation(NamedTuple):
    """The state of a log besides its nodes."""

    state: LogState
    holders: Sequence[ShardId]  # may have records
    nodeset_wanted: int = 0  # 0: no size was asked for
    aim: NodesetAim = NodesetAim()
    begun: bool = True
    ends: bool = False  # its segment takes no more appends
    renewed: bool = False  # an operator wants the nodeset that it would have if it began now
    changed: bool = False  # an operator wants nodes in the nodeset, or not in it
    overdue: bool = False  # its sequencer was given enough time to recover it (replacements.py)


class LogNodes(Protocol):
    """The storage nodes and their shards, as one log sees them."""

    def alive(self, node: NodeId) -> bool: ...

    def has(self, shard: ShardId) -> bool:
        """Return whether its node is alive, with its volume."""

    def leaves(self, node: NodeId | None) -> bool:
        """Return whether it is drained, restarted, or no longer part of the cluster."""

    def is_given_up(self, shard: ShardId) -> bool:
        """Return whether it is away, and will never have again what it had."""

    def is_unfit(self, shard: ShardId) -> bool:
        """Return whether it has to leave its nodesets."""

    def lost_through(self, shard: ShardId) -> Epoch:
        """Return up to which epoch it may have lost copies; 0: none."""

    def life(self, node: NodeId) -> int:
        """Return its life, which changes when it crashes; 0: not known."""

    def takers(self, shards: Collection[ShardId]) -> Collection[ShardId]:
        """Return which of the shards take copies."""

    def next_short(self) -> Collection[ShardId]:
        """Return the short copyset that the next epoch would have, if any."""

    def next_sequencer(self) -> NodeId | None: ...

    def next_nodeset(self) -> Sequence[Member]: ...


def reason_for_epoch(log: LogSituation, nodes: LogNodes) -> str:
    """Return why the log needs another epoch; "" if it does not, or cannot have one now."""
    state = log.state
    if log.ends:
        return "" if state.closed and is_recovered(state) else "its segment ends"
    if not log.begun or (not state.sequencer and is_recovered(state)):
        return ""
    if reason := _what_is_wrong(log, nodes):
        there = [shard for shard in log.holders if nodes.has(shard)]
        given_up = [shard for shard in log.holders if nodes.is_given_up(shard)]
        return reason if can_be_recovered(state, there, given_up) else ""
    return ""


def _what_is_wrong(log: LogSituation, nodes: LogNodes) -> str:
    state = log.state
    if not state.sequencer:
        return "its last sequencer is unknown"  # after `loom metadata catch-up`
    if not nodes.alive(state.sequencer):
        return f"node {state.sequencer}, which sequenced it, is gone"
    if nodes.leaves(state.sequencer) and not nodes.leaves(nodes.next_sequencer()):
        return f"node {state.sequencer}, which sequences it, is drained or restarted"
    if log.overdue:
        return f"node {state.sequencer} does not recover it"
    if nodes.next_sequencer() == state.chosen != state.sequencer:
        return f"node {state.chosen} is to sequence it"
    nodeset = state.history[-1].nodeset
    unfit = [member.shard for member in nodeset if nodes.is_unfit(member.shard)]
    if unfit and nodes.next_nodeset() != nodeset:
        return f"node {shard_name(unfit[0])} leaves its nodeset"
    if shortage := change_of_copies(state, nodes):
        return shortage
    if lossy := lossy_shards(state, nodes):
        return f"node {shard_name(lossy[0])} lost its copies"  # it counts from the next epoch on
    if crashed := crashed_nodes(state, nodes):
        return f"node {crashed[0]} crashed"  # from the next epoch on it vouches for what it has
    if log.renewed and nodes.next_nodeset() != nodeset:
        return "its nodeset is renewed"
    if log.changed and _can_be_changed(nodeset, nodes):
        return "an operator changed its nodeset"
    if joining := _joining(log, nodes):
        return f"node {shard_name(joining[0])} joins its nodeset"
    return ""


def _can_be_changed(nodeset: Sequence[Member], nodes: LogNodes) -> bool:
    after = nodes.next_nodeset()
    joining = [member.shard for member in after if member not in nodeset]
    return after != nodeset and all(map(nodes.has, joining))


def change_of_copies(state: LogState, nodes: LogNodes) -> str:
    """Return why records would have another number of copies in the next epoch; "" if not."""
    newest = state.history[-1]
    takers = set(nodes.takers(newest.shards))
    if newest.can_replicate(takers):
        return "enough nodes take copies again" if newest.short else ""
    short = nodes.next_short()
    usable = [each for each in newest.short if takers.issuperset(each)]
    if len(short) <= max(map(len, usable), default=0):
        return ""
    return f"only {len(short)} of its nodes take copies"


def lossy_shards(state: LogState, nodes: LogNodes) -> list[ShardId]:
    """Return the shards that may have lost copies of the newest epoch."""
    shards = state.history[-1].shards
    return [shard for shard in shards if nodes.lost_through(shard) >= state.epoch]


def crashed_nodes(state: LogState, nodes: LogNodes) -> list[NodeId]:
    """Return the nodes that crashed since the newest epoch began, and are back."""
    lives = state.lives_in(state.epoch)
    return [node for node in lives if nodes.alive(node) and nodes.life(node) != lives[node]]


def _joining(log: LogSituation, nodes: LogNodes) -> list[ShardId]:
    """Return the shards that would make up for those that left; none while one of them is away."""
    nodeset = log.state.history[-1].nodeset
    if not has_shrunk(log.state, log.aim, log.nodeset_wanted):
        return []
    grown = nodes.next_nodeset()
    joining = [member.shard for member in grown if member not in nodeset]
    is_larger = len(grown) > len(nodeset)
    return joining if is_larger and all(map(nodes.has, joining)) else []


def condition(
    state: LogState,
    alive: Collection[ShardId],
    lost: Mapping[ShardId, Epoch],
    reason: str,
    trouble: str,
    refusing: Mapping[ShardId, str],
    failing: Mapping[ShardId, str],
    lossy: Collection[Epoch] = (),
) -> str:
    """Return a text about missing shards, epochs that are not recovered, losses and work under way;
    "" if all is well. `lost`: shards that lost copies, and up to which epoch; `refusing`: shards
    that take no copies, and why; `failing`: those of them that cannot take part in a recovery;
    `lossy`: the epochs of which something may be lost."""
    words = [] if state.closed else _missing(state, alive, refusing)
    if not is_recovered(state):
        words.append(unrecovered(state, alive, failing))
    words += filter(None, [short_of_copies(state)])
    words += losses(state, lost, lossy)
    if reason:
        words.append(f"gets a new epoch: {reason}")
    if trouble:
        words.append(trouble)
    return "; ".join(words)


def unrecovered(state: LogState, alive: Collection[ShardId], failing: Mapping[ShardId, str]) -> str:
    """Return which epochs are not recovered yet, and which nodes they wait for."""
    first, last = state.last_clean + 1, state.epoch - 1
    span = f"epoch {first} is" if first == last else f"epochs {first} to {last} are"
    return f"{span} not recovered yet{_waiting(state, alive, failing)}"


def unreadable(
    state: LogState,
    epochs: Collection[Epoch],
    alive: Collection[ShardId],
    lost: Mapping[ShardId, Epoch],
) -> str:
    """Return which nodes entries wait for that have all the copies that are left of them; "" if
    none has. `epochs`: those that have entries; `lost`: shards that lost copies, and up to which
    epoch."""
    needed: set[ShardId] = set()
    for epoch in epochs:
        metadata = state.metadata_of(epoch)
        emptied = {shard for shard in metadata.shards if lost.get(shard, 0) >= epoch}
        away = set(metadata.shards).difference(alive, emptied)
        if away and metadata.can_hold_a_copyset(away | emptied):
            needed |= away
    if not needed:
        return ""
    helps = _what_helps(sorted(needed), {}, alive)
    return f"entries may have all their copies on nodes that are away: {helps}"


def _missing(
    state: LogState, alive: Collection[ShardId], refusing: Mapping[ShardId, str]
) -> list[str]:
    shards = state.history[-1].shards
    there = set(shards).intersection(alive)
    full = [shard for shard in shards if shard in there and shard in refusing]
    words = [_refusal(shard, refusing[shard]) for shard in full]
    if len(there) < len(shards):
        what = "shards" if any(map(index_of, shards)) else "nodes"
        words.append(f"{len(there)} of {len(shards)} {what} of the nodeset are alive")
    words += filter(None, [why_appends_wait(state, alive, refusing)])
    return words


def why_appends_wait(
    state: LogState, alive: Collection[ShardId], refusing: Mapping[ShardId, str]
) -> str:
    """Return how many nodes appends wait for, and what helps; "" if they do not wait."""
    shards, least = state.history[-1].shards, state.least or state.history[-1].replication
    there = set(shards).intersection(alive)
    if len(set(map(node_of, there.difference(refusing)))) >= least:
        return ""
    if not there.intersection(refusing):
        away = sorted(set(shards).difference(there))
        return f"appends wait for {least} of them: {_what_helps(away, {}, there)}"
    return f"appends wait for {least} nodes that take copies"


def short_of_copies(state: LogState) -> str:
    """Return how many copies records have that may have fewer than wanted; "" if none has."""
    epochs = short_epochs(state)
    if not epochs:
        return ""
    fewest = min((state.metadata_of(epoch) for epoch in epochs), key=_copies)
    span = f"epoch {epochs[0]} has" if len(epochs) == 1 else f"{len(epochs)} epochs have"
    return f"{span} {copies_of(fewest)}"


def copies_of(metadata: EpochMetadata) -> str:
    return f"{_copies(metadata)} of {metadata.replication} copies"


def _copies(metadata: EpochMetadata) -> int:
    """Return how many copies a record has at least."""
    return min([metadata.replication, *map(len, metadata.short)])


def _refusal(shard: ShardId, why: str) -> str:
    return f"node {shard_name(shard)} takes no copies: {why}"


def losses(
    state: LogState, lost: Mapping[ShardId, Epoch], lossy: Collection[Epoch] = ()
) -> list[str]:
    """Return what may be lost for good."""
    words = []
    gone = vanished(state)
    if gone:
        which = ", ".join(map(str, gone))
        words.append(f"nothing is left of epoch {which}, and whether it had entries is not known")
    if epochs := [epoch for epoch in uncertain(state) if epoch not in gone]:
        which = ", ".join(map(str, epochs))
        words.append(f"how far epoch {which} was acknowledged is not known: its end is lost")
    if shards := lost_together(state, lost):
        which = ", ".join(f"node {shard_name(shard)}" for shard in shards)
        words.append(f"entries may be lost that only {which} had, which lost their disks")
    elif epochs := still_lossy(state, lossy):
        which = ", ".join(map(str, epochs))
        words.append(f"entries of epoch {which} may be lost: all nodes that had them lost them")
    return words


def why_not_closed(
    state: LogState, alive: Collection[ShardId], failing: Mapping[ShardId, str]
) -> str:
    """Return why the log could not be closed now; "" if it could. `failing`: shards that are there
    and cannot store anything, and why."""
    away = awaited(state, set(alive).difference(failing), state.epoch)
    if not away:
        return ""
    helps = _what_helps(away, failing, alive)
    return f"it cannot be closed, too few of its nodes are there: {helps}"


def _waiting(state: LogState, alive: Collection[ShardId], failing: Mapping[ShardId, str]) -> str:
    away = awaited(state, set(alive).difference(failing), state.epoch - 1)
    whose = "its" if state.last_clean + 2 == state.epoch else "their"
    helps = _what_helps(away, failing, alive)
    return f": too few of {whose} nodes are there: {helps}" if away else ""


def _what_helps(
    away: Collection[ShardId], failing: Mapping[ShardId, str], alive: Collection[ShardId]
) -> str:
    up = set(map(node_of, alive))
    silent = [shard for shard in away if shard not in failing]
    down = sorted(set(map(node_of, silent)).difference(up))
    bare = [shard_name(shard) for shard in silent if node_of(shard) in up]
    words = [f"start {', '.join(f'node {node}' for node in down)}"] if down else []
    words += [f"bring back the volume of shard {', '.join(bare)}"] if bare else []
    words += [_refusal(shard, failing[shard]) for shard in away if shard in failing]
    return "; ".join(words)
