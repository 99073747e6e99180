"""Scenarios of the reference system's integration suite, by behaviour, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from poll import until

from loomlog.errors import Trimmed
from loomlog.testing import LocalCluster
from loomlog.types import Entry
from loomlog.wire.info import LogInfo

DETECTION_S = 0.5
PATIENCE_S = 30.0


def all_run(log: LogInfo) -> bool:
    return all(stream.state == "running" and not stream.joining for stream in log.streams)


async def values(reader: AsyncGenerator[Entry, None], count: int) -> list[bytes]:
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(reader)).value for _ in range(count)]


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def test_a_subscriber_goes_on_over_an_added_stream(tmp_path: Path) -> None:
    async with LocalCluster(nodes=3, directory=tmp_path) as cluster:
        log = await cluster.create_log("grows", streams=1)
        reader = log.subscribe()
        await log.append_many(numbered(0, 10))
        assert await values(reader, 10) == numbered(0, 10)
        added = (await cluster.add_stream("grows")).stream
        assert added
        await log.append_many(numbered(10, 10), stream=added)
        await log.append_many(numbered(20, 10))
        assert await values(reader, 20) == numbered(10, 20)
        await reader.aclose()


async def test_a_subscriber_goes_on_over_a_moved_stream(tmp_path: Path) -> None:
    async with LocalCluster(nodes=4, directory=tmp_path) as cluster:
        log = await cluster.create_log("moves", streams=1)
        (stream,) = (await log.describe()).streams
        reader = log.subscribe()
        await log.append_many(numbered(0, 10))
        assert await values(reader, 10) == numbered(0, 10)
        before = {replica.node for replica in stream.replicas}
        for leaving in sorted(before):  # every replica the reader may be connected to
            await cluster.move_stream(stream.id, leaving)
            await until(
                log.describe,
                lambda info, gone=leaving: (  # type: ignore[misc]
                    all_run(info) and gone not in {r.node for r in info.streams[0].replicas}
                ),
            )
            await log.append_many(numbered(leaving * 10, 10))
            assert await values(reader, 10) == numbered(leaving * 10, 10)
        await reader.aclose()


async def test_a_trim_reaches_a_node_that_was_down(tmp_path: Path) -> None:
    servers = LocalCluster(nodes=3, directory=tmp_path, failure_detection_s=DETECTION_S)
    async with servers as cluster:
        log = await cluster.create_log("trimmed", streams=1)
        await log.append_many(numbered(0, 100))
        await servers.stop_node(2)
        await until(log.describe, lambda info: info.streams[0].state != "running")
        await log.trim(60)
        await servers.start_node(2)
        await until(log.describe, all_run)
        for other in (1, 3):
            await servers.stop_node(other)
        async with asyncio.timeout(PATIENCE_S):  # only the one that was down is left to ask
            with pytest.raises(Trimmed, match="61"):
                await log.read(60)
            assert (await log.read(61)).value == b"60"


async def test_a_fresh_stream_of_a_long_lived_log(tmp_path: Path) -> None:
    """The first entries of a new stream follow all earlier ones, even if those are trimmed."""
    servers = LocalCluster(nodes=3, directory=tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("old", streams=1)
        (old,) = (await log.describe()).streams
        for first in range(0, 1000, 100):
            await log.append_many(numbered(first, 100))
        await log.trim(900)
        fresh = (await cluster.add_stream("old")).stream
        at = await log.append(b"fresh", stream=fresh)
        assert (at.position, at.llsn) == (1001, 1)
        await log.append(b"more", stream=old.id)
        assert await values(log.subscribe(start=901), 102) == [
            *numbered(900, 100),
            b"fresh",
            b"more",
        ]
        await servers.stop_metadata()
        await servers.start_metadata()
        assert (await log.append(b"later", stream=fresh)).llsn == 2


async def test_a_backup_fails_and_returns(tmp_path: Path) -> None:
    servers = LocalCluster(nodes=3, directory=tmp_path, failure_detection_s=DETECTION_S)
    async with servers as cluster:
        log = await cluster.create_log("returns", streams=1)
        backup = (await log.describe()).streams[0].replicas[1].node
        await log.append_many(numbered(0, 10))
        await servers.stop_node(backup)
        waiting = asyncio.ensure_future(log.append_many(numbered(10, 10)))
        await until(log.describe, lambda info: info.streams[0].state != "running")
        assert (await log.read(5)).value == b"4"  # sealed, and readable
        await servers.start_node(backup)
        async with asyncio.timeout(PATIENCE_S):
            assert [at.position for at in await waiting] == list(range(11, 21))
        await until(log.describe, all_run)
        assert await values(log.subscribe(), 20) == numbered(0, 20)
