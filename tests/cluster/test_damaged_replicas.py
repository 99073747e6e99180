"""A replica with damaged files does not prevent other replicas from being served, is filled again
from another node, and is not deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from poll import until

from loomlog import Cluster, Log
from loomlog.testing import LocalCluster
from loomlog.wire.info import NodeInfo

pytestmark = pytest.mark.timeout(120)

VALUES = [b"%d" % number for number in range(100)]


def cluster(directory: Path, nodes: int = 3) -> LocalCluster:
    return LocalCluster(nodes, directory=directory, sync="none", failure_detection_s=1.0)


def replica(directory: Path, node: int, stream: int = 1) -> Path:
    return directory / f"vsn-{node}/cid=local/snid={node}/lsid={stream}"


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


async def node_of(client: Cluster, node: int) -> NodeInfo:
    return next(info for info in (await client.status()).nodes if info.id == node)


async def runs(client: Cluster, nodes: Iterable[int]) -> None:
    """Wait until every stream runs on these nodes, and nothing is wrong with any."""
    await until(
        client.status,
        lambda status: all(
            s.state == "running" and not s.condition and {r.node for r in s.replicas} == nodes
            for log in status.logs
            for s in log.streams
        ),
    )


async def says(log: Log, condition: str) -> None:
    """Wait until a stream of the log has this condition."""
    await until(log.describe, lambda info: any(condition in s.condition for s in info.streams))


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
        await until(
            lambda: node_of(client, 2), lambda n: f"{aside} is damaged" in "".join(n.conditions)
        )
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
        said = f"{replica(tmp_path, 1)} is not served"
        await until(lambda: node_of(client, 1), lambda node: said in "".join(node.conditions))
        await says(log, "the replica on node 1 cannot be used: `loom status` says what is wrong")
        await local.stop_node(1)
        assert contents(replica(tmp_path, 1)) == before
        (replica(tmp_path, 1) / "meta").write_bytes(whole)
        await local.start_node(1)
        await runs(client, {1})
        assert [entry.value async for entry in log.subscribe(1, len(VALUES))] == VALUES


async def test_two_replicas_that_were_swapped_wait_until_they_are_swapped_back(
    tmp_path: Path,
) -> None:
    local = cluster(tmp_path, nodes=1)
    one, two, aside = replica(tmp_path, 1), replica(tmp_path, 1, 2), tmp_path / "aside"
    async with local as client:
        logs = [await client.create_log(name, replicas=1) for name in ("one", "two")]
        for log in logs:
            await log.append_many(VALUES)
        for is_swapped in (True, False):
            await local.stop_node(1)
            one.rename(aside)
            two.rename(one)
            aside.rename(two)
            before = contents(tmp_path / "vsn-1") if is_swapped else {}
            await local.start_node(1)
            if is_swapped:
                info = await until(lambda: node_of(client, 1), lambda node: node.conditions)
                said = "; ".join(info.conditions)
                assert f"{one} is not served: it holds log stream 2, not 1" in said
                assert f"{two} is not served: it holds log stream 1, not 2" in said
                for log in logs:
                    await says(log, "no live replica has every committed entry")
                after = contents(tmp_path / "vsn-1")
                assert {name: after.get(name) for name in before if "lsid" in name} == {
                    name: content for name, content in before.items() if "lsid" in name
                }
        await runs(client, {1})
        for log in logs:
            found = [entry.value async for entry in log.subscribe(1, len(VALUES))]
            assert found == VALUES
