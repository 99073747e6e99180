"""The metrics of readers, and that they are absent while the metadata may be old."""

from __future__ import annotations

import json

import pytest
from faulty_store import FaultyStore

from loomlog.core.conditions import Kind
from loomlog.core.groups.state import GroupState
from loomlog.metadata.groups import GroupStates
from loomlog.metadata.leases import ClusterLeases
from loomlog.metadata.metrics import cluster_metrics, reader_metrics
from loomlog.metadata.registers import ClusterRegisters
from loomlog.metrics import text
from loomlog.wire import loomlog_pb2 as pb

READERS = ("loomlog_reader", "loomlog_group", "loomlog_queue")


@pytest.mark.parametrize("kind", [None, Kind.METADATA_ROLLED_BACK, Kind.METADATA_WAITS])
async def test_readers_have_metrics_unless_the_metadata_may_be_old(kind: Kind | None) -> None:
    store, groups = FaultyStore(), GroupStates()
    registers = ClusterRegisters(store, ClusterLeases(store))
    place = json.dumps({"log": 7, "position": 3}).encode()
    await registers.swap(pb.SwapRegister(name="checkpoint/orders/billing", value=place, token=1))
    groups.take("group/orders/shop", GroupState.create(7, 1, 0).join("0.1", "ann").encode())
    log = pb.Log(log_id=7, name="orders", tail=40, groups=groups.of_log(7, "orders"))
    log.segments.add()
    log.queues.add(name="jobs", members=1, position=5)
    status = pb.Status(logs=[log])
    if kind is not None:
        status.conditions.add(kind=kind)
    found = [*cluster_metrics(status), *await reader_metrics(registers, status)]
    lines = [line for line in text(found).splitlines() if line.startswith(READERS)]
    assert len(lines) == (0 if kind else 8), lines
