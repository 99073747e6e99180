"""Tests of what a bench of failover sees in the status of a log."""

from __future__ import annotations

from dataclasses import replace

from loomlog.cli.bench.failover import RepairWatch
from loomlog.cli.bench.steady_writer import RECORD_BYTES
from loomlog.wire.info import LogInfo, ReplicaInfo, SegmentInfo, StreamInfo

BEFORE = LogInfo(
    *(1, "bench", "ordered", 2, 1, 10),
    (StreamInfo(5, "running", 1, (ReplicaInfo(1, "a:1"), ReplicaInfo(2, "a:2")), 10, segment=3),),
    segments=(SegmentInfo(3, "ordered", 1, 2, 1, None),),
)


def log_with(**changes: object) -> LogInfo:
    return replace(BEFORE, streams=(replace(BEFORE.streams[0], **changes),))  # type: ignore[arg-type]


REPLACED = (ReplicaInfo(1, "a:1"), ReplicaInfo(3, "a:3"))


def test_a_copy_is_measured_from_when_it_is_seen_until_it_is_gone() -> None:
    watch = RepairWatch(2, BEFORE)
    assert not watch.repaired(BEFORE, 10.0)
    assert not watch.repaired(log_with(state="sealing"), 10.5)
    assert not watch.repaired(log_with(state="sealed", joining=3), 11.0)
    assert not watch.repaired(log_with(state="sealed", joining=3), 12.0)
    assert watch.repaired(log_with(epoch=2, replicas=REPLACED), 13.0)
    assert watch.sealed_at == 10.5
    (copy,) = watch.copies
    assert (copy.stream, copy.mb, copy.seconds) == (5, 10 * RECORD_BYTES / 1e6, 2.0)


def test_a_copy_between_two_looks_is_not_measured() -> None:
    watch = RepairWatch(2, BEFORE)
    assert watch.repaired(log_with(epoch=2, replicas=REPLACED), 10.0)
    assert (watch.copies, watch.sealed_at) == ([], 10.0)
