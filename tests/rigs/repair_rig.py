"""Streams to repair, and the nodes that they are on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from loomlog.core.ordered import repair
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.types import NodeId, ReplicaState, Report

SEALING, SEALED, RUNNING = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING
EPOCH = 3
END = 11  # ten entries are committed


@dataclass
class Fleet:
    """Nodes 1 to 5; all alive, none to spare."""

    dead: set[NodeId] = field(default_factory=set)
    lost_ones: set[NodeId] = field(default_factory=set)
    best: NodeId | None = None
    moves: int = 0
    registered: set[NodeId] = field(default_factory=set)
    losses: bool = False
    given_up_ones: set[NodeId] = field(default_factory=set)
    unopened: set[NodeId] = field(default_factory=set)

    def connected(self, node: NodeId) -> bool:
        return node in self.registered

    def moving(self) -> int:
        return self.moves

    def alive(self, node: NodeId) -> bool:
        return node not in self.dead

    def lost(self, node: NodeId) -> bool:
        return node in self.lost_ones

    def spare(self, stream: StreamRounds) -> NodeId | None:
        return self.best

    def given_up(self, node: NodeId) -> bool:
        return node in self.given_up_ones

    def has_unopened(self, node: NodeId) -> bool:
        return node in self.unopened

    def has_lost(self, stream: StreamRounds) -> bool:
        return self.losses


def says(
    state: ReplicaState, *, epoch: int = EPOCH, end: int = END, damaged: bool = False
) -> Report:
    return Report(1, end, 0, end - 1, epoch, state, end - 1, False, damaged)


def stream(*reports: Report | None, sealed: bool = True) -> StreamRounds:
    found = StreamRounds(1, (1, 2, 3), EPOCH, sealed, wanted_replicas=3, committed_llsn_end=END)
    found.sealed_at = 12 if sealed else 0
    for node, report in enumerate(reports, start=1):
        if report is not None:
            found.reports[node] = report
    return found


def decide(found: StreamRounds, cluster: Fleet | None = None) -> repair.Action:
    return repair.decide(found, cluster or Fleet())


HEALTHY = (says(RUNNING), says(RUNNING), says(RUNNING))
ALL_SEALED = (says(SEALED), says(SEALED), says(SEALED))


def changed(found: StreamRounds, **fields: object) -> StreamRounds:
    return replace(found, **fields)  # type: ignore[arg-type]


def with_newcomer(found: StreamRounds, report: Report | None) -> StreamRounds:
    reports = found.reports if report is None else {**found.reports, 4: report}
    return changed(found, joining=4, leaving=1, reports=reports)


def sealed(newcomer: Report | None = None, **fields: object) -> StreamRounds:
    return changed(with_newcomer(stream(*ALL_SEALED), newcomer), **fields)


def going(*reports: Report, **fields: object) -> StreamRounds:
    """A sealed stream that is being removed."""
    found = stream(*(reports or ALL_SEALED))
    return changed(found, removing=True, wanted_running=False, **fields)


MOST_SEALED = ALL_SEALED[1:]
