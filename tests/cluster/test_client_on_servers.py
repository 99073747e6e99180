"""The client on real servers: one metadata repository, three storage nodes, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest

import loomlog
from loomlog import columns, connect, errors
from loomlog.config import MetadataSettings, NodeSettings, StorageSettings
from loomlog.metadata import MetadataRepository
from loomlog.node import StorageNode
from loomlog.types import SyncMode


@asynccontextmanager
async def servers(directory: Path) -> AsyncIterator[str]:
    """Run a cluster; yield its address."""
    async with AsyncExitStack() as stack:
        settings = MetadataSettings("test", str(directory / "vmr"), "127.0.0.1:0", http=None)
        repository = MetadataRepository(settings)
        await repository.start()
        stack.push_async_callback(repository.stop)
        for number in (1, 2, 3):
            volume = directory / f"vsn-{number}"
            volume.mkdir(parents=True)
            node = StorageNode(
                NodeSettings(
                    node_id=number,
                    cluster_id="test",
                    volumes=(str(volume),),
                    metadata=(repository.address,),
                    storage=StorageSettings(sync=SyncMode.NONE),
                )
            )
            await node.start()
            stack.push_async_callback(node.stop)
            await node.registered()
        yield repository.address


async def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    async with servers(tmp_path) as address, await connect(address) as cluster:
        log = await cluster.create_log("events", streams=2, replicas=3)
        values = [b"%d" % number for number in range(2_000)]
        positions = await asyncio.gather(*map(log.append, values))
        expected = {at.position: value for at, value in zip(positions, values, strict=True)}
        assert sorted(expected) == list(range(1, 2_001))
        entries = [entry async for entry in log.subscribe(stop=2_000)]
        assert [entry.position for entry in entries] == list(range(1, 2_001))
        assert all(expected[entry.position] == entry.value for entry in entries)
        assert await log.tail() == 2_000
        for position in (1, 1_000, 2_000):
            assert (await log.read(position)).value == expected[position]


async def test_batches_stay_together_and_come_as_arrow(tmp_path: Path) -> None:
    async with servers(tmp_path) as address, await connect(address) as cluster:
        log = await cluster.create_log("events", streams=3, replicas=2)
        batches = await asyncio.gather(
            *(log.append_many([b"%d" % n] * 50, keys=[b"key"] * 50) for n in range(40))
        )
        for positions in batches:
            first = positions[0]
            assert [p.position for p in positions] == [first.position + n for n in range(50)]
            assert [p.llsn for p in positions] == [first.llsn + n for n in range(50)]
        found = [records async for records in log.subscribe_arrow(stop=2_000)]
        assert found[0].schema == columns.SCHEMA
        assert [n for records in found for n in records["position"].to_pylist()] == list(
            range(1, 2_001)
        )


async def test_a_reader_follows_writers(tmp_path: Path) -> None:
    async with servers(tmp_path) as address, await connect(address) as cluster:
        log = await cluster.create_log("events", streams=2)

        async def write() -> None:
            for number in range(200):
                await log.append(b"%d" % number)

        writers = asyncio.gather(write(), write())
        seen = []
        async with aclosing(log.subscribe()) as entries:
            async for entry in entries:
                seen.append(entry.position)
                if len(seen) == 400:
                    break
        await writers
        assert seen == list(range(1, 401))


async def test_bounds_are_told_precisely(tmp_path: Path) -> None:
    async with servers(tmp_path) as address, await connect(address) as cluster:
        log = await cluster.create_log("events")
        await log.append_many([b"x"] * 10)
        with pytest.raises(errors.NotYetWritten):
            await log.read(11)
        await log.trim(4)
        assert await log.head() == 5
        with pytest.raises(errors.Trimmed):
            await log.read(4)
        with pytest.raises(errors.Trimmed):
            await anext(log.subscribe())
        kept = [entry.position async for entry in log.subscribe("earliest", stop=10)]
        assert kept == [5, 6, 7, 8, 9, 10]
        with pytest.raises(errors.NotFound):
            await cluster.log("nothing").append(b"x")
        with pytest.raises(errors.AlreadyExists):
            await cluster.create_log("events")


async def test_the_cluster_describes_itself(tmp_path: Path) -> None:
    async with servers(tmp_path) as address, await connect(address) as cluster:
        log = await cluster.create_log("events", streams=2, replicas=2)
        await log.append_many([b"x"] * 3)
        described = await log.describe()
        assert [len(stream.replicas) for stream in described.streams] == [2, 2]
        assert {stream.state for stream in described.streams} == {"running"}
        assert sum(stream.last_llsn for stream in described.streams) == 3
        status = await cluster.status()
        assert [node.alive for node in status.nodes] == [True, True, True]
        await cluster.delete_log("events")
        assert await cluster.logs() == []


async def test_the_blocking_client_is_the_same(tmp_path: Path) -> None:
    def program(address: str) -> list[bytes]:
        with loomlog.connect_sync(address) as cluster:
            log = cluster.create_log("events", streams=2)
            for number in range(20):
                log.append(b"%d" % number)
            return [entry.value for entry in log.subscribe(stop=20)]

    async with servers(tmp_path) as address:
        values = await asyncio.to_thread(program, address)
    assert values == [b"%d" % number for number in range(20)]
