"""`find_time` and `is_empty` of a log."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import loomlog
from loomlog import Cluster, Log, errors
from loomlog.testing import LocalCluster

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def rows(times: list[datetime]) -> pa.RecordBatch:
    values = pa.array([str(time).encode() for time in times], pa.binary())
    stamps = pa.array(times, pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([values, stamps], names=["value", "timestamp"])


def minutes(*after_noon: float) -> list[datetime]:
    return [NOON + timedelta(minutes=minute) for minute in after_noon]


async def by_hand(log: Log, moment: datetime) -> int:
    """Return the position that `find_time` should find, by reading everything."""
    info = await log.describe()
    if info.head <= info.reached:
        async for entry in log.subscribe(info.head, info.reached):
            if entry.timestamp >= moment:
                return entry.position
    return info.reached + 1


@pytest.mark.parametrize("protocol", ["ordered", "chained"])
async def test_the_first_entry_of_a_time_or_later_also_within_a_batch(protocol: str) -> None:
    async with LocalCluster(nodes=2) as cluster:
        log = await cluster.create_log("events", protocol, streams=2, replicas=2)
        assert await log.find_time(NOON) == 1
        for start in range(0, 60, 6):
            await log.append_arrow(rows(minutes(*range(start, start + 6))))
        for minute in (-1, 0, 0.5, 5, 17, 58.5, 59):
            moment = NOON + timedelta(minutes=minute)
            assert await log.find_time(moment) == await by_hand(log, moment)
            assert await log.find_time(moment.timestamp()) == await by_hand(log, moment)
        assert await log.find_time(NOON + timedelta(hours=1)) == 61


async def test_timestamps_in_any_order_and_a_trimmed_head() -> None:
    rng = random.Random(3)
    async with LocalCluster(nodes=2) as cluster:
        log = await cluster.create_log("events", streams=3, replicas=2)
        for _ in range(40):
            times = [rng.uniform(0, 1000) for _ in range(rng.randint(1, 9))]
            await log.append_arrow(rows(minutes(*times)))
        for trimmed in (0, 37, 90):
            if trimmed:
                await log.trim(trimmed)
            for minute in (0, 500, 900, 990, 999.9):
                moment = NOON + timedelta(minutes=minute)
                assert await log.find_time(moment) == await by_hand(log, moment)


@pytest.mark.parametrize("protocols", [("ordered", "ordered"), ("chained", "ordered")])
async def test_over_a_switch(protocols: tuple[str, str]) -> None:
    async with LocalCluster(nodes=2) as cluster:
        log = await cluster.create_log("events", protocols[0], streams=2, replicas=2)
        await log.append_arrow(rows(minutes(*range(10))))
        await cluster.switch_log("events", protocol=protocols[1], streams=1)
        await log.append_arrow(rows(minutes(*range(10, 20))))
        for minute in (0, 9, 9.5, 10, 19, 20):
            moment = NOON + timedelta(minutes=minute)
            assert await log.find_time(moment) == await by_hand(log, moment)


async def test_published_rows_have_times_like_others() -> None:
    async with LocalCluster(nodes=2) as cluster:
        log = await cluster.create_log("events", replicas=2)
        writer = await log.writer("job")
        await log.append_arrow(rows(minutes(0, 1)))
        staged = await log.stage([rows(minutes(2, 3)), rows(minutes(4, 5))])
        await writer.publish(1, staged)
        await log.append_arrow(rows(minutes(6, 7)))
        for minute in range(9):
            moment = NOON + timedelta(minutes=minute)
            assert await log.find_time(moment) == await by_hand(log, moment)


async def test_a_replica_that_is_away_is_not_missed() -> None:
    servers = LocalCluster(nodes=3)
    async with servers as cluster:
        log = await cluster.create_log("events", replicas=3)
        await log.append_arrow(rows(minutes(0, 1, 2)))
        await servers.stop_node(2)
        assert await log.find_time(NOON + timedelta(minutes=1)) == 2


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), "noon", None, float("nan"), 1e300, True])
async def test_what_is_no_time_is_refused(moment: object) -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        with pytest.raises(errors.InvalidArgument):
            await log.find_time(moment)  # type: ignore[arg-type]


async def empty(cluster: Cluster) -> bool:
    return await cluster.log("events").is_empty()


async def test_empty_before_the_first_entry_and_after_the_last_was_trimmed() -> None:
    async with LocalCluster(nodes=1) as cluster:
        with pytest.raises(errors.NotFound):
            await empty(cluster)
        log = await cluster.create_log("events", replicas=1)
        assert await empty(cluster)
        await log.append_many([b"one", b"two"])
        assert not await empty(cluster)
        await log.trim(1)
        assert not await empty(cluster)
        await log.trim(2)
        assert await empty(cluster)
        assert await log.find_time(0.0) == 3


async def test_without_an_event_loop() -> None:
    servers = LocalCluster(nodes=1)

    def use(address: str) -> None:
        with loomlog.connect_sync(address) as cluster:
            log = cluster.create_log("events", replicas=1)
            assert log.is_empty()
            log.append_arrow(rows(minutes(0, 1)))
            assert log.find_time(NOON + timedelta(seconds=1)) == 2
            assert not log.is_empty()

    async with servers:
        await asyncio.to_thread(use, servers.address)
