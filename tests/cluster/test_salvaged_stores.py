"""Databases of all nodes are damaged: what any node can still read is read, and only the rest is
lost."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from threading import Event

import pytest
from poll import until

from loomlog import Cluster
from loomlog.client.log import Log
from loomlog.core.copyset import log_state
from loomlog.metadata.copyset.keeper import CopysetKeeper
from loomlog.node.copyset import logs_volume
from loomlog.protocol_names import COPYSET
from loomlog.storage.files import Files
from loomlog.storage.logsdb.salvage import salvage_logs
from loomlog.testing import LocalCluster
from loomlog.types import Gap

NODES = 3
ENTRIES = 60


def store_of(directory: Path, node: int, name: str) -> Path:
    return directory / f"vsn-{node}/cid=local/snid={node}/{name}"


def flip(store: Path, *values: bytes) -> None:
    """Flip a bit of these values, all of which are in the write-ahead log."""
    log = max(store.glob("*.log"), key=lambda log: log.stat().st_size)
    content = bytearray(log.read_bytes())
    for value in values:
        content[content.index(value)] ^= 1
    log.write_bytes(content)


def content_of(store: Path) -> bytes:
    return b"".join(log.read_bytes() for log in store.glob("*.log"))


def flip_table(store: Path, place: float) -> None:
    table = max(store.glob("*.sst"), key=lambda table: table.stat().st_size)
    content = bytearray(table.read_bytes())
    content[int(len(content) * place)] ^= 1
    table.write_bytes(content)


async def read_all(log: Log, last: int) -> tuple[list[bytes], list[Gap]]:
    found = [entry async for entry in log.subscribe(1, last, gaps=True)]
    gaps = [entry for entry in found if isinstance(entry, Gap) and entry.kind == "dataloss"]
    return [entry.value for entry in found if not isinstance(entry, Gap)], gaps


async def lost(cluster: Cluster) -> list[str]:
    """Return what the status says about losses."""
    conditions = (await cluster.status()).conditions
    return [condition.text for condition in conditions if condition.kind == "data-lost"]


async def kill_all(local: LocalCluster, directory: Path, name: str) -> dict[int, Path]:
    """Stop all nodes; return their stores, as they are if they are killed."""
    stores = {node: store_of(directory, node, name) for node in range(1, NODES + 1)}
    for node, store in stores.items():
        shutil.copytree(store, directory / f"killed-{node}")
    for node in stores:
        await local.stop_node(node)
    for node, store in stores.items():
        shutil.rmtree(store)
        (directory / f"killed-{node}").rename(store)
    return stores


@pytest.mark.parametrize(("protocol", "name"), [("chained", "chains"), ("copyset", "logs")])
async def test_logs_of_all_nodes_are_damaged(tmp_path: Path, protocol: str, name: str) -> None:
    """Different entries on each node, and one on all of them."""
    local = LocalCluster(nodes=NODES, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol=protocol, replicas=NODES)
        written = [b"<entry %07d>" % number for number in range(ENTRIES)]
        positions = [(await log.append(value)).position for value in written]
        killed = await kill_all(local, tmp_path, name)
        for node, store in killed.items():
            flip(store, written[10 * node], written[10 * node + 1], written[50])
        for node in killed:
            await local.start_node(node)
        values, gaps = await read_all(log, positions[-1])
        assert values == [value for value in written if value != written[50]]
        assert [(gap.first, gap.last) for gap in gaps] == [(positions[50], positions[50])]
        if protocol == "chained":
            assert await lost(cluster) == [f"chain 0 lost position {positions[50]}"]
        await log.append(b"and on")
        for node in killed:
            aside = store_of(tmp_path, node, f"{name}.damaged")
            assert aside.exists(), "the damaged store is set aside"


def keeper_of(local: LocalCluster) -> CopysetKeeper:
    assert local.metadata is not None
    assert local.metadata.term is not None
    keeper = local.metadata.term.keepers[COPYSET]
    assert isinstance(keeper, CopysetKeeper)
    return keeper


async def take_epoch(local: LocalCluster, node: int) -> int:
    """Take an epoch of the only log for a node that never learns of it."""
    epochs = keeper_of(local).epochs
    [record] = epochs.records
    taken = await epochs.take_epoch(record.loglet, node, record.state.epoch)
    assert taken is not None
    return taken.state.epoch


def lost_through(local: LocalCluster, node: int) -> int:
    """Return up to which epoch of the only log a node lost copies."""
    epochs = keeper_of(local).epochs
    [record] = epochs.records
    return epochs.nodes.lost_through(node, record.loglet)


async def test_an_epoch_that_begins_while_stores_are_salvaged_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the first epoch is unknown: its sequencer was killed, and two of three stores,
    which may have had both copies of something, are damaged."""
    begun = Event()

    def salvage(files: Files, path: str) -> str:
        begun.wait()
        return salvage_logs(files, path)

    monkeypatch.setattr(logs_volume, "_salvage", salvage)
    monkeypatch.setattr(log_state, "finish", lambda state, request: state)  # killed: none finishes
    local = LocalCluster(nodes=NODES, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="copyset", replicas=2)
        written = [b"<entry %07d>" % number for number in range(ENTRIES)]
        for value in written:
            await log.append(value)
        killed = await kill_all(local, tmp_path, "logs")
        for node, values in ((1, written), (2, written[::-1])):
            flip(killed[node], next(filter(content_of(killed[node]).count, values)))
        try:
            for node in killed:
                await local.start_node(node)
            epoch = await take_epoch(local, 3)
        finally:
            begun.set()
        await until(lambda: min(lost_through(local, 1), lost_through(local, 2)) > 0)
        assert max(lost_through(local, 1), lost_through(local, 2)) < epoch
        last = (await log.append(b"and on")).position
        assert last >> 32 > epoch
        values, gaps = await read_all(log, last)
        assert values == [*written, b"and on"]
        assert [(gap.first >> 32, gap.exact) for gap in gaps] == [(1, False)]


@pytest.mark.parametrize(("protocol", "name"), [("chained", "chains"), ("copyset", "logs")])
async def test_tables_of_all_nodes_are_damaged(tmp_path: Path, protocol: str, name: str) -> None:
    """The damage is in different places: some is met when a node starts, some only by readers."""
    local = LocalCluster(nodes=NODES, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol=protocol, replicas=NODES)
        written = [b"<entry %07d>" % number + bytes(200) for number in range(ENTRIES * 3)]
        for value in written:
            await log.append(value)
        last = await log.tail()
        nodes = range(1, NODES + 1)
        for is_damaged in (False, True):  # what is in a log when a node starts is in a table then
            for node in nodes:
                await local.stop_node(node)
            for node in nodes:
                if is_damaged:
                    flip_table(store_of(tmp_path, node, name), node / (NODES + 1))
                await local.start_node(node)
        values, gaps = await read_all(log, last)
        assert (values, gaps) == (written, [])
        assert await lost(cluster) == []
        await log.append(b"and on")
