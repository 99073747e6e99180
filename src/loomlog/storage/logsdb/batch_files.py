"""Large batches, beside RocksDB: a file for each log in each partition.

    <path>/batches/<partition>/<log>

RocksDB writes what it is given twice, each time with a checksum that takes longer than the write.
A large batch is written once, here, and its head says where; it is synced before anybody can find
that head. Files are only appended to: what has no head any more, or never got one because the
process ended, takes space until the file goes with what its log had in the partition.

One thread appends, removes and closes. Others may read beside it: each opens what it reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from contextlib import suppress
from typing import Final

from loomlog.limits import ALIGNMENT
from loomlog.storage.files import File, Files
from loomlog.storage.logsdb.partitions import PartitionId
from loomlog.types import Buffer, LogId

_FILES_OPEN_MAX: Final = 64  # that are appended to
_PADDING: Final = bytes(ALIGNMENT)


class _Appended:
    """A file that batches are added to."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.written = self.end = _aligned(file.size())
        self.waiting: list[Buffer] = []

    def add(self, batch: Buffer) -> int:
        """Where it is going to be."""
        offset = self.end
        self.waiting.append(batch)
        if padding := -len(batch) % ALIGNMENT:
            self.waiting.append(_PADDING[:padding])
        self.end += len(batch) + padding
        return offset

    def write(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.file.write(waiting, self.written)
        self.written = self.end


class BatchFiles:
    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = f"{path}/batches"
        self._open: OrderedDict[tuple[PartitionId, LogId], _Appended] = OrderedDict()
        self._changed: dict[tuple[PartitionId, LogId], _Appended] = {}  # since the last flush
        self._directories: set[str] = set()  # that have new files

    # ---- appending

    @property
    def changed(self) -> int:
        """Files that the next flush writes."""
        return len(self._changed)

    def is_changed(self, partition: PartitionId, log: LogId) -> bool:
        return (partition, log) in self._changed

    def add(self, partition: PartitionId, log: LogId, batch: Buffer) -> int:
        """Where in its file it is going to be; it is there after the next flush."""
        key = partition, log
        appended = self._changed[key] = self._opened(key)
        return appended.add(batch)

    def flush(self, *, sync: bool) -> None:
        """Write what was added."""
        changed, self._changed = self._changed, {}
        for appended in changed.values():
            appended.write()
        if sync:
            for appended in changed.values():
                appended.file.sync()
            for directory in sorted(self._directories, reverse=True):  # the deepest first
                self._files.sync_directory(directory)
            self._directories.clear()

    def _opened(self, key: tuple[PartitionId, LogId]) -> _Appended:
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = _Appended(self._create(*key))
            while len(self._open) > _FILES_OPEN_MAX:
                self._open.popitem(last=False)  # closed with its last user
        self._open.move_to_end(key)
        return found

    def _create(self, partition: PartitionId, log: LogId) -> File:
        path, directory = self._file(partition, log), self._directory(partition)
        if not self._files.exists(path):
            self._files.make_directory(directory)
            self._directories |= {directory, self._path, self._path.rpartition("/")[0]}
        return self._files.open(path, create=True)

    # ---- reading, in any thread

    def open(self, partition: PartitionId, log: LogId) -> File:
        """FileNotFoundError: it went with what the log had there."""
        return self._files.open(self._file(partition, log))

    # ---- removing

    def remove(self, partition: PartitionId, log: LogId) -> None:
        """No head says any more that anything is there."""
        self._open.pop((partition, log), None)
        with suppress(FileNotFoundError):
            self._files.remove(self._file(partition, log))

    def remove_partition(self, partition: PartitionId) -> None:
        for key in [key for key in self._open if key[0] == partition]:
            del self._open[key]
        with suppress(FileNotFoundError):
            self._files.remove_tree(self._directory(partition))

    def remove_others(self, used: Container[tuple[PartitionId, LogId]]) -> None:
        """Files that a process which ended could not remove any more."""
        for partition in self._numbers(self._path):
            logs = self._numbers(self._directory(partition))
            unused = [log for log in logs if (partition, log) not in used]
            if len(unused) == len(logs):
                self.remove_partition(partition)
            for log in unused:
                self.remove(partition, log)

    def close(self) -> None:
        self._open.clear()
        self._changed.clear()

    def _numbers(self, path: str) -> list[int]:
        try:
            return [int(name) for name in self._files.list(path) if name.isdecimal()]
        except FileNotFoundError:
            return []

    def _directory(self, partition: PartitionId) -> str:
        return f"{self._path}/{partition}"

    def _file(self, partition: PartitionId, log: LogId) -> str:
        return f"{self._directory(partition)}/{log}"


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
