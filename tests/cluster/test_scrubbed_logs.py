"""Operators can have all copies of a log checked at once, in the same way for every protocol.
Damaged or missing copies are repaired from other nodes."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from node_services import copyset_on
from poll import until

from loomlog import Change, Cluster
from loomlog.core.copyset.storage import Erase
from loomlog.errors import DataLoss
from loomlog.testing import LocalCluster

pytestmark = pytest.mark.timeout(120)

ENTRIES = 6
SIZE = 100_000


def flip(directory: Path, value: bytes) -> None:
    """Flip a bit of a value wherever it is in the files of a node, which goes on: an entry that was
    sent twice may be there twice."""
    found = 0
    for path in [path for path in directory.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        at = -1
        while (at := content.find(value[:100], at + 1)) >= 0:
            found += 1
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([content[at] ^ 1]))
    assert found


async def scrubbed(cluster: Cluster, log: str) -> Change:
    await cluster.scrub_log(log)
    while True:
        change = await cluster.scrub_log(log, tell_only=True)
        if all(scrub.finished for scrub in change.scrubs):
            return change
        await asyncio.sleep(0.02)


async def test_damaged_and_missing_copies_are_repaired_at_once(tmp_path: Path) -> None:
    local = LocalCluster(nodes=3, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(90):
        for protocol in ("ordered", "chained", "copyset"):
            log = await cluster.create_log(protocol, protocol=protocol, replicas=3)
            written = [b"%07d" % number + os.urandom(SIZE) for number in range(ENTRIES)]
            positions = [(await log.append(value)).position for value in written]
            flip(tmp_path / "vsn-2", written[3])
            missing = 0
            if protocol == "copyset":
                missing = vanish(local, 3, positions[1])
            change = await scrubbed(cluster, protocol)
            assert [scrub.node for scrub in change.scrubs] == [1, 2, 3]
            assert not any(scrub.error for scrub in change.scrubs), change
            assert [scrub.corrupt_batches for scrub in change.scrubs] == [0, 1, 0]
            assert sum(scrub.missing_copies for scrub in change.scrubs) == missing
            assert sum(scrub.repaired_batches for scrub in change.scrubs) == 1 + missing
            again = await scrubbed(cluster, protocol)
            assert "0 corrupt batches and 0 missing copies found" in again.done
            assert all(scrub.checked_bytes >= ENTRIES * SIZE for scrub in again.scrubs)
            found = [entry.value async for entry in log.subscribe(positions[0], positions[-1])]
            assert found == written


def vanish(local: LocalCluster, node: int, position: int) -> int:
    """Delete a copy of a node behind its back."""
    [shard] = copyset_on(local.nodes[node])._shards
    store = shard.volume.store
    assert store is not None
    [log] = store.logs()
    store._table.commit([(log, Erase(position, position))], sync=False)
    return 1


@pytest.mark.parametrize(
    ("protocol", "directory"),
    [("ordered", "lsid=*"), ("chained", "chains"), ("copyset", "logs")],
)
async def test_a_replica_whose_directory_is_gone_is_found_and_made_again(
    protocol: str, directory: str, tmp_path: Path
) -> None:
    local = LocalCluster(nodes=3, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(90):
        log = await cluster.create_log("events", protocol=protocol, replicas=3)
        written = [os.urandom(SIZE) for _ in range(ENTRIES)]
        positions = [(await log.append(value)).position for value in written]
        [gone] = (tmp_path / "vsn-2" / "cid=local" / "snid=2").glob(directory)
        shutil.rmtree(gone)
        by_node = {scrub.node: scrub for scrub in (await scrubbed(cluster, "events")).scrubs}
        assert by_node[2].missing_copies == by_node[2].repaired_batches == 1
        assert not by_node[2].error
        await until(cluster.check_nodes, lambda outage: not outage.affected)
        await local.stop_node(1)
        await local.stop_node(3)
        assert [(await log.read(position)).value for position in positions] == written


async def test_what_nobody_can_repair_or_reach_is_said(tmp_path: Path) -> None:
    local = LocalCluster(nodes=3, directory=tmp_path, failure_detection_s=20.0)
    async with local as cluster, asyncio.timeout(90):
        log = await cluster.create_log("events", protocol="copyset", replicas=3)
        value = os.urandom(SIZE)
        position = (await log.append(value)).position
        for node in (1, 2, 3):
            flip(tmp_path / f"vsn-{node}", value)
        by_node = {scrub.node: scrub for scrub in (await scrubbed(cluster, "events")).scrubs}
        assert "e1n1 of loglet 1 is broken and no other node has it" in by_node[1].error
        assert by_node[1].corrupt_batches == 1 > by_node[1].repaired_batches

        async def problems() -> list[str]:
            listed = (await cluster.status()).conditions
            return [each.kind for each in listed if each.severity == "problem"]

        assert await until(problems, lambda kinds: len(kinds) == 3) == ["data-lost"] * 3
        with pytest.raises(DataLoss):
            await log.read(position)
        await local.stop_node(3)
        by_node = {scrub.node: scrub for scrub in (await cluster.scrub_log("events")).scrubs}
        assert by_node[3].error
        assert not by_node[3].finished
