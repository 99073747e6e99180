"""A damaged disk under a chained log: the chain continues with what is sound, and becomes whole."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest
from node_services import chained_on
from poll import until

from loomlog.client.log import Log
from loomlog.core.copyset.record import lsn_words
from loomlog.errors import DataLoss
from loomlog.testing import LocalCluster
from loomlog.types import Gap

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
    """Return the nodes of the log's chain, head first."""
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


def flip(chains: Path, value: bytes) -> None:
    """Flip a bit of one entry, wherever it stands: it is stored again if that took long."""
    [file] = chains.glob("batches/*/*")
    content = bytearray(file.read_bytes())
    places = [found.start() for found in re.finditer(re.escape(value[:100]), content)]
    assert places
    for at in places:
        content[at] ^= 1
    file.write_bytes(content)


async def damaged_on(local: LocalCluster, tmp_path: Path, log: Log, *entries: set[int]) -> None:
    """Append entries; flip bits of these on node 1, 2, ..."""
    written = [b"%07d" % number + os.urandom(SIZE) for number in range(ENTRIES)]
    for value in written:
        await log.append(value)
    nodes = range(1, len(entries) + 1)
    for node in nodes:
        await local.stop_node(node)
    for node in nodes:
        for entry in entries[node - 1]:
            flip(tmp_path / f"vsn-{node}/cid=local/snid={node}/chains", written[entry])
        await local.start_node(node)


def numbers(values: list[bytes]) -> list[int]:
    return [int(value[:7]) for value in values]


async def test_entries_that_one_replica_has_intact_are_read(tmp_path: Path) -> None:
    local = LocalCluster(nodes=2, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="chained", replicas=2)
        await damaged_on(local, tmp_path, log, {2, 3}, {7})
        found = [entry.value async for entry in log.subscribe(1, ENTRIES)]
        assert numbers(found) == list(range(ENTRIES))
        while len(await chain_of(log)) < 2:
            pass
        assert (await log.read(3)).value[:7] == b"%07d" % 2
        assert (await log.read(8)).value[:7] == b"%07d" % 7
        [stream] = (await log.describe()).streams
        assert "lost" not in stream.condition


async def test_an_entry_that_is_damaged_everywhere_is_lost_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = LocalCluster(nodes=2, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="chained", replicas=2)
        await damaged_on(local, tmp_path, log, {2, 5}, {5, 7})
        files = list(tmp_path.glob("vsn-*/**/chains/batches/*/*"))
        damaged = {path.relative_to(tmp_path): path.read_bytes() for path in files}
        found = [entry async for entry in log.subscribe(1, ENTRIES, gaps=True)]
        gaps = [entry for entry in found if isinstance(entry, Gap)]
        assert gaps == [Gap(6, 6, "dataloss")]
        values = [entry.value for entry in found if not isinstance(entry, Gap)]
        assert numbers(values) == [number for number in range(ENTRIES) if number != 5]
        with pytest.raises(DataLoss, match="continue at 7"):
            await log.read(6)
        [stream] = (await log.describe()).streams
        assert "chain 0 lost position 6" in stream.condition
        assert caplog.text.count("cannot be read") <= 2 * 2  # the node and the vmr, once for each
        while len(await chain_of(log)) < 2:
            pass
        last = (await log.append(b"and on")).position
        assert last > ENTRIES

        def kept() -> list[int]:
            """Return how many replicas each node has that are not in the chain."""
            return [len(chained_on(node)._volumes.replicas) - 1 for node in local.nodes.values()]

        assert kept() == [1, 1], "the damaged ones"
        for name, content in damaged.items():
            assert (tmp_path / name).read_bytes() == content
        await log.trim(last - 1)
        await until(lambda: kept() == [0, 0])


async def without_files(
    local: LocalCluster, tmp_path: Path, log: Log, store: str, *nodes: int
) -> list[int]:
    """Append entries; remove the files of large values on these nodes. Return the positions."""
    values = [b"%07d" % number + os.urandom(SIZE) for number in range(ENTRIES)]
    positions = [(await log.append(value)).position for value in values]
    await asyncio.gather(*map(local.stop_node, nodes))
    for node in nodes:
        batches = tmp_path / f"vsn-{node}/cid=local/snid={node}/{store}/batches"
        assert list(batches.glob("*/*"))
        shutil.rmtree(batches)
    await asyncio.gather(*map(local.start_node, nodes))
    return positions


STORES = pytest.mark.parametrize(
    ("protocol", "store"), [("chained", "chains"), ("copyset", "logs")]
)


@STORES
async def test_files_that_are_missing_on_one_node_are_restored(
    tmp_path: Path, protocol: str, store: str
) -> None:
    local = LocalCluster(nodes=2, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol=protocol, replicas=2)
        positions = await without_files(local, tmp_path, log, store, 2)
        found = [entry.value async for entry in log.subscribe(positions[0], positions[-1])]
        assert numbers(found) == list(range(ENTRIES))
        await log.append(b"and on")
        restored = tmp_path / f"vsn-2/cid=local/snid=2/{store}/batches"
        await until(lambda: len(b"".join(f.read_bytes() for f in restored.glob("*/*"))) > SIZE)


@STORES
async def test_files_that_are_missing_on_all_nodes_are_lost(
    tmp_path: Path, protocol: str, store: str
) -> None:
    local = LocalCluster(nodes=2, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol=protocol, replicas=2)
        small = (await log.append(b"small")).position
        positions = await without_files(local, tmp_path, log, store, 1, 2)
        last = (await log.append(b"and on")).position
        assert last > positions[-1]
        found = [entry async for entry in log.subscribe(small, last, gaps=True)]
        values = [entry.value for entry in found if not isinstance(entry, Gap)]
        assert values == [b"small", b"and on"]
        lost = [gap for gap in found if isinstance(gap, Gap) and gap.kind == "dataloss"]
        covered = {p for gap in lost for p in range(gap.first, gap.last + 1)}
        assert covered.issuperset(positions)
        with pytest.raises(DataLoss):
            await log.read(positions[0])
        await until(
            cluster.status, lambda status: "data-lost" in {c.kind for c in status.conditions}
        )


async def test_chains_that_were_moved_away_are_restored_from_those_that_left(
    tmp_path: Path,
) -> None:
    """The last node of a chain that is too short for appends loses it, as its condition advises."""
    local = LocalCluster(nodes=3, directory=tmp_path, failure_detection_s=0.5)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="chained", replicas=3)
        written = [b"%d" % number for number in range(ENTRIES)]
        for value in written:
            await log.append(value)
        *others, last = await chain_of(log)
        for node in others:
            await local.stop_node(node)
        while await chain_of(log) != [last]:
            pass
        await local.stop_node(last)
        (tmp_path / f"vsn-{last}/cid=local/snid={last}/chains").rename(tmp_path / "away")
        for node in (*others, last):
            await local.start_node(node)
        found = [entry.value async for entry in log.subscribe(1, ENTRIES)]
        assert found == written
        assert (await log.append(b"and on")).position > ENTRIES


async def test_a_node_that_met_a_damaged_copy_says_so(tmp_path: Path) -> None:
    local = LocalCluster(nodes=2, directory=tmp_path)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="copyset", replicas=2)
        value = os.urandom(SIZE)
        position = (await log.append(value)).position
        for node in (1, 2):
            await local.stop_node(node)
        for node in (1, 2):  # else one of them is mended by the other
            flip(tmp_path / f"vsn-{node}/cid=local/snid={node}/logs", value)
            await local.start_node(node)
        found = [entry async for entry in log.subscribe(position, position, gaps=True)]
        assert found == [Gap(position, position, "dataloss")]
        where = f"({lsn_words(position)} of loglet"
        for node in (0, 1):  # one that has just started may have other conditions, too
            while not any(  # noqa: ASYNC110 - nobody tells
                "1 damaged copies" in words and where in words
                for words in (await cluster.status()).nodes[node].conditions
            ):
                await asyncio.sleep(0.02)


async def test_copies_that_readers_meet_are_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="loomlog")
    local = LocalCluster(nodes=3, directory=tmp_path)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="copyset", replicas=3)
        written = [b"%07d" % number + os.urandom(SIZE) for number in range(ENTRIES)]
        positions = [(await log.append(value)).position for value in written]
        for node in (1, 2):
            await local.stop_node(node)
            for value in written:
                flip(tmp_path / f"vsn-{node}/cid=local/snid={node}/logs", value)
            await local.start_node(node)
        found = [entry.value async for entry in log.subscribe(positions[0], positions[-1])]
        assert found == written
        met = set(re.findall(r"the copy at (\w+) is damaged", caplog.text))
        assert met
        while met != set(re.findall(r"the copy at (\w+) is mended", caplog.text)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        while any(node.conditions for node in (await cluster.status()).nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        mended = [v for v, p in zip(written, positions, strict=True) if lsn_words(p) in met]
        contents = [
            b"".join(f.read_bytes() for f in sorted(tmp_path.glob(f"vsn-{node}/**/batches/*/*")))
            for node in (1, 2)
        ]
        assert all(any(value in content for content in contents) for value in mended)
