"""Tables of blocks and of logs in memory. They lose what was not synced when the power fails."""

from __future__ import annotations

import copyreg
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.replica import Change as ChainChange
from loomlog.core.chained.replica import Gone as ChainGone
from loomlog.core.chained.replica import Put, SetAcknowledged, Standing
from loomlog.core.copyset.landmarks import Ages
from loomlog.core.copyset.record import LSN_MAX, Lsn
from loomlog.core.copyset.storage import Change as LogChange
from loomlog.core.copyset.storage import Gone as LogGone
from loomlog.core.copyset.storage import LogStanding
from loomlog.storage.chained.block_table import MemoryBlocks
from loomlog.storage.logsdb.rows import ages, share_of
from loomlog.storage.logsdb.table import Found, MemoryLog
from loomlog.types import Glsn, LogId

copyreg.pickle(memoryview, lambda view: (memoryview, (bytes(view),)))  # for copies of disks


class MemoryReplica(MemoryBlocks):
    """A replica of a chain, with its standing."""

    def __init__(self, standing: Standing | None = None) -> None:
        super().__init__()
        self.standing = standing

    @property
    def stored_bytes(self) -> int:
        return sum(len(block.batch) for block in self.by_last.values())

    def trim(self, position: Glsn) -> None:
        index = bisect_right(self.lasts, position)
        for last in self.lasts[:index]:
            del self.by_last[last]
        del self.lasts[:index]

    def copy(self) -> MemoryReplica:
        copied = MemoryReplica(self.standing)
        copied.lasts, copied.by_last = list(self.lasts), dict(self.by_last)
        return copied


class MemoryTable:
    """A BlockTable."""

    def __init__(self) -> None:
        self._replicas: dict[Replica, MemoryReplica] = {}
        self._durable: dict[Replica, MemoryReplica] | None = None  # if it is not all

    def replicas(self) -> dict[Replica, Standing]:
        found = sorted(self._replicas.items(), key=lambda item: item[0])
        return {replica: kept.standing for replica, kept in found if kept.standing is not None}

    def look(self, replica: Replica) -> MemoryReplica:
        return self._replicas.get(replica) or MemoryReplica()

    def commit(self, changes: Sequence[tuple[Replica, ChainChange]], *, sync: bool) -> None:
        if not sync and self._durable is None:
            self._durable = {replica: kept.copy() for replica, kept in self._replicas.items()}
        for replica, change in changes:
            self._apply(replica, change)
        if sync:
            self._durable = None

    def get_ready(self) -> None:
        pass

    def lose_power(self) -> None:
        """Go back to the last sync."""
        if self._durable is not None:
            self._replicas, self._durable = self._durable, None

    def take_over(self, other: MemoryTable) -> None:
        """Take what another table has: its directory was moved to this one."""
        self._replicas = {**other._replicas, **self._replicas}

    def stored_bytes(self) -> int:
        return sum(kept.stored_bytes for kept in self._replicas.values())

    def bytes_in_files(self, replica: Replica) -> int:
        kept = self._replicas.get(replica)
        return kept.stored_bytes if kept is not None else 0

    def reclaim(self, replica: Replica, position: Glsn) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _apply(self, replica: Replica, change: ChainChange) -> None:
        match change:
            case Put(block):
                self._replicas[replica].put(block)
            case SetAcknowledged(extent):
                blocks = self._replicas[replica].by_last
                told = blocks[extent.last]._replace(acknowledged=change.acknowledged)
                blocks[extent.last] = told
            case Standing():
                kept = self._replicas.setdefault(replica, MemoryReplica())
                kept.standing = change
                kept.trim(change.trimmed)
            case ChainGone():
                del self._replicas[replica]


class MemoryLogs:
    """A LogsTable. It has no partitions: what is trimmed goes at once, and a log is trimmed by time
    to the record."""

    damaged_copies: tuple[tuple[LogId, Lsn], ...] = ()

    def __init__(self) -> None:
        self._logs: dict[LogId, MemoryLog] = {}
        self._durable: dict[LogId, MemoryLog] | None = None  # if it is not all

    def logs(self) -> list[LogId]:
        return sorted(self._logs)

    def standing(self, log: LogId) -> LogStanding:
        return self.look(log).standing

    def last(self, log: LogId) -> Lsn:
        return last_of(self.look(log))

    def stored_bytes(self, log: LogId) -> int:
        return sum(len(record.batch) for record in self.look(log).by_first.values())

    def look(self, log: LogId) -> MemoryLog:
        return self._logs.get(log) or MemoryLog()

    def ask(self, log: LogId, question: Callable[[MemoryLog], Found]) -> Found:
        return question(self.look(log))

    def commit(self, changes: Sequence[tuple[LogId, LogChange]], *, sync: bool) -> None:
        if not sync and self._durable is None:
            self._durable = {log: copied(kept) for log, kept in self._logs.items()}
        for log, change in changes:
            if isinstance(change, LogGone):
                self._logs.pop(log, None)
            else:
                self._logs.setdefault(log, MemoryLog()).apply(change)
        if sync:
            self._durable = None

    def lose_power(self) -> None:
        """Go back to the last sync."""
        if self._durable is not None:
            self._logs, self._durable = self._durable, None

    def ages(self, log: LogId, before_us: int) -> Ages:
        """Return the ages as if each record had its own partition."""
        return ages((share_of(head) for head in self.look(log).scan(0, LSN_MAX)), before_us)

    def tend(self, now_us: int) -> bool:
        return False

    def compact(self) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass


def copied(log: MemoryLog) -> MemoryLog:
    return replace(log, firsts=list(log.firsts), by_first=dict(log.by_first), ends=dict(log.ends))


def last_of(log: MemoryLog) -> Lsn:
    return log.by_first[log.firsts[-1]].last if log.firsts else 0
