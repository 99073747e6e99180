"""Converts between wire messages and the types of core/.

Numbers above the limits of a stream are refused here: they would not fit on disk, and no later
number could be higher.
"""

from __future__ import annotations

from collections.abc import Iterator

from loomlog.core.packed import HeldReplica, pack_report, unpack_commits
from loomlog.errors import Corrupt
from loomlog.limits import POSITION_MAX
from loomlog.types import CommitContext, Precondition, ReplicaState, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb

STATE_TO_WIRE = {
    ReplicaState.SEALING: pb.SEALING,
    ReplicaState.SEALED: pb.STREAM_SEALED,
    ReplicaState.RUNNING: pb.RUNNING,
}
# An unknown state, from a newer node, never counts as running.
_STATE_FROM_WIRE = {wire: state for state, wire in STATE_TO_WIRE.items()}


def state_from_wire(state: pb.StreamState) -> ReplicaState:
    return _STATE_FROM_WIRE.get(state, ReplicaState.SEALING)


def report_to_wire(
    report: Report,
    stored_bytes: int,
    stamp: int,
    birth: int,
    into: pb.LogStreamUncommitReport | None = None,
) -> pb.LogStreamUncommitReport:
    """Return the message, which is `into` if that is given."""
    message = pb.LogStreamUncommitReport() if into is None else into
    message.log_stream_id = report.stream_id
    message.uncommitted_llsn_offset = report.uncommitted_llsn_offset
    message.uncommitted_llsn_length = report.uncommitted_llsn_length
    message.high_watermark = report.high_watermark
    message.seal_epoch = report.epoch
    message.state = STATE_TO_WIRE[report.state]
    message.stored_high_watermark = report.stored_high_watermark
    message.resend = report.resend
    message.stored_bytes = stored_bytes
    message.damaged = report.damaged
    message.stamp = stamp
    message.birth = birth
    if report.precondition is not None:
        llsn, end, expected = report.precondition
        message.precondition_llsn, message.precondition_length = llsn, end - llsn
        message.expected_tail = expected
    return message


def report_from_wire(report: pb.LogStreamUncommitReport) -> Report:
    llsn, length = report.uncommitted_llsn_offset, report.uncommitted_llsn_length
    high, epoch, stored = report.high_watermark, report.seal_epoch, report.stored_high_watermark
    if llsn + length | high | epoch | stored > POSITION_MAX:
        raise _impossible(report.log_stream_id)
    precondition = None
    if first := report.precondition_llsn:
        precondition = Precondition(first, first + report.precondition_length, report.expected_tail)
    return Report(
        report.log_stream_id,
        llsn,
        length,
        high,
        epoch,
        _STATE_FROM_WIRE.get(report.state, ReplicaState.SEALING),
        stored,
        report.resend,
        report.damaged,
        precondition,
    )


def held_from_wire(message: pb.LogStreamUncommitReport) -> HeldReplica:
    report = report_from_wire(message)
    return HeldReplica(report, message.stamp, message.birth, message.stored_bytes)


def pack_reports(message: pb.GetReportResponse) -> None:
    """Pack the reports of a message, except for those with a precondition."""
    plain = []
    rows = [message.packed_reports]
    for report in message.uncommit_reports:
        if report.precondition_llsn:
            plain.append(report)
        else:
            rows.append(pack_report(held_from_wire(report)))
    message.packed_reports = b"".join(rows)
    del message.uncommit_reports[:]
    message.uncommit_reports.extend(plain)


def commit_to_wire(stream_id: StreamId, commit: CommitContext) -> pb.LogStreamCommitResult:
    return pb.LogStreamCommitResult(
        log_stream_id=stream_id,
        committed_glsn_offset=commit.glsn,
        committed_glsn_length=commit.length,
        high_watermark=commit.high_watermark,
        prev_high_watermark=commit.prev_high_watermark,
        committed_llsn_offset=commit.llsn,
        seal_epoch=commit.epoch,
    )


def commit_from_wire(result: pb.LogStreamCommitResult) -> CommitContext:
    glsn, llsn = result.committed_glsn_offset, result.committed_llsn_offset
    length, high, epoch = result.committed_glsn_length, result.high_watermark, result.seal_epoch
    if glsn + length | llsn + length | high | epoch > POSITION_MAX:
        raise _impossible(result.log_stream_id)
    return CommitContext(high, result.prev_high_watermark, glsn, llsn, length, epoch)


def commits_from_wire(request: pb.CommitRequest) -> Iterator[tuple[StreamId, CommitContext]]:
    """Yield the commits of a message, packed or not."""
    for result in request.commit_results:
        yield result.log_stream_id, commit_from_wire(result)
    if packed := request.packed_commits:
        yield from unpack_commits(packed)


def _impossible(stream_id: StreamId) -> Corrupt:
    return Corrupt(f"stream {stream_id}: a message has numbers that no stream can have")
