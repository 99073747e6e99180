"""Describe the conditions of the chains of a loglet. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loomlog.core.chained.chain import Chain, Replica
from loomlog.core.chained.upkeep import (
    Action,
    ChainsStanding,
    Join,
    NewEpoch,
    Nodes,
    Wait,
    describe_losses,
    unreadable,
    why_appends_wait,
)
from loomlog.core.conditions import Condition, Kind, Shortage, under_replicated
from loomlog.types import Glsn


@dataclass(frozen=True, slots=True)
class ChainsView:
    """The chains of a loglet, and what their upkeep does."""

    log: str
    standing: ChainsStanding
    nodes: Nodes
    unverified: Collection[Replica]  # not checked yet since their nodes came back
    positions: int | None  # how many are not trimmed; None: not known
    sizes: Sequence[int | None]  # approximate bytes of each chain; None: not known
    trimmed: Glsn
    takes_appends: bool
    action: Action
    filled: Mapping[Replica, int]  # newcomers, and the percentage that they have copied
    trouble: str
    full: str = ""  # why chains whose nodes have no room take no appends
    not_compared: str = ""  # why unheard replicas were not compared yet

    def counting(self, chain: Chain) -> list[Replica]:
        """Return the reachable replicas of a chain that have all its blocks."""
        whole = self.standing.whole(chain[0].chain)
        there = (replica for replica in whole if replica not in self.unverified)
        return [replica for replica in there if self.nodes.reachable(replica.node_id)]


def conditions(view: ChainsView) -> list[Condition]:
    shortages = list(_shortages(view))
    return [
        *under_replicated(view.log, shortages),
        *_waits(view),
        *_losses(view),
        *_comparisons(view),
        *_work(view),
    ]


def _shortages(view: ChainsView) -> Iterator[Shortage]:
    wanted, chains = view.standing.replicas_wanted, view.standing.projection.chains
    records = None if view.positions is None else -(-view.positions // len(chains))
    for index, chain in enumerate(chains):
        counting = view.counting(chain)
        absent = [f"node {r.node_id} is away or not whole" for r in chain if r not in counting]
        if len(chain) < wanted:
            absent.append(f"chain {index} has {len(chain)} of {wanted} replicas")
        if len(counting) < wanted:
            helps = "" if len(chain) >= wanted else f"have {wanted} nodes running: `loom node list`"
            size = 0 if records == 0 else view.sizes[index]
            yield Shortage(records, size, absent, helps)


def _waits(view: ChainsView) -> Iterator[Condition]:
    record, stream = view.standing.record, view.standing.record.stream_id
    waiting = why_appends_wait(record, view.nodes) or view.full
    reason = _reason(view.action)
    if waiting or not view.takes_appends:
        text = waiting or reason or "begins a new epoch"
        yield Condition(Kind.APPENDS_WAIT, text, log=view.log, stream=stream)
    unread = unreadable(view.standing, view.nodes)
    if view.positions != 0 and unread:
        text = f"nobody that is there has all of chain {', '.join(map(str, unread))}"
        yield Condition(Kind.READS_WAIT, text, reason, log=view.log, stream=stream)


def _losses(view: ChainsView) -> Iterator[Condition]:
    record = view.standing.record
    there = {r.node_id for r in record.witnesses if view.nodes.reachable(r.node_id)}
    names = " and ".join(f"node {node}" for node in sorted(there))
    helps = f"{names} may have some of it in an old replica, which is not read" if there else ""
    for text in describe_losses(record.projection, view.trimmed):
        yield Condition(Kind.DATA_LOST, text, helps, log=view.log, stream=record.stream_id)


def _comparisons(view: ChainsView) -> Iterator[Condition]:
    record = view.standing.record
    unheard = {each.replica for each in record.unheard}
    given_up = {r for r in view.standing.lost if not view.nodes.reachable(r.node_id)}
    for node in sorted({replica.node_id for replica in unheard - given_up}):
        text = f"node {node} may have entries that the others forgot when they crashed"
        helps = view.not_compared or "it is compared with them"
        if not view.nodes.reachable(node):
            helps = f"start it; or, if its data is lost, run `loom node mark-unrecoverable {node}`"
        yield Condition(Kind.NOT_RECOVERED, text, helps, log=view.log, stream=record.stream_id)


def _work(view: ChainsView) -> Iterator[Condition]:
    words = [
        f"node {replica.node_id} is being filled, {percent} % copied"
        for replica, percent in view.filled.items()
    ]
    if isinstance(view.action, Join):
        words.append(_reason(view.action))
    if isinstance(view.action, NewEpoch) and view.takes_appends:
        words.append(_reason(view.action))
    if view.trouble:
        words.append(view.trouble)
    stream = view.standing.record.stream_id
    if words:
        yield Condition(Kind.REPAIR, "; ".join(words), log=view.log, stream=stream)


def _reason(action: Action) -> str:
    match action:
        case NewEpoch(reason):
            return f"begins a new epoch: {reason}"
        case Join(chain, node):
            return f"node {node} joins chain {chain}"
        case Wait(reason):
            return reason
