"""Reports and commits of many streams, packed into fixed-size rows. Pure.

They carry the same as the messages for single streams, at far less cost. A storage node and a
metadata repository use them if both support them and there are many streams.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from loomlog.errors import Corrupt
from loomlog.limits import POSITION_MAX
from loomlog.types import CommitContext, ReplicaState, Report, StreamId

LEAST: Final = 64  # rows: fewer are sent one by one

# Stream, flags, first uncommitted LLSN, number of uncommitted entries, high watermark, epoch,
# stored high watermark, stored bytes, stamp, birth.
REPORT: Final = struct.Struct("<IIQQQQQQQQ")
# Stream, epoch, first GLSN, number of entries, high watermark, the one before, first LLSN.
COMMIT: Final = struct.Struct("<IIQQQQQ")

RUNNING: Final = 3  # the flags of a replica that runs, without further flags
_STATES: Final = {ReplicaState.SEALING: 1, ReplicaState.SEALED: 2, ReplicaState.RUNNING: RUNNING}
_STATE_OF: Final = {number: state for state, number in _STATES.items()}
_STATE_BITS, _DAMAGED, _RESEND = 3, 4, 8


class HeldReplica(NamedTuple):
    """A replica, according to the last report of its node."""

    report: Report
    stamp: int
    birth: int
    stored_bytes: int = 0


def pack_report(held: HeldReplica) -> bytes:
    """Return the row of a report. It must not have a precondition: rows have no room for one."""
    report, stamp, birth, stored_bytes = held
    assert report.precondition is None
    flags = _STATES[report.state] | _DAMAGED * report.damaged | _RESEND * report.resend
    return REPORT.pack(
        report.stream_id,
        flags,
        report.uncommitted_llsn_offset,
        report.uncommitted_llsn_length,
        report.high_watermark,
        report.epoch,
        report.stored_high_watermark,
        stored_bytes,
        stamp,
        birth,
    )


def unpack_reports(data: bytes | memoryview) -> Iterator[HeldReplica]:
    if len(data) % REPORT.size:
        raise Corrupt("packed reports have a wrong size")
    for (
        stream_id,
        flags,
        llsn,
        length,
        high,
        epoch,
        stored,
        size,
        stamp,
        birth,
    ) in REPORT.iter_unpack(data):
        if llsn + length | high | epoch | stored > POSITION_MAX:
            raise Corrupt(f"stream {stream_id}: a report has numbers that no stream can have")
        report = Report(
            stream_id,
            llsn,
            length,
            high,
            epoch,
            _STATE_OF.get(flags & _STATE_BITS, ReplicaState.SEALING),
            stored,
            bool(flags & _RESEND),
            bool(flags & _DAMAGED),
        )
        yield HeldReplica(report, stamp, birth, size)


def unpack_commits(data: bytes | memoryview) -> Iterator[tuple[StreamId, CommitContext]]:
    if len(data) % COMMIT.size:
        raise Corrupt("packed commits have a wrong size")
    for stream_id, epoch, glsn, length, high, before, llsn in COMMIT.iter_unpack(data):
        if glsn + length | llsn + length | high > POSITION_MAX:
            raise Corrupt(f"stream {stream_id}: a commit has numbers that no stream can have")
        yield stream_id, CommitContext(high, before, glsn, llsn, length, epoch)
