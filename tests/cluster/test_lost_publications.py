"""A staging log loses rows that were published: readers hear of exactly these, at their positions
in the log that they read."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from agreeing_readers import LOST, content
from poll import until

from loomlog import Cluster
from loomlog.client.log import Log
from loomlog.errors import DataLoss
from loomlog.testing import LocalCluster
from loomlog.types import Glsn

pytestmark = pytest.mark.timeout(120)


def rows(name: str, count: int) -> tuple[list[bytes], pa.RecordBatch]:
    values = [f"{name} {number}".encode() for number in range(count)]
    return values, pa.record_batch({"value": pa.array(values, pa.binary())})


async def node_of(log: Log) -> int:
    [stream] = (await log.describe()).streams
    [replica] = stream.replicas
    return int(replica.node)


async def lose(local: LocalCluster, directory: Path, cluster: Cluster, node: int) -> None:
    """Let a node come back empty."""
    await local.stop_node(node)
    await until(cluster.status, lambda s: not any(n.alive for n in s.nodes if n.id == node))
    shutil.rmtree(directory / f"vsn-{node}")
    await cluster.replace_node(node)
    await local.start_node(node)


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_readers_hear_of_exactly_the_rows_that_are_lost(
    tmp_path: Path, protocol: str
) -> None:
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=0.5)
    async with local as cluster, asyncio.timeout(100):
        nodeset = 1 if protocol == "copyset" else None
        log = await cluster.create_log(
            "events", protocol=protocol, streams=1, replicas=1, nodeset=nodeset
        )
        written: dict[Glsn, bytes] = {(await log.append(b"before")).position: b"before"}
        values, batch = rows("published", 5)
        published = await (await log.writer("w")).publish(1, await log.stage(batch))
        written.update(zip(range(published.first, published.last + 1), values, strict=True))
        written[(await log.append(b"after")).position] = b"after"
        staging = cluster.log("events.staged")
        node, kept = await node_of(staging), await node_of(log)
        if node == kept:
            [stream] = (await staging.describe()).streams
            node = next(n for n in (1, 2, 3) if n != kept)
            await cluster.move_stream(stream.id, kept, node)
            await until(lambda: node_of(staging), lambda found: found == node)
        assert await content(log, [*written]) == written

        await lose(local, tmp_path, cluster, node)
        lost = dict.fromkeys(range(published.first, published.last + 1), LOST)
        await until(lambda: content(log, [*written]), lambda found: found == {**written, **lost})
        advice = f"continue at {published.last + 1}"
        with pytest.raises(DataLoss, match=re.escape(advice)):
            async for _ in log.subscribe(published.first, published.last):
                pass
        status = await until(
            cluster.status,
            lambda status: any(
                c.kind == "data-lost" and c.log == "events" for c in status.conditions
            ),
        )
        [told] = [c.text for c in status.conditions if c.kind == "data-lost" and c.log == "events"]
        assert told.startswith("published rows may be lost with log 'events.staged': ")
        values, batch = rows("again", 2)
        again = await (await log.writer("w")).publish(2, await log.stage(batch))
        assert [e.value async for e in log.subscribe(again.first, again.last)] == values
