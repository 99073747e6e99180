"""Appends to copyset logs that were given up leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loomlog.client.append.delivery import Delivery
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.client.loglets.copyset.carrier import CopysetAttempt, CopysetCarrier
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
    run = carrier.run

    def run_in_vain(attempt: CopysetAttempt) -> asyncio.Task[None]:
        carrier.run = run  # type: ignore[method-assign]
        asyncio.get_running_loop().call_soon(refuse, attempt)  # before its task begins
        return run(attempt)

    def refuse(attempt: CopysetAttempt) -> None:
        delivery.refused(attempt, Unavailable("the stream is slow"))

    carrier.run = run_in_vain  # type: ignore[method-assign]
    second = await log.append(b"two")
    assert (await log.append(b"three")).position == second.position + 1
    values = [entry.value async for entry in log.subscribe(stop=await log.tail())]
    assert values == [b"one", b"two", b"three"]


def parts_of(log: Log) -> tuple[Delivery, CopysetCarrier]:
    delivery = log._parts.appender._delivery
    carrier = delivery._carriers["copyset"]
    assert isinstance(carrier, CopysetCarrier)
    return delivery, carrier
