"""Tables of blocks and of logs on a simulated disk, for one life of a process.

Each is one file among others; its commits happen whole or not at all. RocksDB is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from memory_tables import MemoryLogs, MemoryReplica, MemoryTable

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.replica import Standing
from loomlog.core.copyset.landmarks import Ages
from loomlog.core.copyset.record import Lsn
from loomlog.core.copyset.storage import LogStanding
from loomlog.storage.logsdb.table import Found, MemoryLog
from loomlog.testing.sim.disk import SimFiles
from loomlog.types import Glsn, LogId

Table = TypeVar("Table", MemoryTable, MemoryLogs)


class _Table(Generic[Table]):
    """A table whose synced commits survive a power loss."""

    def __init__(self, files: SimFiles, path: str, kind: type[Table]) -> None:
        self._files = files
        self._path = path
        self._table: Table = files.open_table(path, kind)
        self._files.changing(path)
        self._table.commit((), sync=True)  # as RocksDB does with what it finds

    def commit(self, changes: Sequence[Any], *, sync: bool) -> None:
        try:
            self._files.changing(self._path)
        except OSError:
            if not self._files.stale and self._files.disk.lets_through():
                self._table.commit(changes, sync=False)  # it is in the log, and not synced
            raise
        self._files.disk.note("commit", self._path, len(changes))
        self._table.commit(changes, sync=sync)

    def close(self) -> None:
        self._table.close()


class SimTable(_Table[MemoryTable]):
    """A BlockTable."""

    def __init__(self, files: SimFiles, path: str) -> None:
        super().__init__(files, path, MemoryTable)

    def replicas(self) -> dict[Replica, Standing]:
        self._files.check(self._path)
        return self._table.replicas()

    def look(self, replica: Replica) -> MemoryReplica:
        self._files.check(self._path)
        return self._table.look(replica)

    def get_ready(self) -> None:
        pass

    def stored_bytes(self) -> int:
        return self._table.stored_bytes()

    def bytes_in_files(self, replica: Replica) -> int:
        return self._table.bytes_in_files(replica)

    def reclaim(self, replica: Replica, position: Glsn) -> None:
        self._files.check(self._path)

    def interrupt(self) -> None:
        pass


class SimLogs(_Table[MemoryLogs]):
    """A LogsTable."""

    damaged_copies: tuple[tuple[LogId, Lsn], ...] = ()

    def __init__(self, files: SimFiles, path: str) -> None:
        super().__init__(files, path, MemoryLogs)

    def logs(self) -> list[LogId]:
        return self._table.logs()

    def standing(self, log: LogId) -> LogStanding:
        return self._table.standing(log)

    def last(self, log: LogId) -> Lsn:
        return self._table.last(log)

    def stored_bytes(self, log: LogId) -> int:
        return self._table.stored_bytes(log)

    def look(self, log: LogId) -> MemoryLog:
        self._files.check(self._path)
        return self._table.look(log)

    def ask(self, log: LogId, question: Callable[[MemoryLog], Found]) -> Found:
        self._files.check(self._path)
        return self._table.ask(log, question)

    def ages(self, log: LogId, before_us: int) -> Ages:
        return self._table.ages(log, before_us)

    def tend(self, now_us: int) -> bool:
        return self._table.tend(now_us)

    def compact(self) -> None:
        self._table.compact()

    def interrupt(self) -> None:
        self._table.interrupt()
