"""Headers and timestamps of entries, from every way of writing to every way of reading."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import loomlog
from loomlog import errors
from loomlog.columns import decode_headers, encode_headers
from loomlog.testing import LocalCluster

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
TRACE = {"trace": b"\x00\xff", "empty": b""}


async def test_they_come_back_as_they_went_in() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        ats = await asyncio.gather(
            log.append(b"plain"),
            log.append(b"traced", b"key", headers=TRACE),
            log.append(b"dated", timestamp=NOON),
            log.append(b"both", headers={"a": b"b"}, timestamp=NOON.timestamp()),
        )
        await log.append_many([b"x", b"y"], headers=[None, TRACE], timestamps=[NOON, NOON])
        table = pa.record_batch({"value": [b"z"], "headers": [encode_headers(TRACE)]})
        await log.append_arrow(table)
        writer = await log.writer("w")
        await writer.publish(1, await log.stage(table))

        by_value = {entry.value: entry async for entry in log.subscribe(stop=6)}
        assert by_value[b"plain"].headers == {}
        assert by_value[b"traced"].headers == TRACE
        assert by_value[b"traced"].key == b"key"
        assert by_value[b"dated"].timestamp == by_value[b"both"].timestamp == NOON
        assert by_value[b"plain"].timestamp.year != 1970
        assert [by_value[value].headers for value in (b"x", b"y")] == [{}, TRACE]
        assert by_value[b"x"].timestamp == NOON
        assert (await log.read(ats[1].position)).headers == TRACE
        published = [entry async for entry in log.subscribe(7, 8)]
        assert [(entry.value, entry.headers) for entry in published] == [(b"z", TRACE)] * 2

        columns = [
            data
            async for batch in log.subscribe_arrow(stop=8)
            for data in batch.column("headers").to_pylist()
        ]
        assert [decode_headers(data) for data in columns if data].count(TRACE) == 4
        async with log.group("g", shards=2) as group:
            found = 0
            async for entry in group:
                found += entry.headers == TRACE
                if entry.position == 8:
                    break
            assert found == 4
        bare = [entry.headers async for entry in log.subscribe(stop=8, payloads=False)]
        assert bare == [{}] * 8


async def test_bad_ones_are_refused() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        with pytest.raises(errors.InvalidArgument, match="headers must be a dict"):
            await log.append(b"x", headers={"a": "text"})  # type: ignore[dict-item]
        with pytest.raises(errors.InvalidArgument, match="has no time zone"):
            await log.append(b"x", timestamp=NOON.replace(tzinfo=None))
        with pytest.raises(errors.InvalidArgument, match="headers: 1 given for 2 values"):
            await log.append_many([b"x", b"y"], headers=[TRACE])
        with pytest.raises(errors.InvalidArgument, match="value must be bytes"):
            await log.append("x", headers=TRACE)  # type: ignore[arg-type]
        assert await log.tail() == 0


async def test_without_an_event_loop() -> None:
    def story(address: str) -> None:
        with loomlog.connect_sync(address) as cluster:
            log = cluster.log("events")
            log.append(b"x", headers=TRACE, timestamp=NOON)
            log.append_many([b"y"], headers=[TRACE], timestamps=[NOON])
            for entry in log.subscribe(stop=2):
                assert (entry.headers, entry.timestamp) == (TRACE, NOON)

    local = LocalCluster(nodes=1)
    async with local as cluster:
        await cluster.create_log("events", replicas=1)
        await asyncio.to_thread(story, local.address)
