"""Concurrent look-ups see synced data of one state."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logsdb_rig import LOG, SMALL, LogsRig, record

from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import LSN_MAX, Kind, Record, make
from loomlog.core.copyset.storage import Change, Put
from loomlog.storage.logsdb.log_reader import LogReader
from loomlog.storage.logsdb.rocks_logs import RocksLogs


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[RocksLogs]:
    opened = RocksLogs(str(tmp_path / "db"), 0, SMALL)
    yield opened
    opened.close()


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


def heads(log: LogReader) -> list[Record]:
    return log.heads(0, LSN_MAX, 100)


def test_what_is_not_synced_yet_is_not_seen(logs: RocksLogs) -> None:
    """A recovery would count on it, and a power loss would take it away."""
    LogsRig(logs).put(record(1))
    slow = SlowSync(logs._db)
    logs._db = logs._mark._db = slow  # type: ignore[assignment]
    changes: list[tuple[int, Change]] = [(LOG, Put(record(2))), (LOG, EpochEnd(1, 2, 2, 2, 1))]
    committing = threading.Thread(target=lambda: logs.commit(changes, sync=True))
    seen: list[tuple[int, EpochEnd | None]] = []

    def question(log: LogReader) -> tuple[int, EpochEnd | None]:
        return len(heads(log)), log.end_of(1)

    def look() -> None:
        seen.append(logs.ask(LOG, question))

    committing.start()
    assert slow.under_way.wait(10)
    looking = threading.Thread(target=look)
    looking.start()
    looking.join(0.05)
    assert seen == []
    slow.go_on.set()
    committing.join()
    looking.join()
    assert seen == [(2, EpochEnd(1, 2, 2, 2, 1))]


def test_who_began_to_look_does_not_see_what_comes_later(logs: RocksLogs) -> None:
    rig = LogsRig(logs)
    stored = [record(offset, batch=b"%d" % offset) for offset in range(1, 4)]
    rig.put(*stored)
    log = logs.look(LOG)
    found = heads(log)
    rig.put(record(2, kind=Kind.HOLE, recovered=2), record(4))
    assert heads(log) == found
    assert [log.load(head) for head in found] == stored


def test_scans_and_loads_do_not_disturb_each_other(logs: RocksLogs) -> None:
    stored = [record(offset, batch=b"%d" % offset) for offset in range(1, 10)]
    LogsRig(logs).put(*stored)
    log = logs.look(LOG)
    back = log.scan_back(LSN_MAX)
    both = [(log.load(head), next(back).offset) for head in log.scan(0, LSN_MAX)]
    assert both == list(zip(stored, range(9, 0, -1), strict=True))


def test_a_copy_that_moves_to_another_partition_is_seen_once(logs: RocksLogs) -> None:
    rig = LogsRig(logs)
    rig.put(record(1, at_s=1), record(3, at_s=2))
    rig.tend(10)
    rig.put(record(2, at_s=11), record(4, at_s=12))
    scans: list[list[int]] = []

    def question(log: LogReader) -> list[int]:
        if not scans:
            list(log.scan(make(1, 4), LSN_MAX))  # the newer partition is looked at first
            rig.put(record(3, wave=2, at_s=13))
        scans.append([head.offset for head in log.scan(0, LSN_MAX)])
        return scans[-1]

    assert logs.ask(LOG, question) == [1, 2, 3, 4]
    assert len(scans) == 2
