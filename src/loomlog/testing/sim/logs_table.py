"""A LogsDB on a simulated disk, for one life of a process: see table.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.storage import Change, LogStanding
from loomlog.storage.logsdb.memory_logs import MemoryLog, MemoryLogs
from loomlog.storage.logsdb.table import Found
from loomlog.testing.sim.disk import SimFiles
from loomlog.types import LogId


class SimLogs:
    """What is committed with `sync` survives a power loss."""

    def __init__(self, files: SimFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._table: MemoryLogs = files.open_table(path, MemoryLogs)

    def logs(self) -> list[LogId]:
        return self._table.logs()

    def standing(self, log: LogId) -> LogStanding:
        return self._table.standing(log)

    def stored_bytes(self, log: LogId) -> int:
        return self._table.stored_bytes(log)

    def look(self, log: LogId) -> MemoryLog:
        self._files.check(self._path)
        return self._table.look(log)

    def ask(self, log: LogId, question: Callable[[MemoryLog], Found]) -> Found:
        self._files.check(self._path)
        return self._table.ask(log, question)

    def commit(self, changes: Sequence[tuple[LogId, Change]], *, sync: bool) -> None:
        self._files.changing(self._path)
        self._files.disk.note("commit", self._path, len(changes))
        self._table.commit(changes, sync=sync)

    def expired(self, log: LogId, before_us: int) -> Lsn:
        return self._table.expired(log, before_us)

    def tend(self, now_us: int) -> bool:
        return self._table.tend(now_us)

    def compact(self) -> None:
        self._table.compact()

    def interrupt(self) -> None:
        self._table.interrupt()

    def close(self) -> None:
        self._table.close()
