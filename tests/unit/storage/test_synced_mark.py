"""A database notices that it lacks writes that were synced, and only then."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from rocks_rig import RocksRig
from rocksdict import Rdict, WriteBatch

from loomlog.core.chained.chain import Replica, junk
from loomlog.core.chained.replica import Put, Standing
from loomlog.errors import Corrupt
from loomlog.storage import rocks
from loomlog.storage.chained.rocks_table import RocksTable
from loomlog.storage.synced_mark import MARK, SyncedMark

HERE = Replica(1, 1, 0, 1)
WRITES = 40


class Database:
    """A database with a mark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        rocks.prepare(str(path))
        self.db = rocks.open_database(str(path), rocks.options)
        self.mark = SyncedMark(str(path), self.db)

    def write(self, number: int, *, sync: bool = True, size: int = 100) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.put(b"%06d" % number, random.Random(number).randbytes(size))
        self.db.write(batch)
        if sync:
            self.mark.sync()

    def keys(self) -> list[int]:
        return [int(key) for key, _ in rocks.Cursor(self.db).rows(b"")]

    def killed(self, copy: Path) -> Path:
        """Return the database as it is when the process is killed now."""
        shutil.rmtree(copy, ignore_errors=True)
        return Path(shutil.copytree(self.path, copy))

    def close(self) -> None:
        rocks.close(self.db, self.mark)


def keys(path: Path) -> list[int]:
    database = Database(path)
    try:
        return database.keys()
    finally:
        database.close()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    database = Database(tmp_path / "db")
    for number in range(WRITES):
        database.write(number)
    copy = database.killed(tmp_path / "killed")
    database.close()
    return copy


def logs(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def test_a_killed_database_has_everything(killed: Path) -> None:
    assert keys(killed) == [*range(WRITES)]
    assert keys(killed) == [*range(WRITES)]


def test_every_cut_of_a_synced_log_is_noticed(killed: Path, tmp_path: Path) -> None:
    [log] = logs(killed)
    size = log.stat().st_size
    record = size // WRITES
    assert size % WRITES == 0
    for end in (0, 1, record, size // 2, size // 2 // record * record, size - record, size - 1):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(killed, copy)
        os.truncate(copy / log.name, end)
        for _ in range(2):
            with pytest.raises(Corrupt, match=f"{log.name} was cut off: it had {size} bytes"):
                keys(copy)
        (copy / log.name).write_bytes(log.read_bytes())
        assert keys(copy) == [*range(WRITES)], "nothing was removed meanwhile"


def test_zeros_at_the_end_of_a_synced_log_are_noticed(killed: Path) -> None:
    [log] = logs(killed)
    content = bytearray(log.read_bytes())
    start = len(content) // 2
    content[start:] = bytes(len(content) - start)
    log.write_bytes(content)
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"lost its last .* changes"):
            keys(killed)


def test_what_was_not_synced_may_be_cut_off(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    for number in range(WRITES):
        database.write(number, sync=number < 10)
    copy = database.killed(tmp_path / "copy")
    database.close()
    [log] = logs(copy)
    os.truncate(log, log.stat().st_size // 2)
    assert keys(copy) == [*range(WRITES // 2)]


def test_an_older_mark_is_true_as_well(tmp_path: Path) -> None:
    """A power loss keeps the database, and an earlier mark."""
    database = Database(tmp_path / "db")
    marks = []
    for number in range(WRITES):
        database.write(number)
        marks.append((tmp_path / "db" / MARK).read_bytes())
    copy = database.killed(tmp_path / "copy")
    database.close()
    (copy / MARK).write_bytes(marks[10])
    [log] = logs(copy)
    os.truncate(log, log.stat().st_size // 2)
    assert keys(copy) == [*range(WRITES // 2)]


@pytest.mark.parametrize("content", [b"", b"{}", bytes(512), b"\xff" * 512, b"{}\n00000000\n"])
def test_without_a_readable_mark_it_opens(killed: Path, content: bytes) -> None:
    (killed / MARK).write_bytes(content)
    assert keys(killed) == [*range(WRITES)]
    database = Database(killed)
    database.write(WRITES)
    database.close()
    assert keys(killed) == [*range(WRITES + 1)]


def several_logs(path: Path) -> Database:
    """Make a database with a log for each flush of a column family, because another one needs
    them."""
    database = Database(path)
    flushed = database.db.create_column_family("flushed", rocks.options())
    for number in range(3):
        database.write(number)
        flushed.put(b"%d" % number, b"value")
        flushed.flush(True)
    flushed.close()
    return database


def test_an_older_log_is_cut_where_a_write_ends(tmp_path: Path) -> None:
    database = several_logs(tmp_path / "db")
    database.write(3)
    copy = database.killed(tmp_path / "copy")
    database.close()
    first, *others = logs(copy)
    assert others
    os.truncate(first, 0)
    with pytest.raises(Corrupt, match=f"{first.name} was cut off"):
        keys(copy)


def test_after_a_stop_a_missing_log_is_noticed(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    database.write(1)
    database.close()
    [log] = logs(tmp_path / "db")
    log.rename(tmp_path / "aside")
    (tmp_path / "db/999999.log").touch()  # without any, no database is opened
    with pytest.raises(Corrupt, match=f"{log.name} is missing"):
        keys(tmp_path / "db")


def test_an_older_manifest_is_noticed(tmp_path: Path) -> None:
    """RocksDB would forget the tables that were made since."""
    database = Database(tmp_path / "db")
    database.write(1)
    early = database.killed(tmp_path / "early")
    database.write(2)
    database.close()
    path = tmp_path / "db"
    for table in path.glob("*.sst"):
        table.unlink()
    name = (path / "CURRENT").read_text().strip()
    shutil.copy(early / name, path / name)
    with pytest.raises(Corrupt, match="lost its last"):
        keys(path)


def test_other_software_may_have_used_it_since(tmp_path: Path) -> None:
    """An earlier version of this one, which writes no marks."""
    path = tmp_path / "db"
    for number in range(0, 30, 3):
        database = Database(path)
        database.write(number)
        database.close()
        for more in (1, 2):
            other = Rdict(str(path), rocks.options())
            other.put(b"%06d" % (number + more), b"value")
            other.close()
    assert keys(path) == [*range(30)]


def live(program: str, *words: str) -> int:
    """Run a process that kills itself; return the number that it printed before."""
    command = (sys.executable, "-c", program, *words)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert done.stdout, done.stderr.decode()
    return int(done.stdout)


LIFE: Final = """
import os, random, signal, sys
from pathlib import Path
from test_synced_mark import Database

path, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng, database = random.Random(seed), Database(path)
assert database.keys() == [*range(count)], "it has everything, and no mark says otherwise"
for _ in range(rng.randrange(200)):
    database.write(count, sync=rng.random() < 0.7, size=rng.choice((10, 5000)))
    count += 1
    if rng.random() < 0.2:
        database.db.flush(rng.random() < 0.5)
if rng.random() < 0.3:
    database.close()
print(count, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("seed", range(2))
def test_no_kill_is_taken_for_a_loss(tmp_path: Path, seed: int) -> None:
    """Logs begin and go all the time, also while the process is killed."""
    count = 0
    for life in range(6):
        count = live(LIFE, str(tmp_path / "db"), str(100 * seed + life), str(count))
    assert keys(tmp_path / "db") == [*range(count)]


LOGSDB_LIFE: Final = """
import os, random, signal, sys
from pathlib import Path
from rocks_rig import RocksRig

rng, rig = random.Random(int(sys.argv[2])), RocksRig(Path(sys.argv[1]))
stored = rig.fill(rng.randrange(1, 6))
if rng.random() < 0.5:
    rig.trim(stored[len(stored) // 2].last)
    rig.tend(1000)
if rng.random() < 0.2:
    rig.logs.close()
print(stored[-1].last, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("seed", range(2))
def test_no_kill_of_a_logsdb_is_taken_for_a_loss(tmp_path: Path, seed: int) -> None:
    """Partitions come and go, and each has memory of its own."""
    for life in range(5):
        assert live(LOGSDB_LIFE, str(tmp_path / "db"), str(100 * seed + life))
    rig = RocksRig(tmp_path / "db")
    rig.logs.close()


def test_chains_that_were_cut_off_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "chains"
    table = RocksTable(str(path), 1)
    table.commit([(HERE, Standing(1))], sync=True)
    for position in range(1, WRITES):
        table.commit([(HERE, Put(junk(position, 1)))], sync=True)
    shutil.copytree(path, copy := tmp_path / "copy")
    table.close()
    log = max(logs(copy), key=lambda log: log.stat().st_size)
    os.truncate(log, log.stat().st_size // 2)
    with pytest.raises(Corrupt, match="was cut off"):
        RocksTable(str(copy), 1)
