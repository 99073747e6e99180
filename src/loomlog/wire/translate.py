"""Converts between wire messages and the types of core/.

Numbers beyond what a stream can have are refused here: they would not fit on disk, and no later
number could be higher.
"""

from __future__ import annotations

from typing import Final

from loomlog.errors import Corrupt
from loomlog.types import CommitContext, ReplicaState, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb

_NUMBER_MAX: Final = (1 << 63) - 1

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
    report: Report, stored_bytes: int, stamp: int, birth: int
) -> pb.LogStreamUncommitReport:
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
        stamp=stamp,
        birth=birth,
    )


def report_from_wire(report: pb.LogStreamUncommitReport) -> Report:
    llsn, length = report.uncommitted_llsn_offset, report.uncommitted_llsn_length
    high, epoch, stored = report.high_watermark, report.seal_epoch, report.stored_high_watermark
    if llsn + length | high | epoch | stored > _NUMBER_MAX:
        raise _impossible(report.log_stream_id)
    return Report(
        report.log_stream_id,
        llsn,
        length,
        high,
        epoch,
        state_from_wire(report.state),
        stored,
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
    glsn, llsn = result.committed_glsn_offset, result.committed_llsn_offset
    length, high, epoch = result.committed_glsn_length, result.high_watermark, result.seal_epoch
    if glsn + length | llsn + length | high | epoch > _NUMBER_MAX:
        raise _impossible(result.log_stream_id)
    return CommitContext(high, result.prev_high_watermark, glsn, llsn, length, epoch)


def _impossible(stream_id: StreamId) -> Corrupt:
    return Corrupt(f"stream {stream_id}: a message has numbers that no stream can have")
