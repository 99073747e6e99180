"""`loomlog.testing.LocalCluster`, which users run in their own tests."""

from __future__ import annotations

import logging

import pytest

from loomlog.testing import LocalCluster


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_a_cluster_that_closes_warns_of_nothing(
    caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    caplog.set_level(logging.WARNING)
    async with LocalCluster(nodes=3) as cluster:
        streams = 1 if protocol == "copyset" else 2
        log = await cluster.create_log("orders", protocol, streams=streams, replicas=3)
        await log.append_many([b"a", b"b"])
        caplog.clear()  # on a busy machine an append may take long
    assert caplog.records == []
