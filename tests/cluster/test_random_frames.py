"""Random and damaged frames to every server: they go on, and no frame is a bug of theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from random_frames import RandomFrames

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.net.address import split_address
from loomlog.testing import LocalCluster

CONNECTIONS = 60
FRAMES = 25  # on each, at most
PATIENCE_S = 60.0


async def create_logs(cluster: Cluster) -> list[Log]:
    return [
        await cluster.create_log("o", replicas=2),
        await cluster.create_log("c", protocol="chained", replicas=2),
        await cluster.create_log("s", protocol="copyset", replicas=2),
    ]


async def say(address: str, words: bytes) -> None:
    """Send all of it, and leave when it was accepted or the server hung up."""
    reader, writer = await asyncio.open_connection(*split_address(address))
    try:
        writer.write(words)
        async with asyncio.timeout(0.05):
            await writer.drain()
            while await reader.read(1 << 16):
                pass
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()


async def still_serve(logs: list[Log], value: bytes) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for log in logs:
            at = await log.append(value)
            assert (await log.read(at.position)).value == value


@pytest.mark.parametrize("metadata", [1, 3])
@pytest.mark.parametrize("seed", [2])
async def test_servers_outlast_random_frames(
    metadata: int, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    local = LocalCluster(nodes=2, metadata=metadata)
    async with local as cluster:
        logs = await create_logs(cluster)
        await still_serve(logs, b"before")
        addresses = [node.address for node in local.nodes.values()]
        addresses += [repository.address for repository in local.repositories.values()]
        frames = RandomFrames(seed, [1, 2, 3])
        for number in range(CONNECTIONS):
            address = addresses[number % len(addresses)]
            await say(address, frames.connection(FRAMES))
        await still_serve(logs, b"after")
        assert not any(node.failed.done() for node in local.nodes.values())
        assert not any(found.failed.done() for found in local.repositories.values())
    bugs = [record.getMessage() for record in caplog.records if record.exc_info]
    assert (unhandled, bugs) == ([], [])
