"""Between the messages on the wire and the words of the core."""

from __future__ import annotations

from loomlog.types import CommitContext, ReplicaState, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb

STATE_TO_WIRE = {
    ReplicaState.SEALING: pb.SEALING,
    ReplicaState.SEALED: pb.STREAM_SEALED,
    ReplicaState.RUNNING: pb.RUNNING,
}
# What a newer node might call its state is none that we may append in.
_STATE_FROM_WIRE = {wire: state for state, wire in STATE_TO_WIRE.items()}


def state_from_wire(state: pb.StreamState) -> ReplicaState:
    return _STATE_FROM_WIRE.get(state, ReplicaState.SEALING)


def report_to_wire(report: Report, stored_bytes: int) -> pb.LogStreamUncommitReport:
    return pb.LogStreamUncommitReport(
        log_stream_id=report.stream_id,
        uncommitted_llsn_offset=report.uncommitted_llsn_offset,
        uncommitted_llsn_length=report.uncommitted_llsn_length,
        high_watermark=report.high_watermark,
        seal_epoch=report.epoch,
        state=STATE_TO_WIRE[report.state],
        stored_high_watermark=report.stored_high_watermark,
        resend=report.resend,
        stored_bytes=stored_bytes,
        damaged=report.damaged,
    )


def report_from_wire(report: pb.LogStreamUncommitReport) -> Report:
    return Report(
        report.log_stream_id,
        report.uncommitted_llsn_offset,
        report.uncommitted_llsn_length,
        report.high_watermark,
        report.seal_epoch,
        state_from_wire(report.state),
        report.stored_high_watermark,
        report.resend,
        report.damaged,
    )


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
    return CommitContext(
        result.high_watermark,
        result.prev_high_watermark,
        result.committed_glsn_offset,
        result.committed_llsn_offset,
        result.committed_glsn_length,
        result.seal_epoch,
    )
