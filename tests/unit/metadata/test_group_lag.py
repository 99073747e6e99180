"""The lag of consumer groups in the metrics."""

from __future__ import annotations

from loomlog.core.groups.state import GroupState
from loomlog.metadata.groups import GroupStates
from loomlog.metadata.metrics import cluster_metrics
from loomlog.metrics import text
from loomlog.wire import loomlog_pb2 as pb


def test_the_lag_of_every_shard_is_a_metric() -> None:
    groups = GroupStates()
    state = GroupState.create(7, 2, 0).join("0.1", "ann").commit("0.1", {1: 30})
    groups.take('group/orders/a "quoted" one', state.encode())
    groups.take("group/orders/older", GroupState.create(6, 2, 0).encode())  # of a deleted log
    groups.take("group/orders/other", b"written by another program")
    groups.take("group/orders2/gone", state.encode())
    groups.take("group/orders2/gone", None)
    groups.take("checkpoint/orders/x", b"")
    assert not groups.of_log(7, "orders2")
    log = pb.Log(log_id=7, name="orders", tail=40, groups=groups.of_log(7, "orders"))
    log.segments.add()
    lines = text(cluster_metrics(pb.Status(logs=[log]))).splitlines()
    labels = r'group="a \"quoted\" one",log="orders"'
    assert [line for line in lines if line.startswith("loomlog_group")] == [
        f'loomlog_group_lag{{{labels},shard="0"}} 40.0',
        f'loomlog_group_lag{{{labels},shard="1"}} 10.0',
        f"loomlog_group_members{{{labels}}} 1.0",
    ]
