"""What was given up of copyset logs leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loomlog.client.cluster import Cluster
from loomlog.client.copyset.carrying import CopysetCarrier
from loomlog.client.delivery import Delivery
from loomlog.client.log import Log
from loomlog.client.outgoing import Batch
from loomlog.client.targets import Stream
from loomlog.errors import Unavailable
from loomlog.testing import LocalCluster

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with LocalCluster(nodes=2, directory=tmp_path, sync="none") as cluster:
        yield cluster


async def test_a_batch_that_goes_elsewhere_before_it_is_carried_is_sent_once(
    cluster: Cluster,
) -> None:
    log = await cluster.create_log("events", protocol="copyset", replicas=2)
    await log.append(b"one")
    delivery, carrier = parts_of(log)
    dispatch = carrier.dispatch

    def dispatch_in_vain(batch: Batch, target: Stream) -> None:
        carrier.dispatch = dispatch  # type: ignore[method-assign]
        dispatch(batch, target)
        delivery.refused(batch, Unavailable("the stream is slow"))

    carrier.dispatch = dispatch_in_vain  # type: ignore[method-assign]
    second = await log.append(b"two")
    assert (await log.append(b"three")).position == second.position + 1
    values = [entry.value async for entry in log.subscribe(stop=await log.tail())]
    assert values == [b"one", b"two", b"three"]


def parts_of(log: Log) -> tuple[Delivery, CopysetCarrier]:
    delivery = log.appender._delivery
    carrier = delivery._carriers["copyset"]
    assert isinstance(carrier, CopysetCarrier)
    return delivery, carrier
