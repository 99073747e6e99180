"""Ordered appends without waiting: through seals, switches and failures."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

import loomlog
from loomlog import connect_sync, errors
from loomlog.client.append import pipeline as append_pipeline
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


async def test_bad_arguments_are_raised_at_once_and_nothing_is_appended_after_the_end() -> None:
    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        log = await cluster.create_log("log", replicas=1)
        with pytest.raises(errors.InvalidArgument, match="value must be bytes"):
            async with log.pipeline() as pipeline:
                pipeline.append("text")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match="has ended"):
            pipeline.append(b"late")
        async with log.pipeline() as pipeline:
            with pytest.raises(errors.InvalidArgument, match="headers must be a dict"):
                pipeline.append(b"x", headers={"a": 1})  # type: ignore[dict-item]
            with pytest.raises(errors.InvalidArgument, match="a time is"):
                pipeline.append(b"x", timestamp="now")  # type: ignore[arg-type]
            pipeline.append(b"good")
        await asyncio.to_thread(bad_arguments_without_asyncio, servers.address)
        assert [entry.value async for entry in log.subscribe(1, await log.tail())] == [b"good"]


def bad_arguments_without_asyncio(address: str) -> None:
    with connect_sync(address) as cluster:
        with (
            pytest.raises(errors.InvalidArgument, match="value must be bytes"),
            cluster.log("log").pipeline() as pipeline,
        ):
            pipeline.append("text")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match="has ended"):
            pipeline.append(b"late")


async def test_entries_of_a_pipeline_have_headers_and_timestamps() -> None:
    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        log = await cluster.create_log("log", replicas=1)
        async with log.pipeline() as pipeline:
            pipeline.append(b"plain")
            pipeline.append(b"both", key=b"k", headers={"trace": b"7f"}, timestamp=1.5)
        await asyncio.to_thread(append_headers, servers.address)
        plain, both, blocking = [entry async for entry in log.subscribe(1, 3)]
        assert (plain.key, plain.headers) == (None, {})
        assert plain.timestamp_us > 1_600_000_000_000_000
        assert (both.key, both.headers, both.timestamp_us) == (b"k", {"trace": b"7f"}, 1_500_000)
        assert (blocking.headers, blocking.timestamp_us) == ({"a": b"b"}, 2_000_000)


async def test_records_of_all_kinds_keep_their_order_in_many_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_pipeline, "_BATCH_BYTES", 400)
    monkeypatch.setattr(append_pipeline, "_BATCH_RECORDS", 6)
    random, expected = Random(1), []
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("log", replicas=1)
        async with log.pipeline() as pipeline:
            for number in range(300):
                value = b"%d " % number + bytes(random.choice([0, 0, 50, 1000]))
                key = random.choice([None, None, b"key"])
                headers = random.choice([None, None, {"number": b"%d" % number}])
                pipeline.append(value, key, headers=headers)
                expected.append((value, key, headers or {}))
                if random.random() < 0.02:
                    await asyncio.sleep(0)
        entries = [entry async for entry in log.subscribe(1, 300)]
    assert [(entry.value, entry.key, entry.headers) for entry in entries] == expected


def append_headers(address: str) -> None:
    with connect_sync(address) as cluster, cluster.log("log").pipeline() as pipeline:
        pipeline.append(b"blocking", headers={"a": b"b"}, timestamp=2)


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


async def test_a_pipeline_stays_behind_the_tail_that_it_expects() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        pipeline = log.pipeline(expected_tail=0)
        for value in (b"a", b"b"):
            pipeline.append(value)
            await pipeline.flush()
        other = await log.append(b"c")
        late = pipeline.append(b"d")
        with pytest.raises(errors.Conflict):
            await pipeline.flush()
        with pytest.raises(errors.Conflict):
            await late
        assert (await log.tail(), other.position) == (3, 3)
