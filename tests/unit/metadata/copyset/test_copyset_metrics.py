"""Metrics of `copyset` logs."""

from __future__ import annotations

from loomlog.metadata.copyset.status import metrics
from loomlog.wire import loomlog_pb2 as pb


def test_the_progress_of_rebuilding_has_metrics_by_shard() -> None:
    lost = pb.RebuildStatus(shard="3/1", records=1500, size_bytes=3 << 20, part_done=0.25, left_s=9)
    new = pb.RebuildStatus(shard="4")  # nobody knows yet how long it takes
    found = {metric.name: metric.samples for metric in metrics(pb.Status(rebuilds=[lost, new]))}
    for name, value in {"records": 1500, "bytes": 3 << 20, "part_done": 0.25}.items():
        [sample, other] = found[f"rebuild_{name}"]
        assert (sample.value, sample.labels) == (value, {"shard": "3/1"})
        assert (other.value, other.labels) == (0, {"shard": "4"})
    assert found["rebuild_left_seconds"] == [(9, {"shard": "3/1"})]
