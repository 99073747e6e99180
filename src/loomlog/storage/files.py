"""The ports to the disk: a file system, and a worker that runs blocking work off the loop.

Everything in storage/ except RocksDB reaches the disk through these two, so that the simulator can
replace them and lose unsynced writes on a crash. Calls of `Files` and `File` block: a server makes
them at start-up or inside a worker. The exception is `File.read_cached`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from traceback import clear_frames
from typing import Final, NamedTuple, Protocol, TypeAlias

from loomlog.errors import Corrupt
from loomlog.types import Buffer


class UnsyncedError(OSError):
    """A sync failed. Earlier writes may be lost even if a later sync succeeds."""


class DamagedRowsError(Corrupt):
    """Rows of a database cannot be read. Others may be missing unnoticed, so the database has to be
    salvaged."""


def is_of_disk(error: Exception) -> bool:
    """Return whether the disk failed or is full, as opposed to damaged contents. RocksDB's errors
    have no type of their own."""
    return isinstance(error, OSError) or str(error).startswith("IO error")


class Space(NamedTuple):
    """The space of a file system, in bytes."""

    free: int
    total: int


class File(Protocol):
    """An open file."""

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers one after the other at `offset`. Raise OSError if they were not written
        completely."""

    def read(self, size: int, offset: int) -> bytearray:
        """Return up to `size` bytes; fewer only at the end of the file."""

    def read_cached(self, size: int, offset: int) -> bytearray | None:
        """Like `read`, but return None instead of waiting for the disk. Never blocks."""

    def size(self) -> int: ...

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long; new bytes read as zeros."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when all writes to this file survive a power loss (fdatasync). Raise UnsyncedError
        if that failed."""

    def close(self) -> None: ...


# Two ways to read a file: `from_disk` waits for the disk, `from_cache` raises NotCached instead.
# Lookups are written once, against `Read`; on the event loop they get `from_cache`.
Read: TypeAlias = Callable[[File, int, int], bytearray]  # file, size, offset


class NotCached(Exception):  # noqa: N818 - not an error: read from the disk instead
    """The bytes are not in memory."""


def from_disk(file: File, size: int, offset: int) -> bytearray:
    return file.read(size, offset)


def from_cache(file: File, size: int, offset: int) -> bytearray:
    data = file.read_cached(size, offset)
    if data is None:
        raise NotCached
    return data


class Closable(Protocol):
    """A resource that is held until it is closed, such as a lock or a store."""

    def close(self) -> None: ...


def clear_frames_of(error: BaseException | None) -> None:
    """Clear the frames of an error's traceback: cursors in them would keep a database locked."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__context__


@contextmanager
def closed_on_failure(store: Closable) -> Iterator[None]:
    """Close a store if the body raises."""
    try:
        yield
    except BaseException as error:
        clear_frames_of(error)
        with suppress(Exception):
            store.close()
        raise


class Files(Protocol):
    """A file system. Paths are strings with `/`."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Raise FileNotFoundError if the file is missing, unless
        `create` is set."""

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory. Raise FileNotFoundError if it is missing."""

    def exists(self, path: str) -> bool: ...

    def inode(self, path: str) -> int:
        """Return a number that changes when something else is put at `path`. Raise
        FileNotFoundError if nothing is there."""

    def stamp(self, path: str) -> str:
        """Return a text that differs for every other file, including copies of this one, and that
        changes when the file is changed or the machine boots; "" if the system cannot tell."""

    def space(self, path: str) -> Space:
        """Return the space of the file system that holds `path`."""

    def used(self, path: str) -> int:
        """Return how many bytes the files under a directory take on the disk."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, unless it exists."""

    def rename(self, source: str, target: str) -> None:
        """Replace the target, atomically."""

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Return when creations, renames and removals in the directory survive a power loss."""


Step = Callable[[], None]
Finished = Callable[[BaseException | None], None]


_SECTOR_BYTES: Final = 512


def keep_copy(files: Files, path: str, file: File, begin: int, end: int | None = None) -> str:
    """Copy the bytes of a file from `begin` on to `….damaged`, unless they are zeros: they may have
    been valid data, and an operator may want them. Return the copy's path, or "". Blocking."""
    end = file.size() if end is None else end
    data = file.read(max(end - begin, 0), begin)
    used = len(data.rstrip(b"\0"))
    if not used:
        return ""
    del data[used + -used % _SECTOR_BYTES :]
    target = free_name(files, f"{path}.damaged")
    copy = files.open(target, create=True)
    copy.write([data], 0)
    copy.sync()
    copy.close()
    files.sync_directory(path.rpartition("/")[0])
    return target


def free_name(files: Files, path: str) -> str:
    """Return the path, with a number appended if it is taken."""
    name, number = path, 1
    while files.exists(name):
        number += 1
        name = f"{path}{number}"
    return name


class Worker(Protocol):
    """Runs blocking work away from the event loop, one job after the other, in order."""

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        """Run the steps in order, off the loop; then call `finished` on the loop with the error
        that stopped them, or None. In a simulation a crash may fall between two steps."""

    def run_short(self, steps: Sequence[Step], finished: Finished) -> None:
        """Like `run`, for a job that takes hardly longer than a sync. It may run on the loop."""

    def close(self) -> None:
        """Finish all jobs, then stop. Blocks; call it at shutdown."""


class FileWindow:
    """A window that moves forward over a file, read block by block."""

    def __init__(self, file: File, read: Read, block_bytes: int, limit: int) -> None:
        self._file = file
        self._read = read
        self._block_bytes = block_bytes
        self._limit = limit
        self._block = memoryview(b"")
        self._start = 0

    def at(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes at `offset`; fewer at the end of the file."""
        if offset < self._start or offset + size > self._start + len(self._block):
            want = min(max(size, self._block_bytes), max(self._limit - offset, 0))
            self._block = memoryview(self._read(self._file, want, offset))
            self._start = offset
        begin = offset - self._start
        return self._block[begin : begin + size]
