"""Copies of streams in a whole cluster, with real servers: a node that was away catches up, and
what a disk broke is made good, while clients append and read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from poll import until

from loomlog.client.log import Log
from loomlog.config import StorageSettings
from loomlog.limits import KIB
from loomlog.testing import LocalCluster
from loomlog.wire.info import LogInfo

PATIENCE_S = 60.0
SMALL_FILES = StorageSettings(data_file_bytes=256 * KIB, commit_file_bytes=8 * KIB)


async def until_unsealed(log: Log, epoch: int) -> None:
    """Wait until the stream runs in a later epoch."""

    def is_unsealed(info: LogInfo) -> bool:
        [stream] = info.streams
        return stream.state == "running" and stream.epoch > epoch

    await until(log.describe, is_unsealed)


async def epoch_of(log: Log) -> int:
    (stream,) = (await log.describe()).streams
    return stream.epoch


async def append(log: Log, first: int, count: int) -> None:
    values = [b"%d " % number * 50 for number in range(first, first + count)]
    for start in range(0, count, 20):
        await log.append_many(values[start : start + 20])


async def read_all(log: Log, count: int) -> list[int]:
    """Return the numbers that were appended, in order."""
    numbers = []
    async with asyncio.timeout(PATIENCE_S):
        async for entry in log.subscribe(1):
            numbers.append(int(entry.value.split()[0]))
            if len(numbers) == count:
                return numbers
    raise AssertionError("the log ended")


def data_files(directory: Path, node: int) -> list[Path]:
    return sorted(directory.glob(f"vsn-{node}/cid=*/snid={node}/lsid=*/data/*.seg"))


async def test_a_node_that_was_away_catches_up_and_serves_alone(tmp_path: Path) -> None:
    local = LocalCluster(2, directory=tmp_path, storage=SMALL_FILES, failure_detection_s=0.5)
    async with local as cluster:
        log = await cluster.create_log("events", streams=1, replicas=2)
        await append(log, 0, 500)
        await local.stop_node(2)
        appends = asyncio.create_task(append(log, 500, 500))  # waits until the stream runs again
        await asyncio.sleep(0)
        await local.start_node(2)
        await appends
        await local.stop_node(1)
        assert await read_all(log, 1000) == list(range(1000))


@pytest.mark.parametrize("lost", ["the first file", "everything"])
async def test_a_replica_whose_files_are_lost_is_filled_again(tmp_path: Path, lost: str) -> None:
    local = LocalCluster(2, directory=tmp_path, storage=SMALL_FILES, failure_detection_s=0.5)
    async with local as cluster:
        log = await cluster.create_log("events", streams=1, replicas=2)
        await append(log, 0, 3000)
        epoch = await epoch_of(log)
        await local.stop_node(2)
        files = data_files(tmp_path, 2)
        assert len(files) > 1
        for path in files[:1] if lost == "the first file" else files:
            path.unlink()
        await local.start_node(2)
        await until_unsealed(log, epoch)
        await append(log, 3000, 100)
        await local.stop_node(1)
        assert await read_all(log, 3100) == list(range(3100))


@pytest.mark.parametrize("node", [1, 2])
async def test_flipped_bytes_are_repaired_and_not_seen(tmp_path: Path, node: int) -> None:
    local = LocalCluster(2, directory=tmp_path, storage=SMALL_FILES)
    async with local as cluster:
        log = await cluster.create_log("events", streams=1, replicas=2)
        await append(log, 0, 1000)
        (first, *_) = data_files(tmp_path, node)
        sound = first.read_bytes()
        broken = bytearray(sound)
        for offset in (500, 50_000):
            broken[offset] ^= 1
        first.write_bytes(broken)
        assert await read_all(log, 1000) == list(range(1000))
