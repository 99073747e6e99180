"""Streams are removed from a log that is in use: nobody gets an error, and nothing moves."""

from __future__ import annotations

import asyncio

import pytest
from poll import until

from loomlog import Cluster, Log, LogInfo
from loomlog.columns import encode
from loomlog.errors import InvalidArgument, Sealed
from loomlog.metadata.ordered import relief
from loomlog.testing import LocalCluster

DETECTION_S = 0.5
PATIENCE_S = 30.0


def ids(info: LogInfo) -> list[int]:
    return [stream.id for stream in info.streams]


async def append_to_each(cluster: Cluster, log: Log) -> list[bytes]:
    """Append to every stream in turn; return the values in their order."""
    values = []
    for number in range(10):
        for stream in ids(await log.describe()):
            values.append(f"{number} in {stream}".encode())
            await log.append(values[-1], stream=stream)
    return values


async def test_a_stream_is_removed_while_others_append_and_read() -> None:
    async with LocalCluster(nodes=3) as cluster:
        log = await cluster.create_log("events", streams=2, replicas=2)
        values = await append_to_each(cluster, log)
        following = log.subscribe(start=1)
        assert [(await anext(following)).value for _ in values] == values
        first, second = ids(await log.describe())

        async def append_on() -> int:
            for number in range(50):
                at = await log.append(f"then {number}".encode())
            return at.position

        appending = asyncio.create_task(append_on())
        change = await cluster.remove_stream(first)
        assert change.done == f"stream {first} takes no more appends"
        tail = await appending
        assert [e.value async for e in log.subscribe(start=1, stop=len(values))] == values
        with pytest.raises(Sealed, match="is being removed"):
            await log.append(b"refused", stream=first)
        with pytest.raises(InvalidArgument, match="no other stream"):
            await cluster.remove_stream(second)

        await log.trim(tail)
        await until(log.describe, lambda info: ids(info) == [second])
        at = await log.append(b"after it")
        async with asyncio.timeout(PATIENCE_S):
            while (entry := await anext(following)).position < at.position:
                pass
        assert (entry.position, entry.value) == (at.position, b"after it")
        await following.aclose()


async def test_relief_goes_when_all_is_well_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relief, "UNNEEDED_S", 0.5)
    servers = LocalCluster(nodes=3, failure_detection_s=DETECTION_S)
    async with servers as cluster:
        log = await cluster.create_log("events", streams=1, replicas=3)
        await log.append(b"before")
        (first,) = ids(await log.describe())
        for dead in (1, 2, 3):
            await servers.stop_node(dead)
            async with asyncio.timeout(PATIENCE_S):
                at = await log.append(b"meanwhile")
            assert at.stream != first
            await servers.start_node(dead)
            await until(log.describe, lambda info: [s.id for s in info.active_streams] == [first])
            at = await log.append(b"after")
            assert at.stream == first
        entries = [e.value async for e in log.subscribe(start=1, stop=at.position)]
        assert entries == [b"before"] + 3 * [b"meanwhile", b"after"]
        await log.trim(at.position - 1)
        await until(log.describe, lambda info: ids(info) == [first])
        assert (await log.read(at.position)).value == b"after"


async def test_a_fixed_append_is_told_that_its_stream_ends() -> None:
    async def confirm() -> None:
        pass

    async with LocalCluster(nodes=2) as cluster:
        log = await cluster.create_log("events", streams=2, replicas=2)
        info = await log.describe()
        loglet = log._parts.loglets.of("ordered")
        fixed = [await loglet.reserve(stream.id, info.reached, 1) for stream in info.streams]
        batch = encode([b"x"], timestamps_us=1, producer_id=7, sequence=1)
        first = await loglet.append_fixed(fixed[0], batch, confirm)
        assert first
        await cluster.remove_stream(info.streams[0].id)
        assert await loglet.append_fixed(fixed[0], batch, confirm) == 0
        await log.append(b"y", stream=info.streams[1].id)
        await cluster.add_stream("events")
        await cluster.remove_stream(info.streams[1].id)
        assert await loglet.append_fixed(fixed[1], batch, confirm) == 0
