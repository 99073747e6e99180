"""The stores of all nodes are gone, or their write-ahead logs are cut off in the middle: what was
acknowledged is read, or reported as lost, and no position is given out again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_rig import Up, loom_up
from poll import until

from loomlog import connect
from loomlog.types import Gap

pytestmark = pytest.mark.timeout(120)
NODES = 3
ENTRIES = 60


def stores(data: Path, name: str) -> Iterator[Path]:
    """Return the stores of the nodes that have one."""
    for node in range(1, NODES + 1):
        yield from data.glob(f"vsn-{node}/cid=local/snid={node}/{name}")


def cut(store: Path, part: float) -> None:
    """Truncate the log with the entries."""
    log = max(store.glob("*.log"), key=lambda log: log.stat().st_size)
    size = log.stat().st_size
    assert size > ENTRIES
    os.truncate(log, int(size * part))


def kill(up: Up) -> None:
    """Kill all storage nodes, and wait until they are gone."""
    nodes = [pid for name, pid in up.pids.items() if name.startswith("vsn")]
    up.process.send_signal(signal.SIGSTOP)  # so that it does not stop the others properly
    for pid in nodes:
        os.kill(pid, signal.SIGKILL)
    while any(is_running(pid) for pid in nodes):
        time.sleep(0.01)
    up.process.send_signal(signal.SIGCONT)


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def write(address: str, protocol: str, replicas: int) -> dict[int, bytes]:
    """Return the acknowledged values by position."""
    async with await connect(address) as cluster:
        log = await cluster.create_log("events", protocol=protocol, replicas=replicas)
        values = [b"<entry %07d>" % number for number in range(ENTRIES)]
        return {(await log.append(value)).position: value for value in values}


async def read(address: str, last: int) -> tuple[dict[int, bytes], set[int]]:
    """Return what is delivered, and the positions that are reported as lost."""
    values, lost = {}, set[int]()
    async with await connect(address) as cluster, asyncio.timeout(40):
        async for item in cluster.log("events").subscribe(1, last, gaps=True):
            if not isinstance(item, Gap):
                values[item.position] = item.value
            elif item.kind == "dataloss":
                lost.update(range(item.first, min(item.last, last) + 1))
    return values, lost


async def until_problem(address: str, text: str) -> None:
    async with await connect(address) as cluster:
        await until(
            cluster.status, lambda status: any(text in each.text for each in status.conditions)
        )


async def end_loss(address: str) -> None:
    """Do what the condition says, which ends it."""
    async with await connect(address) as cluster:

        async def helps() -> list[str]:
            found = (await cluster.status()).conditions
            return [each.help for each in found if each.kind == "data-lost"]

        assert all("`loom log trim events POSITION`" in text for text in await until(helps))
        log = cluster.log("events")
        await log.trim(await log.tail())
        await until(helps, lambda found: not found)


async def append(address: str) -> int:
    async with await connect(address) as cluster:
        return (await cluster.log("events").append(b"and on")).position


STORES = pytest.mark.parametrize(("protocol", "name"), [("chained", "chains"), ("copyset", "logs")])


@STORES
@pytest.mark.parametrize("replicas", [2, 3])
def test_logs_of_killed_nodes_are_cut(
    tmp_path: Path, protocol: str, name: str, replicas: int
) -> None:
    with loom_up(tmp_path) as up:
        written = asyncio.run(write(up.mr, protocol, replicas))
        kill(up)
        for store in stores(tmp_path, name):
            cut(store, 0.5)
    last = max(written)
    with loom_up(tmp_path) as up:
        found, lost = asyncio.run(read(up.mr, last))
        assert 0 < len(found) < ENTRIES
        assert found == {position: written[position] for position in found}
        assert written.keys() - found.keys() <= lost
        assert not lost & found.keys()
        assert asyncio.run(append(up.mr)) > last


@STORES
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_stores_of_stopped_nodes_are_gone(
    tmp_path: Path, protocol: str, name: str, replicas: int
) -> None:
    with loom_up(tmp_path) as up:
        written = asyncio.run(write(up.mr, protocol, replicas))
    for store in stores(tmp_path, name):
        shutil.rmtree(store)
    last = max(written)
    with loom_up(tmp_path) as up:
        found, lost = asyncio.run(read(up.mr, last))
        assert not found
        assert lost.issuperset(written)
        assert asyncio.run(append(up.mr)) > last
    with loom_up(tmp_path) as up:
        assert asyncio.run(read(up.mr, last)) == ({}, lost)
        assert asyncio.run(append(up.mr)) > last
        asyncio.run(end_loss(up.mr))


@STORES
def test_emptied_stores_are_not_taken_for_new_ones(
    tmp_path: Path, protocol: str, name: str
) -> None:
    """As if file systems were mounted there, and are not any more."""
    with loom_up(tmp_path) as up:
        written = asyncio.run(write(up.mr, protocol, 2))
    for store in stores(tmp_path, name):
        store.rename(f"{store}.elsewhere")
        store.mkdir()
    with loom_up(tmp_path) as up:
        asyncio.run(until_problem(up.mr, "CURRENT is missing"))
    for store in stores(tmp_path, name):
        store.rmdir()  # nothing was made there
        Path(f"{store}.elsewhere").rename(store)
    with loom_up(tmp_path) as up:
        assert asyncio.run(read(up.mr, max(written))) == (written, set())
        assert asyncio.run(append(up.mr)) > max(written)
