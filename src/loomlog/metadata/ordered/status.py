"""The status of the streams of `ordered` segments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from loomlog.core.conditions import Condition, Kind, Shortage, under_replicated
from loomlog.core.ordered.repair import Loss, Wait
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.ordered.shortage import is_readable, shortage
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.nodes.placement import ReplicaPlacement
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.losses import Losses
from loomlog.metadata.ordered.repair_loop import Reconciler
from loomlog.types import NodeId, ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import STATE_TO_WIRE


def lacks_space(stream: StreamRounds, nodes: ConnectedNodes) -> str:
    """Return why a running stream refuses appends for lack of space; "" if it does not."""
    if stream.sealed:
        return ""
    full = (each for node in stream.replicas for each in nodes.restrictions(node).full_streams)
    return next((each.reason for each in full if each.log_stream_id == stream.stream_id), "")


class StreamStatus:
    """Describes streams from the catalog, the commit rounds and the repair loop. Changes
    nothing."""

    def __init__(
        self, committer: Committer, reconciler: Reconciler, placement: ReplicaPlacement
    ) -> None:
        self._catalog, self._records = committer.catalog, committer.records
        self._nodes, self._held = committer.nodes, committer.held
        self._placement = placement
        self._committer = committer
        self._reconciler = reconciler
        self._losses = Losses(committer)

    def of_log(self, log: LogRecord) -> list[pb.LogStream]:
        advice = self._advice(log)
        streams = self._records.of_log(log.log_id)
        return [stream for s in streams if (stream := self._describe(log, s, advice))]

    def _advice(self, log: LogRecord) -> str:
        """Return the command that lets appends continue while no stream takes them and too few
        nodes can, or ""."""
        rounds = self._committer.logs.get(log.log_id)
        streams = rounds.streams.values() if rounds else ()
        if not all(stream.sealed or lacks_space(stream, self._nodes) for stream in streams):
            return ""
        usable = len(self._placement.usable_nodes())  # which takes time in a large cluster
        if not 0 < usable < log.replicas:
            return ""
        return f"appends continue after `loom log switch {log.name} --replicas {usable}`"

    def _describe(self, log: LogRecord, record: StreamRecord, advice: str) -> pb.LogStream | None:
        stream_id = record.stream_id
        stream = self._committer.stream(stream_id)
        if stream is None:  # it is just being deleted
            return None
        segment = log.segment_of(record.loglet)
        condition, lost = self._reconciler.condition(stream), self._losses.of(stream)
        if lost is not None:
            condition = self._describe_loss(stream, lost)
        elif space := lacks_space(stream, self._nodes):
            words = (f"takes no appends: {space}", advice, condition)
            condition = "; ".join(filter(None, words))
        if stream.sealed and stream.wanted_running:
            condition = self._sealed(stream, condition, advice)
        loss = self._losses.shown_to_readers(stream)
        return pb.LogStream(
            log_stream_id=stream_id,
            state=STATE_TO_WIRE[self.state(stream)],
            seal_epoch=stream.epoch,
            replicas=self._catalog.addressed(stream.replicas),
            entries=self._entries(stream),
            condition=condition,
            joining_node=stream.joining or 0,
            copied_entries=self._reconciler.copied_entries(stream),
            loglet_id=record.loglet,
            protocol=segment.settings.protocol if segment else log.protocol,
            held=not (stream.wanted_running or stream.closed or stream.removing),
            removing=stream.removing,
            lost_from=loss.first if loss else 0,
            lost_after=loss.after if loss else 0,
            rolled_back=self._has_lost_rounds(stream_id),
        )

    def replicas_of(self, stream_id: StreamId) -> list[pb.ReplicaDescription]:
        """Describe the replicas of a stream, and the newcomer."""
        stream = self._committer.stream(stream_id)
        if stream is None:
            return []
        roles = dict.fromkeys(stream.replicas, "backup") | {stream.replicas[0]: "primary"}
        if stream.joining is not None:
            roles[stream.joining] = "joins"
        if stream.leaving in roles:
            roles[stream.leaving] += ", leaves"
        return [self._replica(stream, node, role) for node, role in roles.items()]

    def _replica(self, stream: StreamRounds, node: NodeId, role: str) -> pb.ReplicaDescription:
        described = pb.ReplicaDescription(storage_node_id=node, role=role, state="unknown")
        if (report := stream.reports.get(node)) is not None:
            lacks = stream.committed_llsn_end - report.written_end
            described.state = "damaged" if report.damaged else str(report.state)
            described.epoch = report.epoch
            described.written = report.written_end - 1
            described.committed = report.uncommitted_llsn_offset - 1
            described.high_watermark = report.high_watermark
            described.lag = max(0, lacks)
        return described

    # ---- conditions

    def conditions(self, log: LogRecord) -> list[Condition]:
        """Return the conditions of the streams of a log."""
        if reason := self._committer.lost_rounds(log.log_id):
            return [Condition(Kind.ROUNDS_LOST, reason, log=log.name)]
        records = self._records.of_log(log.log_id)
        streams = [s for r in records if (s := self._committer.stream(r.stream_id)) is not None]
        unwell = [stream for stream in streams if not self._is_well(stream)]
        shortages = filter(None, map(self._shortage, unwell))
        found = [condition for stream in unwell for condition in self._conditions(log, stream)]
        return [
            *under_replicated(log.name, list(shortages)),
            *self._stopped(log, streams, unwell),
            *found,
        ]

    def _is_well(self, stream: StreamRounds) -> bool:
        """Return whether a stream runs undisturbed, so that it has no conditions. It stays in the
        columns of its log."""
        runs = stream.wanted_running and stream.heard and not (stream.sealed or stream.closed)
        moves = (stream.joining, stream.leaving, stream.wanted_primary) != (None, None, None)
        if not runs or moves or stream.removing or len(stream.replicas) != stream.wanted_replicas:
            return False
        if not all(map(self._is_unrestricted, stream.replicas)):
            return False
        if stream.columns is not None:
            return True
        reports = [stream.reports.get(node) for node in stream.replicas]
        return all(
            report is not None
            and report.state is ReplicaState.RUNNING
            and report.epoch == stream.epoch
            and not report.damaged
            and report.written_end >= stream.committed_llsn_end
            for report in reports
        )

    def _is_unrestricted(self, node: NodeId) -> bool:
        record = self._catalog.nodes.get(node)
        if record is None or record.draining or record.removing or record.is_given_up:
            return False
        return self._nodes.reachable(node) and not self._nodes.restrictions(node).ByteSize()

    def _shortage(self, stream: StreamRounds) -> Shortage | None:
        held = (self._held.get(node, stream.stream_id) for node in stream.replicas)
        stored_bytes = max((replica.stored_bytes for replica in held if replica), default=None)
        lost = self._losses.of(stream)
        end = stream.committed_llsn_end if lost is None else lost.first
        return shortage(stream, end, self._nodes.reachable, stored_bytes)

    def _stopped(
        self, log: LogRecord, streams: Sequence[StreamRounds], unwell: Sequence[StreamRounds]
    ) -> list[Condition]:
        """Return the streams that should take appends and do not."""
        in_use = [stream for stream in streams if stream.wanted_running]
        space = {s.stream_id: reason for s in unwell if (reason := lacks_space(s, self._nodes))}
        stopped = [s for s in unwell if s.wanted_running and (s.sealed or s.stream_id in space)]
        if not stopped:
            return []
        advice, runs = self._advice(log), len(stopped) < len(in_use)
        kind = Kind.STREAM_STOPPED if runs else Kind.APPENDS_WAIT
        return [
            Condition(kind, text, "" if runs else advice, log=log.name, stream=stream.stream_id)
            for stream in stopped
            if (text := space.get(stream.stream_id) or self._why_sealed(stream))
        ]

    def _conditions(self, log: LogRecord, stream: StreamRounds) -> list[Condition]:
        """Return the other conditions of a stream."""
        of = partial(Condition, log=log.name, stream=stream.stream_id)
        found, lost = [], self._losses.of(stream)
        if lost is not None and not stream.is_trimmed:
            found.append(of(Kind.DATA_LOST, self._describe_loss(stream, lost)))
        elif (
            (stream.has_entries or not stream.heard)
            and not stream.is_trimmed
            and not self._is_readable(stream)
        ):
            text = "no node that is there has all its entries"
            found.append(of(Kind.READS_WAIT, text, "start the nodes that are away"))
        if not (stream.wanted_running or stream.closed or stream.removing):
            helps = f"`loom stream unseal {stream.stream_id}`"
            found.append(of(Kind.STREAM_HELD, "was sealed by an operator", helps))
        is_idle = isinstance(self._reconciler.decide(stream), Wait) and not stream.wanted_running
        if not (is_idle or (stream.wanted_running and stream.sealed)):
            text = self._reconciler.condition(stream)
            found += [of(Kind.REPAIR, text)] if text else []
        return found

    def _is_readable(self, stream: StreamRounds) -> bool:
        return is_readable(stream, self._nodes.reachable)

    def _why_sealed(self, stream: StreamRounds) -> str:
        return self._sealed(stream, self._reconciler.condition(stream))

    def _sealed(self, stream: StreamRounds, *words: str) -> str:
        """Return why a stream that should run does not."""
        return "; ".join(filter(None, (*self._refusals(stream), *words)))

    def _refusals(self, stream: StreamRounds) -> list[str]:
        """Return which replicas wait for their disks, and why."""
        words = []
        for node in stream.replicas:
            report = stream.reports.get(node)
            complaints = self._nodes.complaints(node, stream.stream_id)
            is_damaged = report is not None and report.damaged
            if complaints and (is_damaged or self._nodes.takes_nothing(node)):
                words.append(f"node {node} takes nothing: {complaints}")
        return words

    def _describe_loss(self, stream: StreamRounds, lost: Loss) -> str:
        words = f"all that it had from LLSN {lost.first} on is lost"
        text = f"{words}, no replica has it any more: appends go to other streams"
        if nodes := self._losses.without_commits(stream):
            text += (
                f"; node {', '.join(map(str, nodes))} has entries of it, but lost their positions: "
                "`loom metadata rebuild` may find those, see docs/operations.md"
            )
        for node, end in self._losses.remains(self._records.streams[stream.stream_id], lost):
            text += (
                f"; node {node} has LLSN {lost.first} to {end - 1} of it in an old replica, which "
                "is not read: see docs/operations.md, Old replicas"
            )
        return text

    def state(self, stream: StreamRounds) -> ReplicaState:
        """Return SEALED once every replica that can be reached is."""
        if not stream.sealed:
            stopped = self._has_lost_rounds(stream.stream_id)
            return ReplicaState.SEALING if stopped else ReplicaState.RUNNING
        reached = [n for n in stream.replicas if self._nodes.reachable(n) and n in stream.reports]
        reports = [stream.reports[node] for node in reached]
        if reports and all(
            r.state is ReplicaState.SEALED and r.epoch == stream.epoch for r in reports
        ):
            return ReplicaState.SEALED
        return ReplicaState.SEALING

    def _entries(self, stream: StreamRounds) -> int | None:
        """Return the number of committed entries, as far as rounds and nodes know; None if unknown
        to both."""
        ends = [stream.committed_llsn_end]
        if self._has_lost_rounds(stream.stream_id):
            held = (self._held.get(node, stream.stream_id) for node in stream.replicas)
            ends += [replica.report.uncommitted_llsn_offset for replica in held if replica]
        elif not stream.heard:
            return None
        return max(ends) - 1

    def _has_lost_rounds(self, stream_id: StreamId) -> bool:
        log = self._committer.log_of(stream_id)
        return log is not None and bool(self._committer.lost_rounds(log.log_id))
