"""A file system in memory, without faults: what a fuzzer opens thousands of times a second."""

from __future__ import annotations

from collections.abc import Sequence

from loomlog.storage.files import Space
from loomlog.types import Buffer


class MemoryFile:
    """A file. All who opened it share its bytes."""

    def __init__(self, data: bytearray) -> None:
        self._data = data

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        content = b"".join(buffers)
        self.allocate(offset)
        self._data[offset : offset + len(content)] = content

    def read(self, size: int, offset: int) -> bytearray:
        return self._data[offset : offset + size]

    def read_cached(self, size: int, offset: int) -> bytearray | None:
        return self.read(size, offset)

    def size(self) -> int:
        return len(self._data)

    def allocate(self, size: int) -> None:
        self._data.extend(bytes(max(size - len(self._data), 0)))

    def truncate(self, size: int) -> None:
        del self._data[size:]
        self.allocate(size)

    def sync(self) -> None:
        """Do nothing: nothing is ever lost here."""

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""


class MemoryFiles:
    """Files by path. A directory is there if something is in it, or it was made."""

    def __init__(self, contents: dict[str, bytes] | None = None) -> None:
        self.contents = {path: bytearray(data) for path, data in (contents or {}).items()}
        self._directories: set[str] = set()

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if create:
            self.contents.setdefault(path, bytearray())
        if path not in self.contents:
            raise FileNotFoundError(2, "no such file", path)
        return MemoryFile(self.contents[path])

    def list(self, path: str) -> list[str]:
        below = f"{path}/"
        found = {
            name[len(below) :].partition("/")[0]
            for name in (*self.contents, *self._directories)
            if name.startswith(below)
        }
        if not found and path not in self._directories:
            raise FileNotFoundError(2, "no such directory", path)
        return sorted(found)

    def exists(self, path: str) -> bool:
        if path in self.contents or path in self._directories:
            return True
        return any(name.startswith(f"{path}/") for name in self.contents)

    def inode(self, path: str) -> int:
        return 1

    def stamp(self, path: str) -> str:
        return ""

    def space(self, path: str) -> Space:
        return Space(1 << 40, 1 << 40)

    def used(self, path: str) -> int:
        return sum(len(data) for name, data in self.contents.items() if name.startswith(path))

    def make_directory(self, path: str) -> None:
        self._directories.add(path)

    def rename(self, source: str, target: str) -> None:
        for name in [each for each in self.contents if f"{each}/".startswith(f"{source}/")]:
            self.contents[target + name[len(source) :]] = self.contents.pop(name)

    def remove(self, path: str) -> None:
        del self.contents[path]

    def remove_tree(self, path: str) -> None:
        self._directories = {each for each in self._directories if not each.startswith(path)}
        for name in [each for each in self.contents if each.startswith(f"{path}/")]:
            del self.contents[name]

    def sync_directory(self, path: str) -> None:
        """Do nothing: nothing is ever lost here."""
