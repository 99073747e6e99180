"""An `ordered` stream that has lost its end: the rest is copied to all its replicas again."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from poll import until

from loomlog import Cluster, Gap, Log
from loomlog.testing import LocalCluster
from loomlog.types import NodeId

pytestmark = pytest.mark.timeout(120)

HALF = 50
LEFT = [b"%d" % number for number in range(HALF)]


async def append(log: Log, count: int) -> None:
    for value in LEFT[:count]:
        await log.append(value)


async def left_on(cluster: Cluster) -> dict[NodeId, int | None]:
    """Return the last entry that each replica of the stream has."""
    described = await cluster.describe_stream(1)
    return {replica.node: replica.committed for replica in described.replicas}


async def said(cluster: Cluster) -> str:
    conditions = [each.text for each in (await cluster.status()).conditions]
    return "; ".join(
        [*conditions, *(s.condition for s in (await cluster.log("l").describe()).streams)]
    )


async def found(log: Log, stop: int) -> list[bytes | Gap]:
    async with asyncio.timeout(30):
        rows = [each async for each in log.subscribe(1, stop, gaps=True)]
    return [each if isinstance(each, Gap) else each.value for each in rows]


@pytest.mark.parametrize("replicas", [2, 3])
async def test_what_is_left_is_copied_to_all_replicas(tmp_path: Path, replicas: int) -> None:
    """Node 1 has an old copy of its disk, and the others have lost theirs."""
    servers = LocalCluster(replicas, directory=tmp_path / "cluster")
    volume, copy = tmp_path / "cluster" / "vsn-1", tmp_path / "copy"
    async with servers as cluster:
        log = await cluster.create_log("l", replicas=replicas)
        await append(log, HALF)
        await servers.stop_node(1)
        shutil.copytree(volume, copy)
        await servers.start_node(1)
        await append(log, HALF)
        await servers.stop_node(1)
        shutil.rmtree(volume)
        copy.rename(volume)
        others = range(2, replicas + 1)
        for node in others:
            await servers.wipe_node(node)
        for node in (1, *others):
            await servers.start_node(node)

        everywhere = dict.fromkeys(range(1, replicas + 1), HALF)
        await until(lambda: left_on(cluster), lambda left: left == everywhere)
        text = await until(lambda: said(cluster), lambda text: "from LLSN 51 on is lost" in text)
        assert "is away" not in text
        assert "fewer copies" not in text
        await append(log, 1)  # to another stream
        assert await found(log, 2 * HALF) == [*LEFT, Gap(HALF + 1, 2 * HALF, "dataloss")]
        await servers.stop_node(1)
        assert await found(log, HALF) == LEFT
