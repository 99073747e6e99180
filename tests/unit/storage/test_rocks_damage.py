"""A store that cannot be opened for damage says so however often it is tried, and is opened once
the damage is gone: no attempt may leave the database locked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hand_worker import HandWorker

from loomlog.core.chained.chain import Replica, junk
from loomlog.core.chained.replica import Put, Standing
from loomlog.core.copyset.storage import LogStanding
from loomlog.storage.chained.rocks_table import RocksTable
from loomlog.storage.chained.write_once import WriteOnceStore
from loomlog.storage.files import closed_on_failure
from loomlog.storage.logsdb.rocks_logs import RocksLogs


def open_chains(path: str) -> None:
    table = RocksTable(path, 1)
    with closed_on_failure(table):
        WriteOnceStore(table, HandWorker(), HandWorker())
    table.close()


def make_chains(path: str) -> None:
    table = RocksTable(path, 1)
    for log in range(1, 40):
        replica = Replica(1, log, 0, log)
        table.commit([(replica, Standing(1)), (replica, Put(junk(1, 1)))], sync=True)
    table.close()


def open_copies(path: str) -> None:
    RocksLogs(path, 1).close()


def make_copies(path: str) -> None:
    logs = RocksLogs(path, 1)
    for log in range(1, 40):
        logs.commit([(log, LogStanding())], sync=True)
    logs.close()


STORES = pytest.mark.parametrize(
    ("make", "open_"), [(make_chains, open_chains), (make_copies, open_copies)]
)


@STORES
def test_damage_is_reported_again_and_can_be_undone(
    tmp_path: Path, make: Callable[[str], None], open_: Callable[[str], None]
) -> None:
    make(str(tmp_path))
    tables = {path: path.read_bytes() for path in tmp_path.glob("*.sst")}
    failures = 0
    for path, content in tables.items():
        for place in range(0, len(content), len(content) // 12):
            damaged = bytearray(content)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            errors = [attempt(open_, tmp_path) for _ in range(3)]
            assert not any("LOCK" in str(error) for error in errors), errors
            failures += errors[0] is not None
            path.write_bytes(content)
            open_(str(tmp_path))
    assert failures


def attempt(open_: Callable[[str], None], path: Path) -> Exception | None:
    """Return the error with its traceback: others may keep it for long, too."""
    try:
        open_(str(path))
    except Exception as error:
        return error
    return None
