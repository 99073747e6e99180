"""A simulated disk behind the ports of `loomlog.storage.files`.

`SimDisk` belongs to a host and outlives its processes; `mount()` gives a process its `Files`.
When the process ends, its mount becomes stale, and further calls have no effect. A power loss
(`crash`) tears unsynced file contents (see blocks.py) and drops unsynced creations, renames and
removals: in each directory a prefix of them survives, never a later one without the earlier ones.
Nothing beyond POSIX is guaranteed: a synced file in an unsynced directory can vanish.
"""

from __future__ import annotations

import errno
import os
import posixpath
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from loomlog.storage.files import Finished, Space, Step, UnsyncedError
from loomlog.testing.sim.blocks import FileBlocks
from loomlog.testing.sim.loop import SimLoop
from loomlog.testing.sim.world import World
from loomlog.types import Buffer


class Directory:
    """One incarnation of a directory; a directory that is created again is another one."""

    __slots__ = ()


class Table(Protocol):
    """A database that is one file here, and applies a power loss itself."""

    def lose_power(self) -> None: ...


AnyTable = TypeVar("AnyTable", bound=Table)
Node: TypeAlias = FileBlocks | Directory | Table


@dataclass(slots=True)
class DiskSettings:
    """The behaviour of a disk, which may change during a run."""

    step_delay_s: float = 0.0002  # the longest step of a worker, usually ...
    tail_delay_s: float = 0.02  # ... sometimes ...
    tail_probability: float = 0.01
    stall_s: float = 0.3  # ... and rarely
    stall_probability: float = 0.0005
    cache_miss_probability: float = 0.1  # of read_cached
    error: int | None = None  # an errno that writes, allocations and syncs fail with


@dataclass(slots=True)
class _Change:
    """Changed entries of the namespace: path -> node, or gone. A rename changes two at once."""

    entries: tuple[tuple[str, Node | str], ...]
    directories: frozenset[str]
    parents: dict[str, Directory]  # the directories of the new ones, by path
    removed: dict[str, Node]  # the removed ones, by path


_GONE = "gone"
DiskImage: TypeAlias = tuple[
    dict[str, Node], dict[str, tuple[Node, Directory]], list[_Change]
]  # the current state, the one that survives a power loss, and the changes in between


class SimDisk:
    """The storage of one host."""

    def __init__(self, world: World, host: str, settings: DiskSettings | None = None) -> None:
        self.settings = settings or DiskSettings()
        self._world = world
        self._host = host
        root = Directory()
        self._nodes: dict[str, Node] = {"/": root}
        self._synced: dict[str, tuple[Node, Directory]] = {"/": (root, root)}  # and in which
        self._changes: list[_Change] = []
        self._mount: SimFiles | None = None
        self._boots = 0  # and copies that were put back
        self.failed = False  # at some time in this run; then its host may log errors
        self._strike_in = 0  # changes until `_strike`; 0: never
        self._strike: Callable[[], None] | None = None

    def strike_after(self, changes: int, strike: Callable[[], None] | None) -> None:
        """Call `strike`, e.g. a crash, in place of a later change; None: never."""
        self._strike_in, self._strike = (changes, strike) if strike else (0, None)

    def changing(self) -> None:
        """Called before a change or a sync."""
        if self._strike_in:
            self._strike_in -= 1
            if not self._strike_in and self._strike is not None:
                strike, self._strike = self._strike, None
                strike()

    def fail_after(self, changes: int, number: int) -> None:
        """Fail one later change, counted from now, with this errno."""

        def fail() -> None:
            self.failed = True
            raise _os_error(number, self._host)

        self.strike_after(changes, fail)

    def mount(self) -> SimFiles:
        self.unmount()
        self._mount = SimFiles(self)
        return self._mount

    def unmount(self) -> None:
        """Called when the process has ended; the page cache stays."""
        if self._mount is not None:
            self._mount.stale = True
            self._mount = None

    def copy(self) -> DiskImage:
        """Return a copy of its content, for `restore`."""
        return deepcopy((self._nodes, self._synced, self._changes))

    def restore(self, image: DiskImage | None) -> None:
        """Replace the content by that of a copy; None: empty. No process may use the disk."""
        self.unmount()
        self._boots += 1
        root = Directory()
        empty: DiskImage = {"/": root}, {"/": (root, root)}, []
        self._nodes, self._synced, self._changes = deepcopy(image) if image else empty

    def crash(self) -> None:
        """Lose power."""
        self.unmount()
        self._boots += 1
        self._lose_changes()
        self._nodes = {}
        for path in sorted(self._synced):
            node, parent = self._synced[path]
            if path != "/" and self._nodes.get(posixpath.dirname(path)) is not parent:
                del self._synced[path]  # its directory was lost, and sorts before it
                continue
            self._nodes[path] = node
            if isinstance(node, FileBlocks):
                node.crash(self._world.random)
            elif not isinstance(node, Directory):
                node.lose_power()
        self._world.note(self._host, "disk after crash", len(self._nodes))

    def _lose_changes(self) -> None:
        """Keep a prefix of each directory's changes; a rename survives as a whole or not at all."""
        lost: set[str] = set()
        for change in self._changes:
            if lost.isdisjoint(change.directories) and self._world.chance(0.6):
                self._settle(change)
            else:
                lost |= change.directories
        self._changes.clear()

    def change(self, *entries: tuple[str, Node | str]) -> None:
        directories = frozenset(posixpath.dirname(path) for path, _ in entries)
        removed = {path: self._nodes.pop(path) for path, node in entries if node is _GONE}
        self._nodes.update((path, node) for path, node in entries if not isinstance(node, str))
        parents = {}
        for path, node in entries:
            parent = self._nodes.get(posixpath.dirname(path))
            if node is not _GONE and isinstance(parent, Directory):
                parents[path] = parent
        self._changes.append(_Change(entries, directories, parents, removed))

    def _settle(self, change: _Change) -> None:
        """Make a change survive a power loss."""
        for path, node in change.entries:
            if not isinstance(node, str):
                self._synced[path] = (node, change.parents[path])
            elif path in self._synced and self._synced[path][0] is change.removed[path]:
                del self._synced[path]  # what was in it has lost its directory

    def sync_directory(self, path: str) -> None:
        """Make the changes in a directory durable, with those that they depend on."""
        wanted = {path}
        kept, synced = [], []
        for change in reversed(self._changes):
            if wanted.isdisjoint(change.directories):
                kept.append(change)
            else:
                wanted |= change.directories
                synced.append(change)
        for change in reversed(synced):
            self._settle(change)
        self._changes = kept[::-1]

    def find(self, path: str) -> Node:
        try:
            return self._nodes[path]
        except KeyError:
            raise _os_error(errno.ENOENT, path) from None

    def stamp(self, path: str) -> str:
        self.find(path)
        return f"{self._boots} {path}"

    def holds(self, path: str) -> bool:
        return path in self._nodes

    def below(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return sorted(found for found in self._nodes if found.startswith(prefix) and found != "/")

    def fail_if_broken(self, path: str) -> None:
        if self.settings.error is not None:
            self.failed = True
            raise _os_error(self.settings.error, path)

    def lets_through(self) -> bool:
        """Return whether a table's failed commit has taken effect nevertheless."""
        return self._world.chance(0.5)

    def misses_cache(self) -> bool:
        return self._world.chance(self.settings.cache_miss_probability)

    def step_delay_s(self) -> float:
        random = self._world.random
        chance = random.random()
        if chance < self.settings.stall_probability:
            return self.settings.stall_s
        if chance < self.settings.stall_probability + self.settings.tail_probability:
            return random.random() * self.settings.tail_delay_s
        return random.random() * self.settings.step_delay_s

    def note(self, what: str, *details: object) -> None:
        self._world.note(self._host, what, *details)


class SimFiles:
    """`storage.files.Files` on a simulated disk, for one life of a process."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.stale = False

    def open(self, path: str, *, create: bool = False) -> SimFile:
        path = self.check(path)
        if create and not self.disk.holds(path):
            self._require_directory(posixpath.dirname(path))
            self.changing(path)
            self.disk.change((path, FileBlocks()))
        node = self.disk.find(path)
        if not isinstance(node, FileBlocks):
            raise _os_error(errno.EISDIR, path)
        return SimFile(self, path, node)

    def open_table(self, path: str, kind: type[AnyTable]) -> AnyTable:
        """Return the table at a path; create it if it is missing."""
        path = self.check(path)
        if not self.disk.holds(path):
            self._require_directory(posixpath.dirname(path))
            self.changing(path)
            self.disk.change((path, kind()))
        node = self.disk.find(path)
        if not isinstance(node, kind):
            raise _os_error(errno.EEXIST, path)
        return node

    def list(self, path: str) -> list[str]:
        path = self.check(path)
        self._require_directory(path)
        names = self.disk.below(path)
        return [posixpath.basename(name) for name in names if posixpath.dirname(name) == path]

    def exists(self, path: str) -> bool:
        return self.disk.holds(self.check(path))

    def inode(self, path: str) -> int:
        return id(self.disk.find(self.check(path)))

    def stamp(self, path: str) -> str:
        return self.disk.stamp(self.check(path))

    def space(self, path: str) -> Space:
        free = 0 if self.disk.settings.error == errno.ENOSPC else sys.maxsize
        return Space(free, sys.maxsize)

    def used(self, path: str) -> int:
        self.check(path)
        return 0  # simulated volumes have no limits

    def make_directory(self, path: str) -> None:
        path = self.check(path)
        for directory in reversed([path, *_parents(path)]):
            if not self.disk.holds(directory):
                self.changing(directory)
                self.disk.change((directory, Directory()))
            self._require_directory(directory)

    def rename(self, source: str, target: str) -> None:
        source, target = self.check(source), self.check(target)
        self._require_directory(posixpath.dirname(target))
        moved = [
            (path, target + path[len(source) :], self.disk.find(path))
            for path in (source, *self.disk.below(source))
        ]
        self.changing(source)
        self.disk.change(
            *((old, _GONE) for old, _, _ in moved), *((new, node) for _, new, node in moved)
        )
        self.disk.note("rename", source, target)

    def remove(self, path: str) -> None:
        path = self.check(path)
        if isinstance(self.disk.find(path), Directory):
            raise _os_error(errno.EISDIR, path)
        self.changing(path)
        self.disk.change((path, _GONE))

    def remove_tree(self, path: str) -> None:
        path = self.check(path)
        self.disk.find(path)
        for found in reversed([path, *self.disk.below(path)]):
            self.changing(found)
            self.disk.change((found, _GONE))

    def sync_directory(self, path: str) -> None:
        path = self.check(path)
        self._require_directory(path)
        self.changing(path)
        self.disk.sync_directory(path)

    def check(self, path: str) -> str:
        if self.stale:
            raise _os_error(errno.EIO, path)  # a process that is gone
        return posixpath.normpath(posixpath.join("/", path))

    def changing(self, path: str) -> None:
        """Called before a change, which may never happen if the process is struck now."""
        self.disk.changing()
        self.check(path)
        self.disk.fail_if_broken(path)

    def _require_directory(self, path: str) -> None:
        if not isinstance(self.disk.find(path), Directory):
            raise _os_error(errno.ENOTDIR, path)


class SimFile:
    """`storage.files.File` on a simulated disk."""

    def __init__(self, files: SimFiles, path: str, blocks: FileBlocks) -> None:
        self._files = files
        self._path = path
        self._blocks = blocks
        self._closed = False

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        try:
            self._change("write", offset)
        except OSError:
            if not self._files.stale:  # a full disk takes what fits
                self._blocks.write(data[: len(data) // 2], offset)
            raise
        self._blocks.write(data, offset)

    def read(self, size: int, offset: int) -> bytearray:
        self._check()
        return self._blocks.read(size, offset)

    def read_cached(self, size: int, offset: int) -> bytearray | None:
        self._check()
        return None if self._files.disk.misses_cache() else self._blocks.read(size, offset)

    def size(self) -> int:
        self._check()
        return self._blocks.size

    def allocate(self, size: int) -> None:
        if size > self.size():
            self._change("allocate", size)
            self._blocks.resize(size)

    def truncate(self, size: int) -> None:
        self._change("truncate", size)
        self._blocks.resize(size)

    def sync(self) -> None:
        try:
            self._change("sync", self._blocks.size)
        except OSError as error:
            self._blocks.fail_sync()
            raise UnsyncedError(*error.args) from error
        self._blocks.sync()

    def close(self) -> None:
        self._closed = True

    def _change(self, what: str, number: int) -> None:
        self._check()
        self._files.changing(self._path)
        self._files.disk.note(what, self._path, number)

    def _check(self) -> None:
        if self._closed:
            raise _os_error(errno.EBADF, self._path)
        if self._files.stale:
            raise _os_error(errno.EIO, self._path)


class SimWorker:
    """`storage.files.Worker` in virtual time: each step has its own delay, so that a crash can
    happen between any two."""

    def __init__(self, loop: SimLoop, disk: SimDisk) -> None:
        self._loop = loop
        self._disk = disk
        self._jobs: deque[tuple[deque[Step], Finished]] = deque()
        self._closed = False

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        if self._closed:
            raise RuntimeError("the worker is closed")
        self._jobs.append((deque(steps), finished))
        if len(self._jobs) == 1:
            self._later()

    run_short = run

    def close(self) -> None:
        self._closed = True
        while self._jobs and not self._loop.killed:
            self._step()

    def _later(self) -> None:
        self._loop.world.after(self._disk.step_delay_s(), self._next)

    def _next(self) -> None:
        if self._jobs and not self._loop.killed:
            self._step()
            if self._jobs:
                self._later()

    def _step(self) -> None:
        steps, finished = self._jobs[0]
        error: Exception | None = None
        try:
            if steps:
                steps.popleft()()
        except Exception as raised:
            error = raised
        if error is not None or not steps:
            self._jobs.popleft()
            self._loop.call_soon_threadsafe(finished, error)


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = posixpath.dirname(path)
        yield path


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
