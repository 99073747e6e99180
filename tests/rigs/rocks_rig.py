"""A LogsDB of RocksDB whose time and partitions tests control."""

from __future__ import annotations

from pathlib import Path

from logsdb_rig import SECOND, SMALL, LogsRig, record
from rocksdict import Options, Rdict

from loomlog.core.copyset.record import Record
from loomlog.storage.logsdb.rocks_logs import RocksLogs
from loomlog.storage.logsdb.rows import PartitionSettings


class RocksRig(LogsRig):
    def __init__(
        self, path: Path, settings: PartitionSettings = SMALL, *, begin_s: int = 0
    ) -> None:
        self.path = path
        self.settings = settings
        self.logs = RocksLogs(str(path), begin_s * SECOND, settings)
        super().__init__(self.logs)

    @property
    def partitions(self) -> int:
        return len(self.families())

    def families(self) -> list[str]:
        """Return the column families as they are on disk."""
        names = Rdict.list_cf(str(self.path), Options(raw_mode=True))
        return sorted(name for name in names if name != "default")

    def reopen(self) -> RocksRig:
        self.logs.close()
        return RocksRig(self.path, self.settings)

    def fill(self, partitions: int, records: int = 3) -> list[Record]:
        """Partitions of 10 s, with a few records each."""
        stored: list[Record] = []
        for partition in range(partitions):
            start_s = partition * 10
            self.tend(start_s)
            new = [
                record(len(stored) + at + 1, at_s=start_s + at, batch=b"%d" % partition)
                for at in range(records)
            ]
            self.put(*new)
            stored += new
        return stored


def files_of_batches(path: Path) -> list[Path]:
    return sorted(path.glob("batches/*/*"))
