"""The facts about a stream and its nodes that the rules of repair test. Pure."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.types import NodeId, ReplicaState, Report


class Nodes(Protocol):
    """The storage nodes, as repair sees them."""

    def connected(self, node: NodeId) -> bool:
        """Return whether the node is registered now, and so has reported all its replicas."""

    def alive(self, node: NodeId) -> bool: ...

    def lost(self, node: NodeId) -> bool:
        """Return whether the node has been silent for so long that its replicas are replaced."""

    def spare(self, stream: StreamRounds) -> NodeId | None:
        """Return the best node for another replica of the stream, if there is one."""

    def moving(self) -> int:
        """Return how many streams have a newcomer that is being filled now."""

    def given_up(self, node: NodeId) -> bool:
        """Return whether the node is down, and an operator declared its data lost for good."""

    def has_unopened(self, node: NodeId) -> bool:
        """Return whether the node has data of the stream that it cannot serve."""

    def has_lost(self, stream: StreamRounds) -> bool:
        """Return whether committed entries are lost: no node has them, or could come back with
        them."""


class Situation:
    """The facts about one stream, derived on demand."""

    def __init__(self, stream: StreamRounds, nodes: Nodes) -> None:
        self.stream = stream
        self.nodes = nodes
        self.reports = stream.reports
        self.joining = stream.joining
        self.staying = tuple(node for node in stream.replicas if node != stream.leaving)
        self.wants_another = len(self.staying) < stream.wanted_replicas

    @cached_property
    def live_reports(self) -> dict[NodeId, Report]:
        """The newest reports of the replicas and the newcomer whose nodes are alive."""
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
        """The replica that an operator wants as primary, unless it is the primary."""
        wanted, replicas = self.stream.wanted_primary, self.stream.replicas
        return wanted if wanted in replicas and wanted != replicas[0] else None

    @property
    def replicas_with_next_primary(self) -> tuple[NodeId, ...]:
        assert self.next_primary is not None
        others = (node for node in self.stream.replicas if node != self.next_primary)
        return (self.next_primary, *others)

    @property
    def shortage(self) -> str:
        """The prefix of a condition that counts the replicas; "" if none is missing."""
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
        """The number of entries that the newcomer lacks. It must have reported."""
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
        """A replica that still runs, or is in a newer epoch than the metadata."""
        now = self.stream.epoch
        for node, report in self.live_reports.items():
            runs = report.epoch == now and report.state is ReplicaState.RUNNING
            if report.epoch > now or runs:
                return node
        return None

    @cached_property
    def unsealed(self) -> tuple[NodeId, ...]:
        """Replicas that need only the seal, and perhaps commits: they have stored all entries."""
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
        """Every replica is alive and has all committed entries."""
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
        """Nodes that came back without their replica, provided that it can be filled again."""
        if not self.whole and self.stream.committed_llsn_end != 1:
            return []
        return [node for node in self.missing if self.nodes.alive(node)]

    # ---- a sealed stream that has lost its end

    @cached_property
    def has_lost(self) -> bool:
        return not self.whole and self.nodes.has_lost(self.stream)

    @cached_property
    def fullest(self) -> NodeId | None:
        """The replica or newcomer with the most of what is left; None if nothing is lost, or
        nothing is left."""
        if not self.has_lost:
            return None
        ends = {
            node: report.uncommitted_llsn_offset
            for node, report in self.live_reports.items()
            if self._is_sound(node)
        }
        fullest = max(ends, key=ends.__getitem__, default=None)
        return fullest if fullest is not None and ends[fullest] > 1 else None

    @cached_property
    def lacks_rest(self) -> list[NodeId]:
        """Replicas that lack some of what is left, and have nothing that a copy of it would
        overwrite. Nodes that have lost their whole replica come first."""
        if self.fullest is None:
            return []
        end = self.live_reports[self.fullest].uncommitted_llsn_offset
        behind = [
            node
            for node in self.stream.replicas
            if node in self.live_reports
            and self._is_sound(node)
            and self.live_reports[node].uncommitted_llsn_offset < end
            and self.live_reports[node].written_end <= end
        ]
        return [*(node for node in self.missing if self.nodes.alive(node)), *behind]

    def _is_sound(self, node: NodeId) -> bool:
        report = self.live_reports[node]
        return report.epoch == self.stream.epoch and not report.damaged

    @property
    def given_up(self) -> list[NodeId]:
        """Replicas that an operator declared lost for good."""
        return [node for node in self.missing if self.nodes.given_up(node)]

    @cached_property
    def continues_with_rest(self) -> bool:
        """The stream continues with what is left, perhaps nothing: no node has or may still have
        all of it, and newcomers replace the replicas that never come back, leave or are missing."""
        stream, given_up = self.stream, self.given_up
        if stream.heard and not stream.has_entries:
            return len(given_up) == len(stream.replicas)
        return self.has_lost and (bool(given_up) or self.wants_another)

    @cached_property
    def newcomer_lacks_rest(self) -> bool:
        """The newcomer lacks some of what is left, and has nothing that a copy of it would
        overwrite."""
        if not self.continues_with_rest or self.fullest is None or not self._newcomer_is_sound:
            return False
        rest = self.live_reports[self.fullest].uncommitted_llsn_offset
        report = self.live_reports[self.newcomer]
        return report.uncommitted_llsn_offset < rest and report.written_end <= rest

    @property
    def newcomer_has_rest(self) -> bool:
        """The newcomer may become a replica with what is left: because the stream continues with
        that, or because the newcomer has the most."""
        if not self.has_lost or not self._newcomer_is_sound or self.newcomer_lacks_rest:
            return False
        return self.continues_with_rest or self.joining == self.fullest

    @property
    def newcomer_is_needless(self) -> bool:
        """Entries are lost, and the replicas have at least as much of the rest as the newcomer."""
        is_needed = self.continues_with_rest or self.newcomer_has_rest
        return self.has_lost and self._newcomer_is_sound and not is_needed

    @property
    def _newcomer_is_sound(self) -> bool:
        return self.joining in self.live_reports and self._is_sound(self.newcomer)

    # ---- a sealed stream with a newcomer

    @property
    def newcomer_is_ready(self) -> bool:
        """The newcomer is whole, or has all that is left of a stream that lost entries."""
        return self.joining in self.whole or self.newcomer_has_rest

    @property
    def newcomer_is_durable(self) -> bool:
        """The newcomer would be whole after a crash, too. Until then, only the replica that it
        replaces may remember the rounds that were copied."""
        report = self.live_reports[self.newcomer]
        return report.stored_high_watermark >= report.high_watermark

    @property
    def replicas_with_newcomer(self) -> tuple[NodeId, ...]:
        """The replicas after the swap. The newcomer comes last: an existing replica is the better
        primary. It replaces a replica that never comes back, else an unreachable one, else the
        leaving one."""
        away = self.given_up or ([] if self.has_lost else self.missing)
        leaving = next(iter(away), self.stream.leaving)
        return (*(node for node in self.stream.replicas if node != leaving), self.newcomer)

    @property
    def needs_spare(self) -> bool:
        if self.continues_with_rest:
            return True
        if self.missing:
            return any(map(self.nodes.lost, self.missing))
        return self.wants_another

    @property
    def nothing_is_left(self) -> bool:
        """The stream is being removed, and all its entries are trimmed, or a replica confirms that
        it never had any. (That no round names one is no proof: rounds may be lost.)"""
        stream = self.stream
        is_empty = not stream.has_entries and bool(self.whole)
        return stream.removing and (stream.is_trimmed or is_empty)

    @property
    def standing(self) -> str:
        """The reason why the stream stays sealed."""
        given_up = self.given_up
        if waiting := [node for node in self.missing if node not in given_up]:
            return f"sealed: waiting for node {_names(waiting)}"
        if given_up:
            return f"sealed: node {_names(given_up)} was given up"
        if self.has_lost:
            return self.nobody_is_whole
        if self.stream.removing:
            return "sealed: it is removed when all its entries are trimmed"
        if self.stream.closed:
            return "sealed: its segment of the log is not the active one"
        return "sealed by an operator"

    @property
    def nobody_is_whole(self) -> str:
        # A node that hangs may still be connected, and then has the replica it reported.
        emptied = [n for n in self.missing if self.nodes.connected(n) and n not in self.reports]
        away = [node for node in self.missing if node not in emptied]
        words = ["sealed: no live replica has every committed entry"]
        words += [f"node {_names(away)} is away"] if away else []
        unopened = [node for node in emptied if self.nodes.has_unopened(node)]
        emptied = [node for node in emptied if node not in unopened]
        words += [f"node {_names(emptied)} has no replica of it any more"] if emptied else []
        if unopened:
            words.append(
                f"the replica on node {_names(unopened)} cannot be used: `loom status` says what "
                "is wrong with it; put that right, or, to give its entries up, move its directory "
                "out of the volume and start the node again"
            )
        return "; ".join(words)


def _names(nodes: list[NodeId]) -> str:
    return ", ".join(map(str, nodes))
