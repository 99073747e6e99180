"""Salvage of damaged stores: no more is lost than what was damaged."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hand_worker import HandWorker
from logsdb_rig import LOG, LogsRig, record

from loomlog.core.chained.chain import Block, Replica
from loomlog.core.chained.messages import Fetch, Fetched
from loomlog.core.chained.replica import Put, Standing, look_up
from loomlog.core.copyset.messages import Clean, Delivered, EpochEnd, Read, Release, Seal, Trim
from loomlog.core.copyset.record import LSN_MAX, Kind, make
from loomlog.errors import Corrupt
from loomlog.limits import MIB
from loomlog.storage import rocks, set_aside
from loomlog.storage.chained.block_files import LARGE_BYTES
from loomlog.storage.chained.rocks_table import RocksTable, salvage_table
from loomlog.storage.chained.write_once import WriteOnceStore
from loomlog.storage.disk import RealFiles
from loomlog.storage.files import Files, closed_on_failure
from loomlog.storage.logsdb import rows
from loomlog.storage.logsdb.rocks_logs import RocksLogs, options
from loomlog.storage.logsdb.rows import PartitionSettings
from loomlog.storage.logsdb.salvage import put_in_order, salvage_logs
from loomlog.storage.salvage import Database, salvage

NODE, EPOCH = 7, 3
REPLICA = Replica(NODE, 1, 0, 5)
ITEMS = 120
BLOCK_BYTES = 32 * 1024  # of a write-ahead log
FILES = RealFiles()


class Store(NamedTuple):
    """A kind of store, whose items have numbers and contents."""

    make: Callable[[Path], None]  # every item in a write of its own
    read: Callable[[Path], dict[int, bytes]]  # raises Corrupt if it cannot be opened or read
    salvage: Callable[[Files, str], str]


def contents() -> Iterator[tuple[int, bytes]]:
    """Yield contents that go to rows, to blobs, and to files of our own."""
    rng = random.Random(1)
    for number in range(1, ITEMS + 1):
        yield number, rng.randbytes(rng.choice((20, 700, 1500, 3000, 5000, LARGE_BYTES)))


def make_chains(path: Path) -> None:
    table = RocksTable(str(path), NODE)
    table.commit([(REPLICA, Standing(EPOCH))], sync=True)
    for number, content in contents():
        table.commit([(REPLICA, Put(Block(number, 1, 9, number, content)))], sync=True)
    shutil.copytree(path, path.with_name("copy"))  # as it is when the process is killed
    table.close()


def read_chains(path: Path) -> dict[int, bytes]:
    table = RocksTable(str(path), NODE)
    with closed_on_failure(table):
        WriteOnceStore(table, HandWorker(), HandWorker())
        found: dict[int, bytes] = {}
        position = 1
        while True:
            blocks = table.look(REPLICA)
            standing = blocks.standing
            if standing is None:
                break
            fetch = Fetch(standing.epoch, position, MIB, salvage=True)
            fetched = look_up(fetch, standing, blocks)
            assert isinstance(fetched, Fetched)
            found |= {block.first: bytes(block.batch) for block in fetched.blocks}
            if not fetched.more:
                break
            position = fetched.blocks[-1].end
    table.close()
    return found


def make_logs(path: Path) -> None:
    rig = LogsRig(RocksLogs(str(path), 0))
    for number, content in contents():
        rig.put(record(number, batch=content))
    shutil.copytree(path, path.with_name("copy"))
    rig.table.close()


def read_logs(path: Path) -> dict[int, bytes]:
    table = RocksLogs(str(path), 0)
    with closed_on_failure(table):
        log, found = table.look(LOG), {}
        for head in list(log.scan(1, LSN_MAX)):
            try:
                found[head.offset] = bytes(log.load(head).batch)
            except Corrupt:
                pass  # another shard has it
    table.close()
    return found


STORES = {
    "chains": Store(make_chains, read_chains, salvage_table),
    "logs": Store(make_logs, read_logs, salvage_logs),
}


class Sample(NamedTuple):
    """A store left by a killed process, and its content."""

    store: Store
    killed: Path  # all rows are in the write-ahead log
    stopped: Path  # all rows are in tables
    items: dict[int, bytes]


@pytest.fixture(scope="module", params=list(STORES))
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    store, path = STORES[request.param], tmp_path_factory.mktemp("store")
    store.make(path / "db")
    shutil.copytree(path / "copy", path / "stopped")
    items = store.read(path / "stopped")
    assert items == dict(contents())
    store.read(path / "stopped")
    return Sample(store, path / "copy", path / "stopped", items)


def damaged(source: Path, target: Path, pattern: str, place: float, bit: int = 1) -> Path:
    """Copy a store and flip a bit in its largest file of a kind."""
    for left_over in target.parent.glob(f"{target.name}*"):
        shutil.rmtree(left_over)
    shutil.copytree(source, target)
    file = max(target.glob(pattern), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= bit
    file.write_bytes(content)
    return target


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.[!l]*")}


def salvaged(sample: Sample, path: Path) -> dict[int, bytes]:
    aside = sample.store.salvage(FILES, str(path))
    assert aside == f"{path}.damaged"
    assert set_aside.is_unreported(FILES, str(path))
    found = sample.store.read(path)
    assert found.items() <= sample.items.items(), "nothing wrong is ever read"
    return found


def test_a_damaged_log_costs_the_damaged_write(sample: Sample, tmp_path: Path) -> None:
    rng, missing = random.Random(2), []
    for place in [0.0, 0.999999, *(rng.random() for _ in range(5))]:
        path = damaged(sample.killed, tmp_path / "db", "*.log", place, 1 << rng.randrange(8))
        with pytest.raises(Corrupt):
            sample.store.read(path)
        missing.append(sample.items.keys() - salvaged(sample, path).keys())
    assert max(map(len, missing)) < ITEMS / 4, "a block of the log, if a length was damaged"
    assert sorted(map(len, missing))[len(missing) // 2] <= 1
    assert any(missing)


def test_the_damaged_store_stays_whole(sample: Sample, tmp_path: Path) -> None:
    path = damaged(sample.killed, tmp_path / "db", "*.log", 0.5)
    before = files_of(path)
    salvaged(sample, path)
    assert files_of(Path(f"{path}.damaged")) == before


def test_what_different_nodes_have_left_is_everything(sample: Sample, tmp_path: Path) -> None:
    places = (0.2, 0.5, 0.8)
    parts = [
        salvaged(sample, damaged(sample.killed, tmp_path / "db", "*.log", place))
        for place in places
    ]
    assert any(part != sample.items for part in parts)
    assert parts[0] | parts[1] | parts[2] == sample.items


def test_damaged_tables_cost_the_damaged_rows(sample: Sample, tmp_path: Path) -> None:
    """Rows in the same 4 KiB are lost; all of a table if its index is damaged, which is small."""
    lost = []
    for place in range(1, 15):
        path = damaged(sample.stopped, tmp_path / "db", "*.sst", place / 15)
        found = readable(sample.store, path)
        if found is None:
            found = salvaged(sample, path)
        lost.append(len(sample.items.keys() - found.keys()))
    lost.sort()
    assert 0 < lost[-3] < ITEMS / 6, lost


@pytest.mark.parametrize("place", [0.05, 0.5, 0.95])
def test_a_damaged_manifest_costs_nothing_that_is_in_the_log(
    sample: Sample, tmp_path: Path, place: float
) -> None:
    path = damaged(sample.killed, tmp_path / "db", "MANIFEST-*", place)
    found = readable(sample.store, path)
    assert (salvaged(sample, path) if found is None else found) == sample.items


def test_a_missing_current_file_costs_nothing_that_is_in_the_log(
    sample: Sample, tmp_path: Path
) -> None:
    """RocksDB takes what is left for nothing, and would delete it."""
    path = tmp_path / "db"
    shutil.copytree(sample.killed, path)
    (path / "CURRENT").unlink()
    assert salvaged(sample, path) == sample.items


def test_partitions_are_recognised_in_the_log_and_in_tables(tmp_path: Path) -> None:
    """The first ones are in tables; numbers of column families are not those of partitions."""
    path = tmp_path / "db"
    main = rocks.open_database(str(path), options)
    main.create_column_family("dropped", options()).close()
    main.drop_column_family("dropped")
    main.close()
    table = RocksLogs(str(path), 0, PartitionSettings(duration_s=1.0, large_batch_bytes=100))
    rig = LogsRig(table)
    items = {}
    for number in range(1, 9):
        table.tend(number * 10**6)
        batch = bytes([number]) * (200 if number % 2 else 50)
        rig.put(record(number, batch=batch, at_s=number + 0.1))
        items[number] = batch
        if number == 2:
            rig.ask(Trim(LOG, make(1, 1)))
            del items[1]
            table.tend(number * 10**6)
    shutil.copytree(path, tmp_path / "copy")
    table.close()
    for file in (tmp_path / "copy").glob("MANIFEST-*"):
        file.write_bytes(bytes(100))
    salvage_logs(FILES, str(tmp_path / "copy"))
    assert read_logs(tmp_path / "copy") == items


@pytest.mark.parametrize("sample", ["logs"], indirect=True)
def test_a_table_without_its_index_costs_no_other(sample: Sample, tmp_path: Path) -> None:
    """The damaged table is the smallest one, of rows that follow from others."""
    small = min(sample.stopped.glob("*.sst"), key=lambda file: file.stat().st_size)
    for at in (100, -100):
        path = tmp_path / f"db{at}"
        shutil.copytree(sample.stopped, path)
        content = bytearray((path / small.name).read_bytes())
        content[at] ^= 1
        (path / small.name).write_bytes(content)
        lost = sample.items.keys() - salvaged(sample, path).keys()
        assert all(4096 <= len(sample.items[number]) < LARGE_BYTES for number in lost), "blobs"
        assert at < 0 or not lost


def readable(store: Store, path: Path) -> dict[int, bytes] | None:
    """Return what a reader finds, or None if it meets damage that is not one of batches."""
    try:
        return store.read(path)
    except Corrupt:
        return None


def test_a_salvaged_store_is_used_again(tmp_path: Path) -> None:
    store = STORES["logs"]
    store.make(tmp_path / "db")
    path = damaged(tmp_path / "copy", tmp_path / "new", "*.log", 0.5)
    store.salvage(FILES, str(path))
    rig = LogsRig(RocksLogs(str(path), 0))
    rig.put(record(1, epoch=2))
    rig.ask(Release(LOG, make(2, 1)))
    rig.settle()
    rig.table.close()
    assert make(2, 1) - make(2, 0) in store.read(path)


def test_a_store_whose_replacement_was_interrupted_is_put_in_place(tmp_path: Path) -> None:
    store = STORES["chains"]
    store.make(tmp_path / "db")
    path = damaged(tmp_path / "copy", tmp_path / "new", "*.log", 0.5)
    store.salvage(FILES, str(path))
    found = store.read(path)
    path.rename(f"{path}.salvaged")
    set_aside.finish(FILES, str(path))
    assert store.read(path) == found
    set_aside.note_reported(FILES, str(path))
    assert not set_aside.is_unreported(FILES, str(path))


def test_leftovers_that_are_back_are_not_shown(tmp_path: Path) -> None:
    """The write in which recovery put a hole in the place of a copy is the damaged one."""
    rig = LogsRig(RocksLogs(str(tmp_path / "db"), 0))
    rig.put(record(1), record(2))
    rig.ask(Seal(LOG, 1, 1))
    log = max((tmp_path / "db").glob("*.log"), key=lambda log: log.stat().st_size)
    begin = log.stat().st_size
    rig.put(record(2, recovered=2, kind=Kind.HOLE))
    end = log.stat().st_size
    rig.put(record(1, recovered=2))
    rig.ask(Clean(LOG, 1, EpochEnd(1, 0, 1, 1, 1)))
    rig.ask(Release(LOG, make(2, 0)))
    rig.settle()
    shutil.copytree(tmp_path / "db", tmp_path / "new")
    rig.table.close()
    file = tmp_path / "new" / log.name
    content = bytearray(file.read_bytes())
    content[(begin + end) // 2] ^= 1
    file.write_bytes(content)
    salvage_logs(FILES, str(tmp_path / "new"))
    again = LogsRig(RocksLogs(str(tmp_path / "new"), 0))
    answer = again.ask(Read(LOG, 1, LSN_MAX, MIB, everything=True))
    assert isinstance(answer, Delivered)
    assert [head.offset for head in answer.records] == [1]
    again.table.close()


def test_a_head_whose_batch_is_missing_or_of_another_copy_is_dropped(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    rig = LogsRig(RocksLogs(path, 0))
    rig.put(record(1), record(2), record(3))
    rig.ask(Release(LOG, make(1, 3)))
    rig.settle()
    rig.table.close()
    [family] = rocks.families(path, options())
    main = rocks.open_database(path, options, [family])
    table = main.get_column_family(family)
    table.delete(rows.place_key(rows.BATCHES, LOG, make(1, 1)))
    table.put(rows.place_key(rows.BATCHES, LOG, make(1, 2)), b"of another copy")
    database = Database(main, {family: table})
    put_in_order(database)
    database.close()
    again = LogsRig(RocksLogs(path, 0))
    answer = again.ask(Read(LOG, 1, LSN_MAX, MIB, everything=True))
    assert isinstance(answer, Delivered)
    assert [head.offset for head in answer.records] == [3]
    assert not answer.damaged, "they would be if their heads were there"
    again.table.close()


def test_an_attempt_that_failed_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    store = STORES["logs"]
    store.make(tmp_path / "db")
    path = damaged(tmp_path / "copy", tmp_path / "new" / "logs", "*.log", 0.5)

    def full(database: Database) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = files_of(path)
    with pytest.raises(OSError, match="No space"):
        salvage(FILES, str(path), options, full)
    assert files_of(path) == before
    assert os.listdir(path.parent) == ["logs"]
    store.salvage(FILES, str(path))
    assert store.read(path)
