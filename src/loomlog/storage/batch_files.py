"""Large batches in numbered files next to RocksDB.

    <path>/batches/<folder>/<number>

RocksDB writes every value twice, each time with a checksum that takes longer than the write. A
large batch is written once, here, and synced before the row that refers to it becomes visible.
Files are append-only: a batch whose row was deleted, or never written because the process ended,
takes space until its file is removed.

    LogsDB     a folder for each partition, with a file for each log
    chains     a folder for each replica, with a new file when the last one is large enough

One thread appends, removes and closes. Others may read at the same time; each opens its own files.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Container
from contextlib import suppress
from typing import Final

from loomlog.batch import aligned
from loomlog.limits import ALIGNMENT
from loomlog.storage.files import File, Files
from loomlog.types import Buffer

_FILES_OPEN_MAX: Final = 64  # for appending
_PADDING: Final = bytes(ALIGNMENT)


class _Appended:
    """A file that batches are appended to."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.written = self.end = aligned(file.size())
        self.waiting: list[Buffer] = []

    def add(self, batch: Buffer) -> int:
        """Queue a batch and return its future offset."""
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
    """The files of one database."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._home = path
        self._path = f"{path}/batches"
        self._open: OrderedDict[tuple[int, int], _Appended] = OrderedDict()
        self._changed: dict[tuple[int, int], _Appended] = {}  # since the last flush
        self._directories: set[str] = set()  # with new files, not synced yet

    # ---- appending

    @property
    def changed(self) -> int:
        """The number of files that the next flush writes."""
        return len(self._changed)

    def is_changed(self, folder: int, number: int) -> bool:
        return (folder, number) in self._changed

    def add(self, folder: int, number: int, batch: Buffer) -> int:
        """Queue a batch and return its offset in the file; the next flush writes it."""
        key = folder, number
        appended = self._changed[key] = self._opened(key)
        return appended.add(batch)

    def flush(self, *, sync: bool) -> None:
        """Write the queued batches."""
        changed, self._changed = self._changed, {}
        for appended in changed.values():
            appended.write()
        if sync:
            for appended in changed.values():
                appended.file.sync()
            for directory in sorted(self._directories, reverse=True):  # the deepest first
                self._files.sync_directory(directory)
            self._directories.clear()

    def _opened(self, key: tuple[int, int]) -> _Appended:
        appended = self._open.get(key)
        if appended is None:
            appended = self._open[key] = _Appended(self._create(*key))
            while len(self._open) > _FILES_OPEN_MAX:
                self._open.popitem(last=False)  # closed with its last user
        self._open.move_to_end(key)
        return appended

    def _create(self, folder: int, number: int) -> File:
        path, directory = self._file(folder, number), self._directory(folder)
        if not self._files.exists(path):
            if not self.has_home():  # do not create it: RocksDB would write there at close
                raise FileNotFoundError(errno.ENOENT, "its directory is gone", self._home)
            self._files.make_directory(directory)
            self._directories |= {directory, self._path, self._home}
        return self._files.open(path, create=True)

    # ---- reading, in any thread

    def has_home(self) -> bool:
        """Return whether the directory of the database exists."""
        return self._files.exists(self._home)

    def open(self, folder: int, number: int) -> File:
        """Open a file for reading. Raise FileNotFoundError if it was removed."""
        return self._files.open(self._file(folder, number))

    # ---- removing

    def remove(self, folder: int, number: int) -> None:
        """Remove a file that no row refers to."""
        self._open.pop((folder, number), None)
        with suppress(FileNotFoundError):
            self._files.remove(self._file(folder, number))

    def remove_folder(self, folder: int) -> None:
        for key in [key for key in self._open if key[0] == folder]:
            del self._open[key]
        with suppress(FileNotFoundError):
            self._files.remove_tree(self._directory(folder))

    def remove_others(self, used: Container[tuple[int, int]]) -> None:
        """Remove all files except the used ones: an earlier process may have left some."""
        for folder in self._numbers(self._path):
            numbers = self._numbers(self._directory(folder))
            unused = [number for number in numbers if (folder, number) not in used]
            if len(unused) == len(numbers):
                self.remove_folder(folder)
            for number in unused:
                self.remove(folder, number)

    def close(self) -> None:
        self._open.clear()
        self._changed.clear()

    def _numbers(self, path: str) -> list[int]:
        try:
            return [int(name) for name in self._files.list(path) if name.isdecimal()]
        except FileNotFoundError:
            return []

    def _directory(self, folder: int) -> str:
        return f"{self._path}/{folder}"

    def _file(self, folder: int, number: int) -> str:
        return f"{self._directory(folder)}/{number}"
