"""The write-ahead log of a RocksDB that was damaged, or written when the power was lost."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from write_once_rig import EPOCH, HERE, NODE, WriteOnceRig, batch

from loomlog.core.chained.chain import Block
from loomlog.core.chained.messages import Fetch, Fetched
from loomlog.errors import Corrupt
from loomlog.limits import MIB
from loomlog.storage import synced_mark, write_ahead_log
from loomlog.storage.chained.rocks_table import RocksTable

BLOCKS = 60
SECTOR = 512


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chains of a process that was killed: all is in the log, and was synced."""
    path = tmp_path_factory.mktemp("killed")
    rig = WriteOnceRig(RocksTable(str(path / "db"), NODE)).sealed()
    rng = random.Random(1)
    for first in range(1, BLOCKS + 1):
        rig.write(batch(first, content=rng.randbytes(rng.choice((10, 700, 3000)))))
    shutil.copytree(path / "db", path / "copy")
    rig.table.close()
    return path / "copy"


def log_of(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda log: log.stat().st_size)


def found(path: Path) -> list[Block]:
    table = RocksTable(str(path), NODE)
    try:
        fetched = (
            WriteOnceRig(table).ask(Fetch(EPOCH, 1, MIB)) if HERE in table.replicas() else None
        )
        return list(fetched.blocks) if isinstance(fetched, Fetched) else []
    finally:
        table.close()


def changed(killed: Path, path: Path, change: Callable[[bytearray], object]) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(killed, path)
    content = bytearray(log_of(path).read_bytes())
    change(content)
    log_of(path).write_bytes(content)
    return path


def test_a_damaged_log_is_not_opened(killed: Path, tmp_path: Path) -> None:
    assert len(found(changed(killed, tmp_path / "db", lambda content: None))) == BLOCKS
    size = log_of(killed).stat().st_size
    for place in (0, size // 3, size // 2, size - 1):

        def flip(content: bytearray, place: int = place) -> None:
            content[place] ^= 1

        path = changed(killed, tmp_path / "db", flip)
        with pytest.raises(Corrupt, match=f"{log_of(path).name} is damaged at byte"):
            found(path)


def test_every_flipped_bit_is_found(killed: Path, tmp_path: Path) -> None:
    log, rng = tmp_path / "1.log", random.Random(2)
    content = bytearray(log_of(killed).read_bytes())
    for place in rng.sample(range(len(content)), 400):
        content[place] ^= 1 << place % 8
        log.write_bytes(content)
        with pytest.raises(Corrupt):
            write_ahead_log.check_log(str(tmp_path))
        content[place] ^= 1 << place % 8


def test_a_log_that_power_loss_cut_is_opened(killed: Path, tmp_path: Path) -> None:
    """Everything is there except what was being written, of which there is no mark."""
    (killed / synced_mark.MARK).unlink()
    size, rng = log_of(killed).stat().st_size, random.Random(3)
    whole = found(changed(killed, tmp_path / "db", lambda content: None))
    for end in [size - 1, size - 7, *(rng.randrange(size) for _ in range(10))]:

        def cut(content: bytearray, end: int = end) -> None:
            del content[end:]

        def lose_sectors(content: bytearray, end: int = end) -> None:
            start = end - end % SECTOR
            content[start:] = bytes(len(content) - start)

        def lose_one_sector(content: bytearray, end: int = end) -> None:
            start = end - end % SECTOR
            content[start : start + SECTOR] = bytes(len(content[start : start + SECTOR]))

        for harm in (cut, lose_sectors, lose_one_sector):
            left = found(changed(killed, tmp_path / "db", harm))
            assert left == whole[: len(left)]
