"""Ordered appends without waiting: through seals, switches and failures."""

from __future__ import annotations

import asyncio

import pytest

import loomlog
from loomlog import errors
from loomlog.testing import LocalCluster

COUNT = 3000


async def test_the_order_of_calls_is_kept_through_seals_and_switches() -> None:
    async with LocalCluster(nodes=2) as cluster:
        log = await cluster.create_log("events", streams=2, replicas=1)
        futures: list[asyncio.Future[loomlog.Position]] = []

        async def disturb() -> None:
            await cluster.seal_stream(1)
            await cluster.switch_log("events", protocol="chained")
            await cluster.switch_log("events", protocol="copyset")

        disturbance = asyncio.create_task(disturb())
        async with log.pipeline() as pipeline:
            number = 0
            while number < COUNT or not disturbance.done():
                futures.append(pipeline.append(b"%d" % number, b"key" if number % 3 else None))
                number += 1
                if number % 20 == 0:
                    await asyncio.sleep(0.001)
        await disturbance
        positions = [future.result().position for future in futures]
        assert positions == sorted(set(positions))
        found = [entry.value async for entry in log.subscribe(stop=positions[-1])]
        assert found == [b"%d" % n for n in range(number)], "in order, each once"


async def test_nothing_is_appended_behind_a_failure() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        pipeline = log.pipeline(stream=77, timeout_s=0.3)  # there is no such stream
        first = pipeline.append(b"a")
        with pytest.raises(errors.LoomError):
            await pipeline.flush()
        assert first.exception() is not None
        with pytest.raises(errors.Unavailable, match="an earlier entry of this pipeline"):
            await pipeline.append(b"b")
        with pytest.raises(errors.InvalidArgument, match="value must be bytes"):
            await log.pipeline().append("text")  # type: ignore[arg-type]
        assert await log.tail() == 0


async def test_without_an_event_loop() -> None:
    def story(address: str) -> None:
        with loomlog.connect_sync(address) as cluster:
            log = cluster.log("events")
            with log.pipeline() as pipeline:
                futures = [pipeline.append(b"%d" % n) for n in range(50)]
            assert [future.result().position for future in futures] == list(range(1, 51))
            assert [entry.value for entry in log.subscribe(stop=50)] == [
                b"%d" % n for n in range(50)
            ]

    local = LocalCluster(nodes=1)
    async with local as cluster:
        await cluster.create_log("events", replicas=1)
        await asyncio.to_thread(story, local.address)
