"""A damaged disk under a chained log: the chain goes on with what is sound, and is whole again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from loomlog.client.log import Log
from loomlog.testing import LocalCluster

ENTRIES = 10
SIZE = 100_000


def damage(chains: Path) -> None:
    """Flip a bit of every batch that is there."""
    files = list(chains.glob("batches/*/*"))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        for at in range(SIZE // 2, len(content), SIZE):
            content[at] ^= 1
        file.write_bytes(content)


async def chain_of(log: Log) -> list[int]:
    """Its nodes, head first."""
    [stream] = (await log.describe()).streams
    [nodes] = stream.chains
    return list(nodes)


async def test_a_tail_that_cannot_be_read_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = LocalCluster(nodes=4, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="chained", replicas=3)
        written = [os.urandom(SIZE) for _ in range(ENTRIES)]
        for value in written:
            await log.append(value)
        tail = (await chain_of(log))[-1]
        # Not for so long that it is missed; what it has is then in files, not in memory.
        await local.stop_node(tail)
        damage(tmp_path / f"vsn-{tail}/cid=local/snid={tail}/chains")
        await local.start_node(tail)

        assert (await chain_of(log))[-1] == tail
        found = [entry.value async for entry in log.subscribe(1, ENTRIES)]
        assert found == written
        assert "cannot be read" in caplog.text
        while len(nodes := await chain_of(log)) < 3 or tail in nodes:
            pass
        await log.append(b"and on")
        assert (await log.read(ENTRIES + 1)).value == b"and on"
