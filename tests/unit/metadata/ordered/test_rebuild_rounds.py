"""Every round log is lost; rounds are rebuilt from the nodes, or nothing is changed
(docs/design/metadata.md)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from node_services import ordered_on

import loomlog
from loomlog.errors import Corrupt
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.offline import embedded
from loomlog.metadata.offline.rebuild import Findings
from loomlog.metadata.ordered.rebuild import OrderedRebuild
from loomlog.metadata.ordered.records import StreamRecords
from loomlog.metadata.store.contract import StoredItem
from loomlog.testing import LocalCluster
from loomlog.types import NodeId, Position

PATIENCE_S = 30.0  # never waited for in full, unless something is broken
SOON_S = 1.0  # for nodes that do not come


async def findings_of(
    cluster: LocalCluster, directory: Path, *, without: tuple[NodeId, ...] = (), timeout_s: float
) -> Findings:
    async with (
        embedded.opened(str(directory / "vmr")) as store,
        OrderedRebuild.listening(store, cluster.address) as rebuild,
    ):
        found = await rebuild.examine(
            without=without, timeout_s=timeout_s, waiting=lambda missing: None
        )
        if found.certain:
            await rebuild.give_up(store, found.given_up)
            embedded.write_rounds(str(directory / "vmr"), found.records, found.epoch)
        return found


async def lose_rounds(cluster: LocalCluster, directory: Path) -> None:
    await cluster.stop_metadata()
    shutil.rmtree(directory / "vmr" / "rounds")
    with pytest.raises(Corrupt, match="holds no round log"):
        await cluster.start_metadata()
    shutil.rmtree(directory / "vmr" / "rounds")  # the attempt made an empty one


async def append(log: loomlog.Log, values: range) -> dict[bytes, Position]:
    entries = [str(value).encode() for value in values]
    return dict(zip(entries, await log.append_many(entries), strict=True))


async def written_beyond(cluster: LocalCluster, entries: int) -> None:
    """Wait until all replicas have this many entries that no round has reached."""
    streams = [held for node in cluster.nodes.values() for held in ordered_on(node).held.values()]
    replicas = [held.driver for held in streams]
    async with asyncio.timeout(PATIENCE_S):
        while any(r.core.report().uncommitted_llsn_length < entries for r in replicas):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def contents(directory: Path) -> dict[str, StoredItem]:
    async with embedded.opened(str(directory / "vmr")) as store:
        return await store.list("")


async def everything(log: loomlog.Log) -> dict[bytes, int]:
    tail = await log.tail()
    found = log.subscribe(start=1, stop=tail)
    return {entry.value: entry.position async for entry in found}


async def test_all_acknowledged_entries_are_where_they_were_and_appends_go_on(
    tmp_path: Path,
) -> None:
    cluster = LocalCluster(nodes=3, directory=tmp_path)
    async with cluster as client:
        logs = [await client.create_log(name, streams=3, replicas=2) for name in ("one", "another")]
        at: list[dict[bytes, Position]] = [{}, {}]
        for values in (range(10), range(10, 40), range(40, 41)):
            for number, log in enumerate(logs):
                at[number] |= await append(log, values)
        await lose_rounds(cluster, tmp_path)
        found = await findings_of(cluster, tmp_path, timeout_s=PATIENCE_S)
        assert found.certain
        assert {log.name: log.tail for log in found.logs} == {"one": 41, "another": 41}
        await cluster.start_metadata()
        async with asyncio.timeout(PATIENCE_S):
            for number, log in enumerate(logs):
                at[number] |= await append(log, range(41, 60))
                expected = {value: position.position for value, position in at[number].items()}
                assert await everything(log) == expected
                assert sorted(expected.values()) == list(range(1, 61))


async def test_nodes_that_were_started_again_are_enough_if_nothing_is_in_doubt(
    tmp_path: Path,
) -> None:
    cluster = LocalCluster(nodes=3, directory=tmp_path)
    async with cluster as client:
        log = await client.create_log("events", streams=2, replicas=3)
        at = await append(log, range(30))
        await lose_rounds(cluster, tmp_path)
        for node in (1, 2, 3):
            await cluster.stop_node(node)
        starting = [asyncio.ensure_future(cluster.start_node(node)) for node in (1, 2, 3)]
        found = await findings_of(cluster, tmp_path, timeout_s=PATIENCE_S)
        assert found.certain
        await asyncio.gather(*starting)
        await cluster.start_metadata()
        async with asyncio.timeout(PATIENCE_S):
            at |= await append(log, range(30, 40))
            expected = {value: position.position for value, position in at.items()}
            assert await everything(log) == expected


async def test_a_node_that_is_missing_is_waited_for_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    cluster = LocalCluster(nodes=3, directory=tmp_path)
    async with cluster as client:
        log = await client.create_log("events", streams=1, replicas=2)
        await append(log, range(30))
        (stream,) = (await log.describe()).streams
        away = stream.replicas[0].node
        await lose_rounds(cluster, tmp_path)
        await cluster.stop_node(away)
        found = await findings_of(cluster, tmp_path, timeout_s=SOON_S)
        assert not found.certain
        assert found.absent == {away: (stream.id,)}
        with pytest.raises(Corrupt, match="holds no round log"):
            await cluster.start_metadata()


async def test_a_node_that_is_lost_is_given_up_if_nothing_depends_on_it(tmp_path: Path) -> None:
    cluster = LocalCluster(nodes=3, directory=tmp_path)
    async with cluster as client:
        log = await client.create_log("events", streams=1, replicas=2)
        at = await append(log, range(30))
        (stream,) = (await log.describe()).streams
        away = stream.replicas[0].node
        await lose_rounds(cluster, tmp_path)
        await cluster.stop_node(away)
        found = await findings_of(cluster, tmp_path, without=(away,), timeout_s=PATIENCE_S)
        assert found.certain
        assert found.given_up == {away: (stream.id,)}
        await cluster.start_metadata()
        async with asyncio.timeout(PATIENCE_S):
            at |= await append(log, range(30, 40))
            expected = {value: position.position for value, position in at.items()}
            assert await everything(log) == expected
            (stream,) = (await log.describe()).streams
            assert away not in [replica.node for replica in stream.replicas]


async def test_appends_that_wait_get_their_answer_after_it(tmp_path: Path) -> None:
    """Positions that no known round has reached are decided again."""
    cluster = LocalCluster(nodes=2, directory=tmp_path)
    async with cluster as client:
        log = await client.create_log("events", streams=1, replicas=2)
        await append(log, range(30))
        await lose_rounds(cluster, tmp_path)
        waiting = asyncio.ensure_future(log.append(b"waits"))
        await written_beyond(cluster, 1)
        assert (await findings_of(cluster, tmp_path, timeout_s=PATIENCE_S)).certain
        await cluster.start_metadata()
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).position == 31


async def test_what_only_a_missing_node_may_know_is_never_guessed(tmp_path: Path) -> None:
    cluster = LocalCluster(nodes=2, directory=tmp_path)
    async with cluster as client:
        log = await client.create_log("events", streams=1, replicas=2)
        await append(log, range(30))
        await lose_rounds(cluster, tmp_path)
        waiting = asyncio.ensure_future(log.append(b"perhaps"))
        await written_beyond(cluster, 1)
        await cluster.stop_node(2)
        before = await contents(tmp_path)
        found = await findings_of(cluster, tmp_path, without=(2,), timeout_s=PATIENCE_S)
        waiting.cancel()
        assert not found.certain
        (doubt,) = found.logs[0].doubts
        assert doubt.text == (
            "LLSN 31 to 31 are written; whether they have positions above 30 is not known: "
            "node 2 did not answer, or has nothing of it"
        )
        assert await contents(tmp_path) == before
        with pytest.raises(Corrupt, match="holds no round log"):
            await cluster.start_metadata()


async def test_metadata_that_is_older_than_the_nodes_is_not_gone_on_with(tmp_path: Path) -> None:
    cluster = LocalCluster(nodes=2, directory=tmp_path)
    async with cluster as client:
        await client.create_log("old", streams=1, replicas=2)
        await cluster.stop_metadata()
        shutil.copytree(tmp_path / "vmr", tmp_path / "copy")
        await cluster.start_metadata()
        async with asyncio.timeout(PATIENCE_S):
            while not all(node.alive for node in (await client.status()).nodes):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await client.create_log("new", streams=1, replicas=2)
        await cluster.stop_metadata()
        shutil.rmtree(tmp_path / "vmr")
        shutil.copytree(tmp_path / "copy", tmp_path / "vmr")
        shutil.rmtree(tmp_path / "vmr" / "rounds")
        found = await findings_of(cluster, tmp_path, timeout_s=PATIENCE_S)
        assert not found.certain
        assert "the metadata ends with stream 1" in found.outdated


async def test_replicas_of_another_stream_of_that_number_are_no_witnesses(tmp_path: Path) -> None:
    cluster = LocalCluster(nodes=1, directory=tmp_path)
    async with cluster as client:
        log = await client.create_log("events", streams=1, replicas=1)
        await append(log, range(3))
        await lose_rounds(cluster, tmp_path)
        async with embedded.opened(str(tmp_path / "vmr")) as store:
            catalog = await Catalog.load(store, "local", str)
            await (await StreamRecords.load(store, catalog)).update(1, stamp=7)
        found = await findings_of(cluster, tmp_path, timeout_s=PATIENCE_S)
        assert not found.certain
