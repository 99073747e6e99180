"""Reports and commits keep their meaning on the wire; impossible numbers do not get in."""

from __future__ import annotations

import pytest

from loomlog.errors import Corrupt
from loomlog.types import CommitContext, ReplicaState, Report
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import (
    commit_from_wire,
    commit_to_wire,
    report_from_wire,
    report_to_wire,
)

REPORT = Report(7, 11, 5, 40, 3, ReplicaState.RUNNING, 38, True, False)
COMMIT = CommitContext(40, 35, 36, 11, 5, 3)
HUGE = [1 << 63, (1 << 64) - 1]


def test_reports_and_commits_come_back_as_they_were() -> None:
    assert report_from_wire(report_to_wire(REPORT, 0, 0, 0)) == REPORT
    assert commit_from_wire(commit_to_wire(7, COMMIT)) == COMMIT


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize(
    "field",
    [
        *("uncommitted_llsn_offset", "uncommitted_llsn_length", "high_watermark"),
        *("seal_epoch", "stored_high_watermark"),
    ],
)
def test_a_report_with_a_number_that_no_stream_has_is_refused(field: str, huge: int) -> None:
    message = report_to_wire(REPORT, 0, 0, 0)
    setattr(message, field, huge)
    with pytest.raises(Corrupt, match="stream 7"):
        report_from_wire(message)


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize(
    "field",
    [
        *("committed_glsn_offset", "committed_glsn_length", "high_watermark"),
        *("committed_llsn_offset", "seal_epoch"),
    ],
)
def test_a_commit_with_a_number_that_no_stream_has_is_refused(field: str, huge: int) -> None:
    message: pb.LogStreamCommitResult = commit_to_wire(7, COMMIT)
    setattr(message, field, huge)
    with pytest.raises(Corrupt, match="stream 7"):
        commit_from_wire(message)
