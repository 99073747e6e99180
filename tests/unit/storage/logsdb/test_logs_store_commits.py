"""Commits of copies: nonsense, overload, a disk that fails, power losses and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from logsdb_rig import LOG, SMALL, LogsRig, record
from memory_tables import MemoryLogs

from loomlog.core.copyset.messages import (
    Amend,
    Clean,
    Delivered,
    Done,
    EpochEnd,
    Forget,
    NodeAnswer,
    NodeRequest,
    Purge,
    Read,
    Refused,
    Release,
    Seal,
    SealedAt,
    Store,
    Trim,
)
from loomlog.core.copyset.nodeset import Trouble
from loomlog.core.copyset.record import LSN_MAX, make
from loomlog.core.copyset.storage import Change, LogStanding
from loomlog.limits import MIB
from loomlog.storage.group_commit import WAITING_BYTES_MAX
from loomlog.storage.logsdb.rocks_logs import RocksLogs
from loomlog.storage.logsdb.table import LogsTable


@pytest.fixture(params=["rocks", "memory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogsTable]:
    opened: LogsTable
    opened = RocksLogs(str(tmp_path / "db"), 0, SMALL) if request.param == "rocks" else MemoryLogs()
    yield opened
    opened.close()


@pytest.fixture
def rig(table: LogsTable) -> LogsRig:
    return LogsRig(table)


# ---- nonsense, overload, a disk that fails


@pytest.mark.parametrize(
    "request_",
    [
        Store(LOG, record(0)),
        Store(LOG, record(1, 0)),
        Store(LOG, record((1 << 32) - 1, 2)),
        Store(LOG, record(1, epoch=1 << 31)),
        Store(LOG, record(1, wave=1 << 32)),
        Store(LOG, record(1)._replace(copyset=(1 << 48,))),
        Amend(LOG, record(1)._replace(timestamp_us=1 << 63)),
        Seal(LOG, 1 << 31),
        Trim(LOG, 1 << 63),
        Release(LOG, 1 << 63),
        Clean(LOG, 0, EpochEnd(1, 1 << 32, 0, 0, 0)),
    ],
    ids=repr,
)
def test_nonsense_is_refused_and_harms_nobody(rig: LogsRig, request_: NodeRequest) -> None:
    assert isinstance(rig.ask(request_), Refused)
    rig.put(record(1))


def test_what_waits_is_bounded(rig: LogsRig) -> None:
    large = memoryview(bytes(WAITING_BYTES_MAX // 4))
    answers: list[NodeAnswer] = []
    for offset in range(1, 8):  # one is under way, four wait
        asked = record(offset)._replace(batch=large[: 30 * MIB])
        rig.store.ask(Store(LOG, asked), answers.append)
    assert [a.trouble for a in answers if isinstance(a, Refused)] == [Trouble.OVERLOADED] * 2
    rig.commits.jobs.clear()


def test_a_full_disk_takes_no_batches(rig: LogsRig) -> None:
    rig.put(record(1))
    rig.store.is_full = True
    refused = rig.ask(Store(LOG, record(2)))
    assert isinstance(refused, Refused)
    assert refused.trouble is Trouble.NO_SPACE
    assert rig.ask(Seal(LOG, 0)) == SealedAt(0, 0, [], newer=record(1).last)
    rig.trim(1)
    rig.store.is_full = False
    rig.put(record(2))


class CountedLogsTable:
    """A table that counts its commits, or fails."""

    def __init__(self, table: LogsTable) -> None:
        self._table = table
        self.damaged_copies: list[tuple[int, int]] = []
        self.syncs: list[bool] = []
        self.broken = ""
        self.logs, self.standing, self.look = table.logs, table.standing, table.look
        self.stored_bytes, self.ages, self.ask = table.stored_bytes, table.ages, table.ask
        self.tend, self.compact, self.close = table.tend, table.compact, table.close
        self.interrupt, self.last = table.interrupt, table.last

    def commit(self, changes: Sequence[tuple[int, Change]], *, sync: bool) -> None:
        if self.broken:
            raise OSError(self.broken)
        self.syncs.append(sync)
        self._table.commit(changes, sync=sync)


def test_all_that_waits_shares_one_commit(table: LogsTable) -> None:
    counting = CountedLogsTable(table)
    rig = LogsRig(counting)
    rig.put(*(record(offset) for offset in range(1, 101)))
    assert counting.syncs == [True, True]  # the first at once, the others while it was under way
    rig.put(record(1))
    assert counting.syncs == [True, True]  # nothing changes, nothing is synced
    rig.ask(Release(LOG, make(1, 5)))
    assert counting.syncs == [True, True]  # it will be told again
    rig.settle()
    assert counting.syncs == [True, True, False]
    rig.settle()
    assert counting.syncs == [True, True, False]


def released(rig: LogsRig, log: int = LOG) -> int:
    """Return how far a reader sees the log."""
    found = rig.ask(Read(log, 1, LSN_MAX, MIB, everything=True))
    assert isinstance(found, Delivered)
    assert found.released == rig.store.standing(log).released
    return found.released


def test_a_release_shows_at_once_and_the_next_commit_takes_it_along(table: LogsTable) -> None:
    counting = CountedLogsTable(table)
    rig = LogsRig(counting)
    rig.put(record(1))
    assert rig.ask(Release(LOG, make(1, 1))) == Done()
    assert released(rig) == make(1, 1)
    assert table.standing(LOG).released == 0
    rig.put(record(2))
    assert counting.syncs == [True, True]
    assert released(rig) == table.standing(LOG).released == make(1, 1)


def test_a_release_during_a_commit_shows_what_that_changes(rig: LogsRig) -> None:
    rig.put(record(1), record(2), record(3))
    rig.store.ask(Trim(LOG, make(1, 1)), lambda answer: None)
    rig.ask(Release(LOG, make(1, 2)))
    assert rig.store.standing(LOG) == rig.table.standing(LOG)._replace(released=make(1, 2))
    assert rig.store.standing(LOG).trimmed == make(1, 1)
    rig.ask(Release(LOG, make(1, 3)))
    assert released(rig) == make(1, 3)
    rig.ask(Release(LOG, make(1, 1)))
    assert released(rig) == make(1, 3)


def test_a_release_waits_for_epochs_before_it(rig: LogsRig) -> None:
    rig.put(record(1), record(1, epoch=2))
    rig.ask(Release(LOG, make(2, 1)))
    assert released(rig) == make(1, 0)
    rig.ask(Purge(LOG, EpochEnd(1, 0, 1, 1, 1)))
    rig.ask(Release(LOG, make(2, 1)))
    assert released(rig) == make(2, 1)


def test_nothing_is_left_of_a_release_of_a_forgotten_log(rig: LogsRig) -> None:
    rig.put(record(1))
    rig.ask(Release(LOG, make(1, 1)))
    rig.ask(Forget(LOG))
    assert rig.store.standing(LOG) == LogStanding()
    assert released(rig) == 0


@pytest.mark.parametrize(
    ("error", "trouble"),
    [("input/output error", Trouble.DISABLED), ("No space left on device", Trouble.NO_SPACE)],
)
def test_after_a_failed_commit_nothing_is_acknowledged(
    table: LogsTable, error: str, trouble: Trouble
) -> None:
    counting = CountedLogsTable(table)
    rig = LogsRig(counting)
    counting.broken = error
    first = rig.ask(Store(LOG, record(1)))
    assert isinstance(first, Refused)
    assert first.trouble is trouble
    counting.broken = ""
    for request in (Store(LOG, record(2)), Read(LOG, 1, 2, 9), Seal(LOG, 3)):
        assert isinstance(rig.ask(request), Refused)
    assert rig.store.failed


# ---- power and kills


def test_memory_loses_what_was_not_synced() -> None:
    table = MemoryLogs()
    careless = LogsRig(table, sync=False)
    careless.put(record(1))
    table.lose_power()
    assert careless.read() == []
    LogsRig(table).put(record(1))
    careless.put(record(2))
    table.lose_power()
    assert careless.read() == [record(1)]


WRITER = """
import sys
from logsdb_rig import LogsRig, record
from loomlog.storage.logsdb.rows import PartitionSettings
from loomlog.storage.logsdb.rocks_logs import RocksLogs
rig = LogsRig(RocksLogs(sys.argv[1], 0, PartitionSettings(duration_s=1)))
for offset in range(1, 1 << 30):
    batch = offset.to_bytes(8, "big") * (700 + offset % 2 * 7000)  # in a row, or in a file
    rig.put(record(offset, at_s=offset, batch=batch))
    if offset % 10 == 0:
        rig.tend(offset)
        rig.trim(max(1, offset - 100))
    print(offset, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """Killed while partitions begin and go."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "db")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    with writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(250)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    acknowledged = sum(line.endswith(b"\n") for line in lines)
    assert acknowledged >= 250
    rig = LogsRig(RocksLogs(str(tmp_path / "db"), 0))
    found = rig.read()
    offsets = [each.offset for each in found]
    assert all(bytes(each.batch[-8:]) == each.offset.to_bytes(8, "big") for each in found)
    assert offsets == list(range(offsets[0], offsets[-1] + 1))
    assert offsets[0] <= acknowledged - 90
    assert offsets[-1] >= acknowledged
    rig.table.close()
