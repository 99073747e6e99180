"""A replica whose files are damaged keeps nothing else from being served, is filled again from
another node, and is not deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from loomlog import Cluster, Log
from loomlog.client.info import NodeInfo
from loomlog.testing import LocalCluster

pytestmark = pytest.mark.timeout(120)

VALUES = [b"%d" % number for number in range(100)]


def cluster(directory: Path, nodes: int = 3) -> LocalCluster:
    return LocalCluster(nodes, directory=directory, sync="none", failure_detection_s=1.0)


def replica(directory: Path, node: int, stream: int = 1) -> Path:
    return directory / f"vsn-{node}/cid=local/snid={node}/lsid={stream}"


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


async def until(client: Cluster, true: Callable[[NodeInfo], bool], node: int = 2) -> NodeInfo:
    async with asyncio.timeout(60):
        while True:
            [info] = [info for info in (await client.status()).nodes if info.id == node]
            if true(info):
                return info
            await asyncio.sleep(0.02)


async def runs(client: Cluster, nodes: Iterable[int]) -> None:
    """Wait until every stream runs on these nodes, and nothing is wrong with any."""
    async with asyncio.timeout(60):
        while True:
            streams = [s for log in (await client.status()).logs for s in log.streams]
            if all(
                s.state == "running" and not s.condition and {r.node for r in s.replicas} == nodes
                for s in streams
            ):
                return
            await asyncio.sleep(0.02)


async def says(log: Log, condition: str) -> None:
    """Wait until a stream of the log has this condition."""
    async with asyncio.timeout(60):
        while True:
            if any(condition in s.condition for s in (await log.describe()).streams):
                return
            await asyncio.sleep(0.02)


def flip(meta: Path) -> None:
    data = bytearray(meta.read_bytes())
    data[10] ^= 1
    meta.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flipped", "lost"])
async def test_a_replica_without_its_meta_file_is_filled_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    local = cluster(tmp_path)
    async with local as client:
        log = await client.create_log("events", streams=2, replicas=3)
        for value in VALUES:
            await log.append(value)
        await local.stop_node(2)
        damage(replica(tmp_path, 2) / "meta")
        before = contents(replica(tmp_path, 2))
        await local.start_node(2)
        await runs(client, {1, 2, 3})
        aside = replica(tmp_path, 2).with_name("lsid=1.damaged")
        assert contents(aside) == before
        await until(client, lambda info: f"{aside} is damaged" in "".join(info.conditions))
        await local.stop_node(1)
        await local.stop_node(3)  # what is read now is on node 2 alone
        assert [entry.value async for entry in log.subscribe(1, len(VALUES))] == VALUES


async def test_the_only_replica_stays_as_it_is_until_its_meta_file_is_back(tmp_path: Path) -> None:
    local = cluster(tmp_path, nodes=1)
    async with local as client:
        log = await client.create_log("events", replicas=1)
        for value in VALUES:
            await log.append(value)
        await local.stop_node(1)
        whole = (replica(tmp_path, 1) / "meta").read_bytes()
        flip(replica(tmp_path, 1) / "meta")
        before = contents(replica(tmp_path, 1))
        await local.start_node(1)
        info = await until(client, lambda info: bool(info.conditions), node=1)
        assert f"{replica(tmp_path, 1)} is not served" in info.conditions[0]
        await says(log, "no live replica has every committed entry")
        await local.stop_node(1)
        assert contents(replica(tmp_path, 1)) == before
        (replica(tmp_path, 1) / "meta").write_bytes(whole)
        await local.start_node(1)
        await runs(client, {1})
        assert [entry.value async for entry in log.subscribe(1, len(VALUES))] == VALUES
