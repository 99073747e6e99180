"""A stream and its nodes, as the rules of repair see them. Pure."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.types import NodeId, ReplicaState, Report


class Nodes(Protocol):
    """The storage nodes, as repair sees them."""

    def connected(self, node: NodeId) -> bool:
        """Return whether it is registered now, and so has reported all its replicas."""

    def alive(self, node: NodeId) -> bool: ...

    def lost(self, node: NodeId) -> bool:
        """Return whether it was silent long enough that its replicas are replaced."""

    def spare(self, stream: StreamRounds) -> NodeId | None:
        """Return the best node for one more replica of the stream, if there is any."""

    def moving(self) -> int:
        """Return how many streams are being filled somewhere at the moment."""


class Situation:
    """A stream and its nodes, as the rules see them."""

    def __init__(self, stream: StreamRounds, nodes: Nodes) -> None:
        self.stream = stream
        self.nodes = nodes
        self.reports = stream.reports
        self.joining = stream.joining
        self.staying = tuple(node for node in stream.replicas if node != stream.leaving)
        self.wants_another = len(self.staying) < stream.wanted_replicas

    @cached_property
    def live_reports(self) -> dict[NodeId, Report]:
        """The newest reports of replicas, and of the newcomer, on nodes that are alive."""
        joining = [] if self.joining is None else [self.joining]
        reported = (node for node in (*self.stream.replicas, *joining) if node in self.reports)
        return {node: self.reports[node] for node in reported if self.nodes.alive(node)}

    @property
    def one_leaves_alone(self) -> bool:
        """A replica leaves, and no other is to take its place."""
        stream = self.stream
        return bool(self.staying) and self.staying != stream.replicas and not self.wants_another

    @property
    def next_primary(self) -> NodeId | None:
        """The replica that an operator wants to be the primary and is not."""
        wanted, replicas = self.stream.wanted_primary, self.stream.replicas
        return wanted if wanted in replicas and wanted != replicas[0] else None

    @property
    def replicas_with_next_primary(self) -> tuple[NodeId, ...]:
        assert self.next_primary is not None
        others = (node for node in self.stream.replicas if node != self.next_primary)
        return (self.next_primary, *others)

    @property
    def shortage(self) -> str:
        """The beginning of a condition that counts the replicas; "" if none is missing."""
        has, wanted = len(self.stream.replicas), self.stream.wanted_replicas
        return f"has {has} of {wanted} replicas; " if has < wanted else ""

    @cached_property
    def spare(self) -> NodeId | None:
        return self.nodes.spare(self.stream)

    # ---- the newcomer

    @property
    def newcomer(self) -> NodeId:
        assert self.joining is not None
        return self.joining

    @property
    def newcomer_lacks(self) -> int:
        """The number of entries that a newcomer still lacks, once it has reported."""
        report = self.reports[self.newcomer]
        return self.stream.committed_llsn_end - report.uncommitted_llsn_offset

    @property
    def newcomer_is_lost(self) -> bool:
        return self.joining is not None and self.nodes.lost(self.joining)

    @property
    def newcomer_is_away(self) -> bool:
        return self.joining is not None and not self.nodes.alive(self.joining)

    # ---- a running stream

    @cached_property
    def obstacle(self) -> str:
        """The reason why the stream must not keep running as it is; "" if it may."""
        stream, nodes = self.stream, self.nodes
        for node in stream.replicas:
            if nodes.connected(node) and node not in self.reports:
                return f"node {node} came back without its replica"
        if not stream.wanted_running:
            if stream.removing:
                return "it is being removed"
            return "its segment ends" if stream.closed else "an operator asked for it"
        for node in stream.replicas:
            if not nodes.alive(node):
                return f"node {node} is silent"
            report = self.reports.get(node)
            if report and (report.state, report.epoch) != (ReplicaState.RUNNING, stream.epoch):
                return f"node {node} is {report.state} in epoch {report.epoch}"
        return ""

    # ---- a sealed stream

    @cached_property
    def too_new(self) -> NodeId | None:
        """A replica that runs, or knows a newer epoch."""
        now = self.stream.epoch
        for node, report in self.live_reports.items():
            runs = report.epoch == now and report.state is ReplicaState.RUNNING
            if report.epoch > now or runs:
                return node
        return None

    @cached_property
    def unsealed(self) -> tuple[NodeId, ...]:
        """Replicas that lack only the seal, with the commits before it."""
        return tuple(node for node, report in self.live_reports.items() if self._needs_seal(report))

    def _needs_seal(self, report: Report) -> bool:
        if report.epoch < self.stream.epoch:
            return True
        stored_all = report.written_end >= self.stream.committed_llsn_end
        return report.state is not ReplicaState.SEALED and stored_all and not report.damaged

    @cached_property
    def whole(self) -> list[NodeId]:
        return [node for node, r in self.live_reports.items() if r.state is ReplicaState.SEALED]

    @property
    def complete(self) -> bool:
        """Every replica has everything."""
        return all(node in self.whole for node in self.stream.replicas)

    @property
    def sources(self) -> list[NodeId]:
        return [node for node in self.whole if not self.live_reports[node].damaged]

    @property
    def behind(self) -> list[NodeId]:
        return [node for node in self.live_reports if node not in self.whole]

    @property
    def missing(self) -> list[NodeId]:
        return [node for node in self.stream.replicas if node not in self.live_reports]

    @property
    def emptied(self) -> list[NodeId]:
        """Nodes that came back without their replica, if it can be filled again."""
        if not self.whole and self.stream.committed_llsn_end != 1:
            return []
        return [node for node in self.missing if self.nodes.alive(node)]

    @property
    def newcomer_is_whole(self) -> bool:
        return self.joining in self.whole

    @property
    def newcomer_is_durable(self) -> bool:
        """A crash would leave the newcomer whole. Before that the rounds that it was copied may be
        known only to the replica that makes room for it."""
        report = self.live_reports[self.newcomer]
        return report.stored_high_watermark >= report.high_watermark

    @property
    def replicas_with_newcomer(self) -> tuple[NodeId, ...]:
        """The newcomer comes last: an existing replica is the better primary. It takes the place of
        an unreachable replica before that of a leaving one."""
        leaving = self.missing[0] if self.missing else self.stream.leaving
        return (*(node for node in self.stream.replicas if node != leaving), self.newcomer)

    @property
    def needs_spare(self) -> bool:
        if self.missing:
            return any(map(self.nodes.lost, self.missing))
        return self.wants_another

    @property
    def nothing_is_left(self) -> bool:
        """The stream is being removed, and everything in it is trimmed, or a replica confirms that
        it never had an entry: rounds that are lost are no evidence."""
        stream = self.stream
        is_empty = not stream.has_entries and bool(self.whole)
        return stream.removing and (stream.is_trimmed or is_empty)

    @property
    def standing(self) -> str:
        """The reason why the stream stays sealed."""
        if self.missing:
            return f"sealed: waiting for node {_names(self.missing)}"
        if self.stream.removing:
            return "sealed: it is removed when all its entries are trimmed"
        if self.stream.closed:
            return "sealed: its segment of the log is not the active one"
        return "sealed by an operator"

    @property
    def nobody_is_whole(self) -> str:
        away = f"; node {_names(self.missing)} is away" if self.missing else ""
        return f"sealed: no live replica has every committed entry{away}"


def _names(nodes: list[NodeId]) -> str:
    return ", ".join(map(str, nodes))
