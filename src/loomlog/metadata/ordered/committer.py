"""Runs commit rounds: takes reports, makes rounds durable, sends commits.

core.ordered.rounds is the pure part. This module schedules it: reports of one iteration of the loop
make one round per log; rounds of several logs become durable together; a round is sent to nodes
only when it is durable; each node gets one message per iteration. No coroutine is on this path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from loomlog import tracing
from loomlog.core.ordered.kept_rounds import needed, recall, whole
from loomlog.core.ordered.rounds import Hold, LogRounds, Round, StreamRounds
from loomlog.core.packed import HeldReplica, unpack_commits
from loomlog.errors import LoomError, NotFound, RolledBack, Unauthorized
from loomlog.metadata.nodes.connected_nodes import ConnectedNode, ConnectedNodes
from loomlog.metadata.ordered.held_replicas import HeldReplicas
from loomlog.metadata.ordered.records import StreamRecords
from loomlog.metadata.rounds import RoundLog
from loomlog.meters import Histogram
from loomlog.tracing import Finished
from loomlog.types import Glsn, LogId, NodeId, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import commit_to_wire, held_from_wire

if TYPE_CHECKING:
    from loomlog.metadata.ordered.packed_reports import PackedReports

logger = logging.getLogger(__name__)

BARE_DELAY_S: Final = 0.02  # bare high watermarks wait this long, to be sent together,
BARE_EACH_S: Final = 20e-6  # longer after many: several times as long as one takes
FORGET_EVERY: Final = 64  # rounds
HOLD_S: Final = (
    1.0  # far longer than a write: how long one stream may block the positions of others
)
LOOK_S: Final = 0.1  # between checks whether missing nodes are still expected


class _Ahead(NamedTuple):
    """A report that proves that rounds are lost."""

    node: NodeId
    report: Report


class Committer:
    """The rounds of all logs."""

    def __init__(
        self,
        round_log: RoundLog,
        records: StreamRecords,
        nodes: ConnectedNodes,
        changed: Callable[[StreamId], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._round_log = round_log
        self._epoch = round_log.epoch
        self._is_doubtful = round_log.is_doubtful  # and not all streams have reported yet
        self.records, self.catalog = records, records.catalog
        self.nodes = nodes
        self._changed = changed
        self._failed = failed
        self.logs: dict[LogId, LogRounds] = {}
        self.rounds = 0
        self.round_times = Histogram()
        self._log_of: dict[StreamId, LogRounds] = {}
        self.held = HeldReplicas(nodes, self.logs, self._log_of)
        self._packed: PackedReports | None = None  # from the first packed report on
        self._reads_packed: set[NodeId] = set()
        self._ahead: dict[
            LogId, _Ahead
        ] = {}  # stopped logs, with the report that is farthest ahead
        self._hearing: dict[LogId, list[asyncio.Future[None]]] = {}
        self._reported: dict[LogId, LogRounds] = {}  # may have a round
        self._durable: dict[LogId, LogRounds] = {}  # have commits to send
        self._bare: dict[LogId, LogRounds] = {}  # may have bare high watermarks to send
        self._turn_scheduled = False
        self._bare_timer: asyncio.TimerHandle | None = None
        self._bare_sent = 0  # the last time
        self._settling: dict[LogId, list[asyncio.Future[None]]] = {}
        self._records: list[bytes] = []  # what the round log holds, at most one file
        self._tracer = tracing.active()

    def start(self) -> None:
        """Continue where the rounds of the logs added so far ended."""
        self._records = list(self._round_log.read())
        for record in self._records:
            round_ = Round.decode(record)
            log = self.logs.get(round_.log_id)
            if log is not None:
                log.restore(round_)
        self._round_log.begin(self._snapshot)

    def stop(self) -> None:
        if self._bare_timer is not None:
            self._bare_timer.cancel()
        self.logs.clear()
        self._log_of.clear()
        self._ahead.clear()

    def _snapshot(self) -> Iterable[bytes]:
        records = [round_.encode() for log in self.logs.values() for round_ in needed(log)]
        self._records = list(records)
        return records

    # ---- logs

    def add(self, log: LogRounds) -> None:
        self.logs[log.log_id] = log
        for stream_id in log.streams:
            self._log_of[stream_id] = log
        self._streams_changed()

    def add_stream(self, log: LogRounds, stream: StreamRounds) -> None:
        """Add a stream to a known log."""
        log.put_stream(stream)
        self._log_of[stream.stream_id] = log
        self._streams_changed()

    def _streams_changed(self) -> None:
        if self._packed is not None:
            self._packed.streams_changed()

    def remove_stream(self, stream_id: StreamId) -> None:
        """Remove a stream that does not run."""
        log = self._log_of.pop(stream_id, None)
        if log is not None:
            log.remove_stream(stream_id)
            self._streams_changed()

    def remove(self, log_id: LogId) -> None:
        log = self.logs.pop(log_id, None)
        if log is None:
            return
        for stream_id in log.streams:
            self._log_of.pop(stream_id, None)
        self._streams_changed()
        for waiting in (self._reported, self._durable, self._bare):
            waiting.pop(log_id, None)
        self._settle(log_id)
        self._ahead.pop(log_id, None)
        self._heard(log_id)

    def _on_node(self, node: NodeId) -> Iterable[tuple[LogRounds, list[StreamId]]]:
        """Return the logs of which a node may have data, with their streams there."""
        found: dict[LogId, tuple[LogRounds, list[StreamId]]] = {}
        for record in self.records.held_by(node):
            if (log := self._log_of.get(record.stream_id)) is not None:
                found.setdefault(log.log_id, (log, []))[1].append(record.stream_id)
        return found.values()

    def log_of(self, stream_id: StreamId) -> LogRounds | None:
        return self._log_of.get(stream_id)

    def stream(self, stream_id: StreamId) -> StreamRounds | None:
        log = self._log_of.get(stream_id)
        return log.streams.get(stream_id) if log else None

    async def settled(self, log: LogRounds) -> None:
        """Wait until the current round, if any, is durable."""
        if log.under_way:
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._settling.setdefault(log.log_id, []).append(waiting)
            await waiting

    def _settle(self, log_id: LogId) -> None:
        for waiting in self._settling.pop(log_id, ()):
            if not waiting.done():
                waiting.set_result(None)

    # ---- reports

    def reconnected(self, node: NodeId, *, reads_packed: bool) -> None:
        for log, streams in self._on_node(node):
            log.reconnected(node, streams)
        self.held.joined(node)
        (self._reads_packed.add if reads_packed else self._reads_packed.discard)(node)

    def take_report(self, node: NodeId, message: pb.GetReportResponse | pb.Register) -> None:
        """Called with every report of a node; the first is part of its registration."""
        connected = self.nodes.get(node)
        if connected is None:
            return
        for each in message.uncommit_reports:
            self._take_one(node, connected, held_from_wire(each))
        if type(message) is pb.GetReportResponse and message.packed_reports:
            self._take_packed(node, connected, message.packed_reports)

    def _take_one(self, node: NodeId, connected: ConnectedNode, held: HeldReplica) -> None:
        report, stamp, _, stored_bytes = held
        stream_id, known = report.stream_id, self.held.of[node]
        if self._packed is not None and (log := self._log_of.get(stream_id)) is not None:
            log.leave_columns(stream_id)
        before = known.get(stream_id)
        connected.stored_bytes_total += stored_bytes - (before.stored_bytes if before else 0)
        known[stream_id] = held
        stream = self.records.streams.get(stream_id)
        if stream is not None and stream.stamp == stamp:
            self.report(node, report)

    def _take_packed(self, node: NodeId, connected: ConnectedNode, data: bytes) -> None:
        if self._packed is None:
            # Imported late: it needs NumPy, which takes memory, and few clusters have that many
            # streams.
            from loomlog.metadata.ordered.packed_reports import PackedReports

            self._packed = PackedReports(self.logs, self.held, self._take_one)
        for log in self._packed.take(node, connected, data):
            self._trust_rounds()
            self.look(log)
            self._heard(log.log_id)

    def _trust_rounds(self) -> None:
        """Trust the round log once all streams have reported."""
        if self._is_doubtful and not any(each.unheard for each in self.logs.values()):
            self._is_doubtful = False
            self._round_log.trust()

    def report(self, node: NodeId, report: Report) -> None:
        log = self._log_of.get(report.stream_id)
        if log is None:
            return
        if report.high_watermark > log.high_watermark:
            self._stop(node, report, log)
            return
        stream = log.streams[report.stream_id]
        before = stream.reports.get(node)
        log.report(node, report)
        if self._is_doubtful:
            self._trust_rounds()
        if (before is None or report.resend) and log.lost_commits(stream, node):
            self._recall(node, log, stream)
        if report.resend:
            self.tell(node, log, stream, empty=True)
        if _matters(before, report, stream):
            self._changed(report.stream_id)
        if report.uncommitted_llsn_offset + report.uncommitted_llsn_length > (
            stream.committed_llsn_end  # or no round can give it anything
        ):
            self.look(log)
        if self._hearing:
            self._heard(log.log_id)

    def _recall(self, node: NodeId, log: LogRounds, stream: StreamRounds) -> None:
        """Send a replica again the commits that it had stored and lost to damage."""
        rounds = map(Round.decode, self._records)
        of_log = (round_ for round_ in rounds if round_.log_id == log.log_id)
        recall(log, stream, node, of_log)
        if log.lost_commits(stream, node):
            logger.error("node %d lost commits of stream %d", node, stream.stream_id)
        self.tell(node, log, stream, empty=True)

    # ---- rounds that are lost

    def _stop(self, node: NodeId, report: Report, log: LogRounds) -> None:
        """Stop the log, because continuing could assign positions twice."""
        found = self._ahead.get(log.log_id)
        if found is None or report.high_watermark > found.report.high_watermark:
            self._ahead[log.log_id] = _Ahead(node, report)
        if found is None:
            logger.error("log %d stops: %s", log.log_id, self.lost_rounds(log.log_id))
            for stream_id in log.streams:
                self._changed(stream_id)
        self._heard(log.log_id)

    def lost_rounds(self, log_id: LogId) -> str:
        """Return evidence that rounds of the log are lost, and what to do; "" if none are."""
        ahead = self._ahead.get(log_id)
        if ahead is None:
            return ""
        return (
            f"rounds are lost: node {ahead.node} has commits of stream {ahead.report.stream_id} up "
            f"to position {ahead.report.high_watermark}, the round log ends at "
            f"{self.logs[log_id].high_watermark}; stop the vmr and restore the round log from a "
            "copy, or move it away and run `loom metadata rebuild`"
        )

    def check_whole(self, log_id: LogId, name: str) -> None:
        if reason := self.lost_rounds(log_id):
            raise RolledBack(f"log {name!r}: {reason}")

    def known_high_watermark(self, log: LogRounds) -> Glsn:
        """Return the last assigned position, as far as rounds and nodes know."""
        ahead = self._ahead.get(log.log_id)
        return ahead.report.high_watermark if ahead else log.high_watermark

    async def heard_all(self, log: LogRounds) -> None:
        """Wait until every expected replica has reported to this leader: only then it is certain
        that no rounds are lost."""
        while log.log_id not in self._ahead and any(map(self.nodes.expected, log.nodes)):
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._hearing.setdefault(log.log_id, []).append(waiting)
            await asyncio.wait({waiting}, timeout=LOOK_S)

    def _heard(self, log_id: LogId) -> None:
        for waiting in self._hearing.pop(log_id, ()):
            if not waiting.done():
                waiting.set_result(None)

    # ---- rounds

    def look(self, log: LogRounds) -> None:
        """Called when a change may allow a round."""
        self._reported[log.log_id] = log
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        durable, self._durable = self._durable, {}
        if durable:
            self._send_commits(durable.values())
        reported, self._reported = self._reported, {}
        for log in reported.values():
            self._begin_round(log)

    def hold(self, node: NodeId | None, stream_id: StreamId, epoch: int, expected: Glsn) -> None:
        """Assign positions only to this stream for a moment, if the tail is the expected one. The
        node must be its primary."""
        log = self._log_of.get(stream_id)
        if log is None:
            raise NotFound(f"there is no stream {stream_id}: refresh the metadata")
        if node != log.streams[stream_id].replicas[0]:
            raise Unauthorized(f"this node is not the primary of stream {stream_id}")
        if reason := self.lost_rounds(log.log_id):
            raise RolledBack(reason)
        hold = log.hold(stream_id, epoch, expected)
        self._loop.call_later(HOLD_S, self._release, log, hold)

    def _release(self, log: LogRounds, hold: Hold) -> None:
        log.release(hold)
        if self.logs.get(log.log_id) is log:
            self.look(log)

    def _begin_round(self, log: LogRounds) -> None:
        if log.log_id in self._ahead:
            return
        round_ = log.next_round()
        if round_ is None:
            return
        is_partial = self._round_log.record_format > 0
        record = round_.encode_partial() if is_partial else whole(log, round_).encode()
        try:
            done: Finished = partial(self._done, log, record, perf_counter())
            if self._tracer is not None:
                done = self._tracer.ending("commit round", {"log_id": log.log_id}, done)
            self._round_log.append(self._epoch, record, done)
        except LoomError as error:
            self._failed(error)

    def _done(
        self, log: LogRounds, record: bytes, begun_s: float, error: BaseException | None
    ) -> None:
        if error is not None:
            self._failed(error)
            return
        self.round_times.observe(perf_counter() - begun_s)
        self._records.append(record)
        if self.logs.get(log.log_id) is not log:  # deleted meanwhile
            return
        log.durable()
        self.rounds += 1
        if self.rounds % FORGET_EVERY == 0:
            self._forget_stored()
        self._settle(log.log_id)
        self._durable[log.log_id] = log
        self.look(log)

    def _forget_stored(self) -> None:
        for log in self.logs.values():
            log.forget_stored()

    # ---- commits

    def _send_commits(self, logs: Iterable[LogRounds]) -> None:
        results: dict[NodeId, list[pb.LogStreamCommitResult]] = {}
        packed: dict[NodeId, list[bytes]] = {}
        for log in logs:
            if log.columns is not None:
                _join(packed, log.new_packed_commits())
            for stream_id, commit, nodes in log.new_commits():
                result = commit_to_wire(stream_id, commit)
                for node in nodes:
                    results.setdefault(node, []).append(result)
            if len(log.streams) > 1:
                self._bare[log.log_id] = log
        for node in chain(results, packed.keys() - results.keys()) if packed else results:
            self._send(node, results.get(node, []), packed.get(node, ()))
        if self._bare and self._bare_timer is None:
            self._bare_timer = self._loop.call_later(
                max(BARE_DELAY_S, BARE_EACH_S * self._bare_sent), self._send_bare
            )

    def _send_bare(self) -> None:
        """Send all commits that nodes lack, bare high watermarks included."""
        self._bare_timer = None
        bare, self._bare = self._bare, {}
        results: dict[NodeId, list[pb.LogStreamCommitResult]] = {}
        packed: dict[NodeId, list[bytes]] = {}
        for log in bare.values():
            if log.columns is not None:
                _join(packed, log.columns.bare_commits(log.high_watermark))
            for stream in log.plain_streams.values():
                for node in filter(self.nodes.connected, stream.replicas):
                    commits = log.commits_of(stream, node, empty=True)
                    results.setdefault(node, []).extend(commit_to_wire(*c) for c in commits)
        for node in results.keys() | packed.keys():
            self._send(node, results.get(node, []), packed.get(node, ()))
        self._bare_sent = sum(map(len, results.values()))

    def tell(self, node: NodeId, log: LogRounds, stream: StreamRounds, *, empty: bool) -> None:
        """Send the node the commits of a stream that it lacks, now."""
        if self.nodes.connected(node):
            commits = log.commits_of(stream, node, empty=empty)
            self._send(node, [commit_to_wire(*commit) for commit in commits])

    def catch_up(self, node: NodeId) -> None:
        """Send the node all commits that it lacks, now."""
        results = []
        for log, among in self._on_node(node):
            commits = log.commits_for(node, empty=True, among=among)
            results += [commit_to_wire(*c) for c in commits]
        self._send(node, results)

    def _send(
        self, node: NodeId, results: list[pb.LogStreamCommitResult], packed: Iterable[bytes] = ()
    ) -> None:
        rows = b"".join(packed)
        if rows and node not in self._reads_packed:
            results = [*results, *(commit_to_wire(*each) for each in unpack_commits(rows))]
            rows = b""
        if results or rows:
            frame = pb.Frame()
            request = frame.commit  # in place, because a frame copies its arguments
            request.storage_node_id = node
            request.commit_results.extend(results)
            if rows:
                request.packed_commits = rows
            self.nodes.send(node, frame)


def _join(packed: dict[NodeId, list[bytes]], more: Mapping[NodeId, bytes]) -> None:
    for node, rows in more.items():
        packed.setdefault(node, []).append(rows)


def _matters(before: Report | None, report: Report, stream: StreamRounds) -> bool:
    """Return whether a report may require a repair."""
    if before is None or before.state is not report.state or before.epoch != report.epoch:
        return True
    if before.damaged != report.damaged:
        return True
    if not stream.sealed:
        return False
    stored, high_watermark = report.stored_high_watermark, report.high_watermark
    if before.stored_high_watermark < high_watermark <= stored:  # all its entries are durable
        return True
    caught_up = report.uncommitted_llsn_offset == stream.committed_llsn_end
    return caught_up and (
        before.uncommitted_llsn_offset != report.uncommitted_llsn_offset
        or before.stored_high_watermark != stored
    )
