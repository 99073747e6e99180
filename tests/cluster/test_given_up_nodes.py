"""An operator says that the data of all nodes of a stream will not come back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from poll import until

from loomlog import Cluster, Entry, Gap, Log
from loomlog.errors import DataLoss, InvalidArgument
from loomlog.testing import LocalCluster
from loomlog.types import Glsn, NodeId
from loomlog.wire.info import ClusterStatus

pytestmark = pytest.mark.timeout(120)

REMOVE, MARK = "remove", "mark-unrecoverable"


async def give_up(cluster: Cluster, node: NodeId, word: str) -> None:
    """Say that a node that is away never comes back, once it counts as dead."""

    async def is_said() -> bool:
        try:
            if word == REMOVE:
                await cluster.remove_node(node, force=True)
            else:
                await cluster.mark_unrecoverable(node)
        except InvalidArgument as refused:
            if "is alive" not in str(refused):
                raise
            return False
        return True

    await until(is_said)


def kinds(status: ClusterStatus) -> set[str]:
    return {condition.kind for condition in status.conditions}


def replicas_on(status: ClusterStatus, nodes: Iterable[NodeId]) -> int:
    return sum(each.replicas for each in status.nodes if each.id in nodes)


def said(status: ClusterStatus) -> str:
    return "; ".join(each.text for each in status.conditions)


async def append(log: Log, count: int) -> dict[Glsn, bytes]:
    values = [b"<entry %04d>" % number for number in range(count)]
    return {(await log.append(value)).position: value for value in values}


async def found(log: Log, last: Glsn) -> tuple[dict[Glsn, bytes], list[Gap]]:
    async with asyncio.timeout(60):
        items = [item async for item in log.subscribe(1, last, gaps=True)]
    entries = {item.position: item.value for item in items if isinstance(item, Entry)}
    return entries, [item for item in items if isinstance(item, Gap) and item.kind == "dataloss"]


async def nodes_of(log: Log) -> list[NodeId]:
    return [replica.node for replica in (await log.describe()).streams[0].replicas]


@pytest.mark.parametrize("word", [REMOVE, MARK])
@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_what_only_they_had_is_lost_and_the_log_goes_on(
    tmp_path: Path, protocol: str, word: str
) -> None:
    """The log has another stream, or chain, on other nodes: its entries are all there."""
    local = LocalCluster(4, directory=tmp_path)
    async with local as cluster:
        streams, nodeset = (1, 4) if protocol == "copyset" else (2, None)
        log = await cluster.create_log(
            "events", protocol=protocol, streams=streams, replicas=2, nodeset=nodeset
        )
        values = await append(log, 60)
        for node in (1, 2):
            await local.stop_node(node)
        lost = {at for at, value in values.items() if not is_on(tmp_path, (3, 4), value)}
        assert len(lost) < len(values)
        for node in (1, 2):
            shutil.rmtree(tmp_path / f"vsn-{node}")
            await give_up(cluster, node, word)
        status = await until(cluster.status, lambda status: not replicas_on(status, (1, 2)))
        if word == REMOVE:
            await until(cluster.status, lambda s: {n.id for n in s.nodes} == {3, 4})
        last = (await log.append(b"more")).position

        entries, gaps = await found(log, last)
        assert entries == {at: v for at, v in values.items() if at not in lost} | {last: b"more"}
        assert all(any(gap.first <= at <= gap.last for gap in gaps) for at in lost)
        if lost:
            status = await until(cluster.status, lambda status: "data-lost" in kinds(status))
            assert "reads-wait" not in kinds(status), said(status)
        for position in lost:
            with pytest.raises(DataLoss):
                await log.read(position)
        await log.trim(last - 1)
        await until(cluster.status, lambda status: "data-lost" not in kinds(status))


async def test_a_copyset_log_continues_when_its_whole_nodeset_is_lost(tmp_path: Path) -> None:
    """No node is left from which its epochs could be recovered; two others are there."""
    local = LocalCluster(4, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", protocol="copyset", replicas=2, nodeset=2)
        values = await append(log, 20)
        before = await nodes_of(log)
        for node in before:
            await local.stop_node(node)
            shutil.rmtree(tmp_path / f"vsn-{node}")
        for node in before:
            await give_up(cluster, node, MARK)
        last = (await log.append(b"more")).position
        assert set(before).isdisjoint(await nodes_of(log))
        waits = {"reads-wait", "appends-wait", "data-lost"}
        await until(cluster.status, lambda status: kinds(status) & waits == {"data-lost"})

        entries, gaps = await found(log, last)
        assert entries == {last: b"more"}
        assert all(any(gap.first <= at <= gap.last for gap in gaps) for at in values)
        with pytest.raises(DataLoss):
            await log.read(min(values))
        await log.trim(last - 1)
        await until(cluster.status, lambda status: "data-lost" not in kinds(status))
        for node in before:
            await until(partial(give_up_for_good, cluster, node))


async def give_up_for_good(cluster: Cluster, node: NodeId) -> bool:
    """Remove a node without force: nothing may name it any more."""
    try:
        await cluster.remove_node(node)
    except InvalidArgument:
        return False
    return True


def is_on(directory: Path, nodes: Iterable[NodeId], value: bytes) -> bool:
    return any(
        value in path.read_bytes()
        for node in nodes
        for path in (directory / f"vsn-{node}").rglob("*")
        if path.is_file()
    )


async def test_what_is_left_is_copied_to_nodes_that_take_their_places(tmp_path: Path) -> None:
    """Node 1 has an older copy of its disk, node 2 is removed, node 3 was a spare."""
    local, half = LocalCluster(2, directory=tmp_path), 20
    async with local as cluster:
        log = await cluster.create_log("events", replicas=2)
        values = await append(log, half)
        await local.stop_node(1)
        shutil.copytree(tmp_path / "vsn-1", tmp_path / "copy")
        await local.start_node(1)
        values |= await append(log, half)
        for node in (1, 2):
            await local.stop_node(node)
        shutil.rmtree(tmp_path / "vsn-1")
        (tmp_path / "copy").rename(tmp_path / "vsn-1")
        for node in (1, 3):
            await local.start_node(node)
        await give_up(cluster, 2, REMOVE)
        await until(lambda: left_on(cluster), lambda left: left == {1: half, 3: half})
        await until(cluster.status, lambda status: "data-lost" in kinds(status))
        # It is forgotten as soon as the stream that it left runs.
        await until(cluster.status, lambda status: [node.id for node in status.nodes] == [1, 3])
        last = (await log.append(b"more")).position
        await local.stop_node(1)
        kept = {at: value for at, value in values.items() if at <= half}
        assert (await found(log, half))[0] == kept
        await local.start_node(1)
        entries, gaps = await found(log, last)
        assert entries == kept | {last: b"more"}
        assert [(gap.first, gap.last) for gap in gaps] == [(half + 1, 2 * half)]


async def left_on(cluster: Cluster) -> dict[NodeId, int | None]:
    """Return the last entry that each replica of the first stream has."""
    described = await cluster.describe_stream(1)
    return {replica.node: replica.committed for replica in described.replicas}


async def test_a_marked_node_that_returns_before_others_took_its_place_is_used(
    tmp_path: Path,
) -> None:
    local = LocalCluster(2, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=2)
        values = await append(log, 20)
        for node in (1, 2):
            await local.stop_node(node)
        for node in (1, 2):
            await give_up(cluster, node, MARK)
        status = await until(cluster.status, lambda status: "data-lost" in kinds(status))
        assert "an operator gave up its data" in said(status)
        with pytest.raises(DataLoss):
            await log.read(7)
        await local.start_node(2)
        assert await until(lambda: found(log, 20), lambda seen: not seen[1]) == (values, [])
        assert "data-lost" not in kinds(await cluster.status())
        await local.start_node(1)
        await until(cluster.status, lambda status: not kinds(status))
        values[(await log.append(b"more")).position] = b"more"
        assert await found(log, 21) == (values, [])


async def test_a_marked_node_that_returns_later_is_named_and_keeps_what_it_has(
    tmp_path: Path,
) -> None:
    """Since others replaced it, its data is neither used silently nor deleted."""
    local = LocalCluster(2, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        values = await append(log, 20)
        (old,) = await nodes_of(log)
        await local.stop_node(old)
        await give_up(cluster, old, MARK)
        await until(cluster.status, lambda status: "data-lost" in kinds(status))
        await until(cluster.status, lambda status: not replicas_on(status, (old,)))
        last = (await log.append(b"more")).position
        await local.start_node(old)
        status = await until(cluster.status, lambda status: "old replica" in said(status))
        assert f"node {old} has LLSN 1 to 20 of it in an old replica" in said(status)
        assert is_on(tmp_path, (old,), values[7])
        entries, gaps = await found(log, last)
        assert entries == {last: b"more"}
        assert [(gap.first, gap.last) for gap in gaps] == [(1, 20)]


async def test_the_only_replica_is_given_up_by_a_second_word(tmp_path: Path) -> None:
    local = LocalCluster(2, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await append(log, 20)
        (node,) = await nodes_of(log)
        await local.stop_node(node)
        with pytest.raises(InvalidArgument, match=f"run `loom node mark-unrecoverable {node}`"):
            await give_up(cluster, node, REMOVE)
        await give_up(cluster, node, MARK)
        with pytest.raises(InvalidArgument, match="nothing waits for what node"):
            await give_up(cluster, node, MARK)
        await cluster.remove_node(node, force=True)
        await until(cluster.status, lambda status: len(status.nodes) == 1)
        last = (await log.append(b"more")).position
        entries, gaps = await found(log, last)
        assert (list(entries), [(gap.first, gap.last) for gap in gaps]) == ([last], [(1, 20)])


async def test_a_marked_node_of_a_chain_is_used_if_nothing_else_was_there_meanwhile(
    tmp_path: Path,
) -> None:
    local = LocalCluster(2, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", protocol="chained", replicas=2)
        values = await append(log, 20)
        for node in (1, 2):
            await local.stop_node(node)
        for node in (1, 2):
            await give_up(cluster, node, MARK)
        words = "there is no node where it can begin again"
        await until(cluster.status, lambda status: words in helps(status))
        await local.start_node(2)
        assert await until(lambda: found(log, 20), lambda seen: not seen[1]) == (values, [])
        await local.start_node(1)
        await until(cluster.status, lambda status: not kinds(status))
        values[(await log.append(b"more")).position] = b"more"
        assert await found(log, 21) == (values, [])


async def test_a_marked_node_of_a_chain_that_returns_later_keeps_what_it_has(
    tmp_path: Path,
) -> None:
    """Since others replaced it, its data is neither read nor deleted until the loss is trimmed."""
    local = LocalCluster(3, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", protocol="chained", replicas=2)
        values = await append(log, 20)
        gone = await nodes_of(log)
        for node in gone:
            await local.stop_node(node)
        for node in gone:
            await give_up(cluster, node, MARK)
        await until(cluster.status, lambda status: "data-lost" in kinds(status))
        assert not await old_replicas(cluster)
        for node in gone:
            await local.start_node(node)
        status = await until(cluster.status, lambda s: kinds(s) == {"data-lost"})
        assert await old_replicas(cluster) == [
            f"node {gone[0]} and node {gone[1]} may have some of it in an old replica, which is "
            "not read"
        ]
        assert is_on(tmp_path, (gone[0],), values[7])
        last = (await log.append(b"more")).position
        entries, gaps = await found(log, last)
        assert entries == {last: b"more"}
        assert gaps[0].first == 1
        assert gaps[-1].last >= 20
        with pytest.raises(DataLoss):
            await log.read(7)
        await log.trim(last - 1)
        status = await until(cluster.status, lambda status: not kinds(status))
        assert {node.replicas for node in status.nodes if node.id in gone} <= {0, 1}


async def old_replicas(cluster: Cluster) -> list[str]:
    lost = (each for each in (await cluster.status()).conditions if each.kind == "data-lost")
    return [each.help for each in lost if "old replica" in each.help]


def helps(status: ClusterStatus) -> str:
    return "; ".join(f"{each.text}: {each.help}" for each in status.conditions)


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_the_word_is_not_repeated_and_the_last_node_needs_another_one(
    tmp_path: Path, protocol: str
) -> None:
    local = LocalCluster(2, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", protocol=protocol, replicas=1, nodeset=None)
        await append(log, 3)
        (node,) = await nodes_of(log) if protocol != "copyset" else (1,)
        await local.stop_node(node)
        await give_up(cluster, node, MARK)
        with pytest.raises(InvalidArgument, match="nothing waits for what node"):
            await give_up(cluster, node, MARK)
        await cluster.remove_node(node, force=True)
        await until(cluster.status, lambda status: len(status.nodes) == 1)
        await log.append(b"more")


async def test_a_log_without_entries_goes_on_elsewhere(tmp_path: Path) -> None:
    local = LocalCluster(2, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=2)
        for node in (1, 2):
            await local.stop_node(node)
        for node in (1, 2):
            await give_up(cluster, node, REMOVE)
        for node in (3, 4):
            await local.start_node(node)
        values = await append(log, 5)
        assert await found(log, 5) == (values, [])
        status = await until(cluster.status, lambda s: {n.id for n in s.nodes} == {3, 4})
        assert "data-lost" not in kinds(status)


async def test_a_node_with_a_stream_that_lost_entries_can_be_drained(tmp_path: Path) -> None:
    local, half = LocalCluster(1, directory=tmp_path), 20
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        values = await append(log, half)
        await local.stop_node(1)
        shutil.copytree(tmp_path / "vsn-1", tmp_path / "copy")
        await local.start_node(1)
        await append(log, half)
        await local.stop_node(1)
        shutil.rmtree(tmp_path / "vsn-1")
        (tmp_path / "copy").rename(tmp_path / "vsn-1")
        for node in (1, 2):
            await local.start_node(node)
        await until(cluster.status, lambda status: "data-lost" in kinds(status))
        await cluster.drain_node(1)
        await until(cluster.status, lambda status: not replicas_on(status, (1,)))
        await local.stop_node(1)
        await cluster.remove_node(1)
        last = (await log.append(b"more")).position
        entries, gaps = await found(log, last)
        assert entries == values | {last: b"more"}
        assert [(gap.first, gap.last) for gap in gaps] == [(half + 1, 2 * half)]
