"""Blocks on disk: what survives restarts, kills and power losses, and the space that they take."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from memory_tables import MemoryTable
from write_once_rig import EPOCH, HERE, NODE, THERE, WriteOnceRig, batch

from loomlog.core.chained.chain import Extent, junk
from loomlog.core.chained.messages import (
    Acknowledge,
    Answer,
    Before,
    Check,
    Create,
    Fetch,
    Fetched,
    Found,
    List,
    Listed,
    Missing,
    Read,
    Remove,
    Request,
    Seal,
    Stored,
    Trim,
    TrimmedTo,
    Write,
)
from loomlog.core.chained.replica import Put, Standing
from loomlog.errors import Corrupt
from loomlog.limits import MIB
from loomlog.storage import rocks
from loomlog.storage.chained import block_files
from loomlog.storage.chained.block_table import BlockTable
from loomlog.storage.chained.rocks_table import RocksTable
from loomlog.storage.chained.write_once import WriteOnceStore
from loomlog.storage.disk import ThreadWorker


@pytest.fixture(params=["rocks", "memory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockTable]:
    opened: BlockTable
    opened = RocksTable(str(tmp_path / "db"), NODE) if request.param == "rocks" else MemoryTable()
    yield opened
    opened.close()


@pytest.fixture
def rig(table: BlockTable) -> WriteOnceRig:
    return WriteOnceRig(table).sealed()


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    table = RocksTable(path, NODE)
    rig = WriteOnceRig(table).sealed(HERE, THERE)
    large = batch(20, 2, sequence=2, content=bytes(100_000))
    rig.write(batch(1, 9), batch(10, 5), large, junk(30, 2))
    rig.ask(Trim(EPOCH, 12))
    table.close()
    again = WriteOnceRig(RocksTable(path, NODE))
    assert again.store.replicas == {HERE: Standing(EPOCH, 12, EPOCH), THERE: Standing(EPOCH)}
    assert again.ask(Fetch(EPOCH, 13, MIB)) == Fetched(
        [batch(10, 5), large, junk(30, 2)], more=False
    )
    assert again.ask(Read(EPOCH, 12)) == TrimmedTo(12)
    again.table.close()


def test_memory_loses_what_was_not_synced() -> None:
    table = MemoryTable()
    WriteOnceRig(table).sealed()
    careless = WriteOnceRig(table, sync=False)
    careless.write(batch(1))
    table.lose_power()
    assert careless.ask(Read(EPOCH, 1)) == Missing(0)
    WriteOnceRig(table).write(batch(1))
    table.lose_power()
    assert careless.ask(Read(EPOCH, 1)) == Found(batch(1))


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
WRITER = """
import sys
from write_once_rig import NODE, WriteOnceRig, batch
from loomlog.storage.chained.rocks_table import RocksTable
rig = WriteOnceRig(RocksTable(sys.argv[1], NODE)).sealed()
for first in range(1, 1 << 30):
    rig.write(batch(first, content=first.to_bytes(4) * int(sys.argv[2])))
    print(first, flush=True)
"""


@pytest.mark.parametrize("size", [5000, 50_000])  # in the table, and in files
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, size: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "db"), str(size // 4)],
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    with writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(30)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    acknowledged = sum(line.endswith(b"\n") for line in lines)
    assert acknowledged >= 30
    rig = WriteOnceRig(RocksTable(str(tmp_path / "db"), NODE))
    found = rig.ask(List(EPOCH, 1, 1 << 20))
    assert isinstance(found, Listed)
    assert len(found.extents) >= acknowledged
    for extent in found.extents:
        content = extent.first.to_bytes(4) * (size // 4)
        assert rig.ask(Read(EPOCH, extent.first)) == Found(batch(extent.first, content=content))
    rig.table.close()


@pytest.mark.parametrize("seed", range(5))
def test_both_tables_answer_alike(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_files, "LARGE_BYTES", 100)
    monkeypatch.setattr(block_files, "FILE_BYTES", 1000)
    random = Random(seed)
    rocks, memory = (
        WriteOnceRig(RocksTable(str(tmp_path / "db"), NODE)),
        WriteOnceRig(MemoryTable()),
    )
    rocks.sealed(), memory.sealed()
    makers: list[Callable[[], Request]] = [
        lambda: Write(
            EPOCH,
            batch(
                random.randint(1, 90),
                random.randint(1, 4),
                random.randint(1, 2),
                bytes(random.choice((5, 200))),
            ),
        ),
        lambda: Write(EPOCH, junk(random.randint(1, 90), random.randint(1, 4))),
        lambda: Read(EPOCH, random.randint(1, 99)),
        lambda: Before(EPOCH, random.randint(1, 99)),
        lambda: List(EPOCH, random.randint(1, 99), random.randint(1, 5)),
        lambda: Fetch(EPOCH, random.randint(1, 99), random.randint(1, 20)),
        lambda: Trim(EPOCH, random.randint(1, 40)) if random.random() < 0.05 else Check(EPOCH),
        lambda: Seal(EPOCH),
    ]
    for _ in range(500):
        request = random.choice(makers)()
        assert rocks.ask(request) == memory.ask(request), request
        if random.random() < 0.05:
            rocks.table.reclaim(HERE, memory.store.replicas[HERE].trimmed)
        if random.random() < 0.01:
            rocks.table.close()
            rocks = WriteOnceRig(RocksTable(str(tmp_path / "db"), NODE))
    rocks.table.close()


async def test_in_threads_of_its_own(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    commits, look_ups = ThreadWorker(loop, "commits"), ThreadWorker(loop, "look-ups")
    table = RocksTable(str(tmp_path / "db"), NODE)
    store = WriteOnceStore(table, commits, look_ups)

    async def ask(request: Request) -> Answer:
        answer: asyncio.Future[Answer] = loop.create_future()
        store.ask(HERE, request, answer.set_result)
        return await answer

    await ask(Create())
    await ask(Seal(EPOCH))
    blocks = [batch(first, sequence=first) for first in range(1, 200)]
    random = Random(1)
    random.shuffle(blocks)
    answers = await asyncio.gather(*(ask(Write(EPOCH, block)) for block in blocks))
    assert answers == [Stored()] * len(blocks)
    found = await asyncio.gather(*(ask(Read(EPOCH, block.first)) for block in blocks))
    assert found == [Found(block) for block in blocks]
    commits.close()
    look_ups.close()
    table.close()


class SlowSync:
    """A database whose disk takes its time to sync."""

    def __init__(self, db: Any) -> None:
        self.write, self.iter, self.close = db.write, db.iter, db.close
        self._flush_wal, self.latest_sequence_number = db.flush_wal, db.latest_sequence_number
        self.under_way, self.go_on = threading.Event(), threading.Event()

    def flush_wal(self, sync: bool) -> None:
        self.under_way.set()
        assert self.go_on.wait(10)
        self._flush_wal(sync)


def test_what_is_not_synced_yet_is_not_seen(tmp_path: Path) -> None:
    """A reader would carry it down the chain, and a power loss would take it away here."""
    table = RocksTable(str(tmp_path / "db"), NODE)
    WriteOnceRig(table).sealed()
    slow = SlowSync(table._db)
    table._db = table._mark._db = slow  # type: ignore[assignment]
    seen: list[Extent | None] = []
    put = [(HERE, Put(batch(1)))]
    committing = threading.Thread(target=lambda: table.commit(put, sync=True))
    looking = threading.Thread(target=lambda: seen.append(table.look(HERE).last()))
    committing.start()
    assert slow.under_way.wait(10)
    looking.start()
    looking.join(0.05)
    assert seen == []
    slow.go_on.set()
    committing.join()
    looking.join()
    assert seen == [Extent(1, 1)]
    table.close()


def test_a_look_does_not_see_what_comes_later(tmp_path: Path) -> None:
    table = RocksTable(str(tmp_path / "db"), NODE)
    rig = WriteOnceRig(table).sealed()
    rig.write(batch(1))
    before = table.look(HERE)
    rig.write(batch(2))
    rig.ask(Trim(EPOCH, 1))
    assert before.scan(1, 9) == [Extent(1, 1)]
    assert before.load(Extent(1, 1)) == batch(1)
    assert table.look(HERE).scan(1, 9) == [Extent(2, 1)]
    del before
    table.close()


CARELESS = """
import os, sys
from write_once_rig import NODE, WriteOnceRig, batch
from loomlog.storage.chained.rocks_table import RocksTable
rig = WriteOnceRig(RocksTable(sys.argv[1], NODE), sync=False).sealed()
rig.write(batch(1))
os._exit(0)  # without a close
"""


def test_what_a_killed_process_left_is_durable_when_it_is_seen_again(tmp_path: Path) -> None:
    """A reader carries down the chain what it finds: a power loss must not take it back here."""
    path = tmp_path / "db"
    subprocess.run([sys.executable, "-c", CARELESS, str(path)], env=ENVIRONMENT, check=True)
    assert not list(path.glob("*.sst"))  # it is in the log only, which nobody has synced
    rig = WriteOnceRig(RocksTable(str(path), NODE))
    assert list(path.glob("*.sst"))  # RocksDB syncs these when it makes them
    assert rig.ask(Read(EPOCH, 1)) == Found(batch(1))
    rig.table.close()


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


# small batches, those in files of RocksDB, and those in our own
@pytest.mark.parametrize("size", [1000, 10_000, 50_000])
def test_the_space_of_what_was_trimmed_is_freed(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_files, "FILE_BYTES", MIB)
    path = tmp_path / "db"
    rig = WriteOnceRig(RocksTable(str(path), NODE)).sealed(HERE, THERE)
    blocks = [batch(first, content=os.urandom(size)) for first in range(1, 1001)]
    rig.write(*blocks)
    rig.ask(Trim(EPOCH, 900))
    assert size_of(path) >= 1000 * size
    rig.table.reclaim(HERE, 900)
    assert size_of(path) < 300 * size
    assert rig.ask(Read(EPOCH, 901)) == Found(blocks[900])
    rig.ask(Remove())
    rig.table.reclaim(HERE, 1000)
    assert size_of(path) < 50 * size + MIB
    rig.table.close()


def test_a_walk_over_blocks_does_not_read_their_batches(tmp_path: Path) -> None:
    table = RocksTable(str(tmp_path / "db"), NODE)
    rig = WriteOnceRig(table).sealed()
    rig.write(*(batch(first, content=bytes(100_000)) for first in range(1, 101)))
    table.close()
    rig = WriteOnceRig(RocksTable(str(tmp_path / "db"), NODE))
    before = bytes_read()
    found = rig.ask(List(EPOCH, 1, 1000))
    assert isinstance(found, Listed)
    assert len(found.extents) == 100
    assert bytes_read() - before < MIB
    rig.table.close()


def bytes_read() -> int:
    """Return how much this process has read so far, from wherever."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])


def test_what_writers_told_survives_a_restart(tmp_path: Path) -> None:
    table = RocksTable(str(tmp_path / "db"), NODE)
    rig = WriteOnceRig(table).sealed()
    rig.write(batch(1), batch(2)._replace(acknowledged=(1,)))
    rig.ask(Acknowledge(EPOCH, (2,)))
    table.close()
    table = RocksTable(str(tmp_path / "db"), NODE)
    listed = WriteOnceRig(table).ask(List(EPOCH, 1, 9, with_acknowledged=True))
    assert listed == Listed([Extent(1, 1), Extent(2, 1)], more=False, acknowledged=(1, 2))
    table.close()


@pytest.mark.parametrize("size", [0, 11, 13, 19])
def test_a_row_of_no_possible_length_is_damage(tmp_path: Path, size: int) -> None:
    table = RocksTable(str(tmp_path / "db"), NODE)
    rig = WriteOnceRig(table).sealed()
    rig.write(batch(1))
    [key] = [key for key, _ in rocks.Cursor(table._db).rows(b"E")]
    table._db[key] = bytes(size)
    with pytest.raises(Corrupt):
        table.look(HERE).acknowledged_in(Extent(1, 1))
    with pytest.raises(Corrupt):
        table.look(HERE).size_of(Extent(1, 1))
    table.close()
