"""The health of a node's volume, and its space.

Stores report every error, and the volume is checked periodically: do the directories still exist,
can a file be written and synced, is there space? A failed volume is used again when a check finds
nothing wrong, at the earliest after `VOLUME_FAILED_S`. The node is notified of changes.

A volume is nearly full when less than a reserve is left of the file system, or of the limit set by
an operator. Protocols then accept no new appends there. Appends that have begun, recovery and
rebuilding may use the reserve, except for its last part (`is_spent`), which is kept for operations
that free space.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from loomlog import limits
from loomlog.config import VolumeLimit
from loomlog.core.conditions import Condition, Kind
from loomlog.limits import MIB
from loomlog.node.workers import off_loop
from loomlog.storage import set_aside
from loomlog.storage.disk_speed import DiskSpeed, measure
from loomlog.storage.files import Files, Space, Worker

logger = logging.getLogger(__name__)

ADVICE: Final = "restore the directory, or move it away and start the node again"

_CONTENT = bytes(4096)
_OF_VOLUMES = (
    errno.EIO,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.ENXIO,
    errno.ENODEV,
    errno.ESTALE,
    errno.ENOTCONN,
)
_ENOUGH: Final = 1.25  # this many reserves must be free before appends are accepted again
_SPENT: Final = 0.25  # of the reserve
_COUNT_PART: Final = 100  # counting used bytes takes at most 1/100 of the time
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))


class Look(NamedTuple):
    """The result of a check."""

    error: str = ""
    vanished: frozenset[str] = frozenset()  # directories that are gone or were replaced
    nearly_full: bool = False  # new appends are refused
    is_spent: bool = False  # most of the reserve is used


class Room(NamedTuple):
    """The space on a volume, in bytes."""

    used: int = 0  # by this node
    limit: int = 0  # for this node; 0: none
    free: int = 0  # in the file system
    total: int = 0

    @property
    def reserves(self) -> float:
        """The reserves that are left, of the file system or of the limit."""
        left = [(self.free, self.total)]
        left += [(self.limit - self.used, self.limit)] if self.limit else []
        return min(rest / max(1, reserve_of(whole)) for rest, whole in left)

    @property
    def left_bytes(self) -> int:
        """The number of bytes that can be written before the volume is nearly full."""
        left = [self.free - reserve_of(self.total)]
        left += [self.limit - self.used - reserve_of(self.limit)] if self.limit else []
        return max(0, min(left))

    def __str__(self) -> str:
        if self.limit and self.limit - self.used < self.free:
            return f"{_mib(self.used)} of its limit of {_mib(self.limit)} are used"
        return f"{_mib(self.free)} of {_mib(self.total)} are free"


def reserve_of(size: int) -> int:
    return min(limits.VOLUME_RESERVE_BYTES, size // limits.VOLUME_RESERVE_PART)


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"


class Volume:
    """A volume of this node. Lives on the loop; `watch` may be called in any thread."""

    def __init__(
        self,
        files: Files,
        path: str,
        new_worker: Callable[[], Worker],
        changed: Callable[[Volume], None],
        limit: VolumeLimit | None = None,
    ) -> None:
        """`path` is the node's directory on the volume. Blocks."""
        self.path = path
        self.error = ""  # why it does not work
        self.vanished: frozenset[str] = frozenset()
        self.nearly_full = False
        self.draining = False  # an operator empties it
        self.is_spent = False
        self.room = Room()  # as of the last measurement
        self._limit = limit or VolumeLimit()
        self._counted = 0  # bytes used by this node, when they were last counted
        self._free_when_counted = 0  # bytes free in the file system at that time
        self._count_again_s = 0.0  # when to count again, at the earliest
        self._files = files
        self._new_worker = new_worker
        self._worker: Worker | None = None
        self._meter: Worker | None = None  # measures the space while a check waits for the disk
        self._measuring = threading.Lock()
        self._changed = changed
        self._watched = {path: files.inode(path)}
        self._aside: dict[str, int] = {}  # damaged data that was set aside, and its size in bytes
        self._look_aside()
        self._usable_at_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._doubted = asyncio.Event()
        self._looking = asyncio.Lock()

    @property
    def works(self) -> bool:
        return not self.error

    @property
    def is_full(self) -> bool:
        """True if it failed for lack of space, which does not affect stored data."""
        return any(reason.lower() in self.error.lower() for reason in _FULL)

    @property
    def takes_more(self) -> bool:
        """True if new data should be placed here."""
        return self.works and not self.nearly_full and not self.draining

    @property
    def refusal(self) -> str:
        """The reason to place no new data here; "" if there is none."""
        drained = f"volume {self.name} is drained" if self.draining else ""
        return self.condition or drained

    @property
    def condition(self) -> str:
        """A sentence for operators about the volume; "" if nothing is wrong."""
        if self.nearly_full and not self.error:
            raise_limit = ", or raise its --volume-limit" if self.room.limit else ""
            return (
                f"volume {self.name} takes no appends, {self.room}: free space, trim logs, add "
                f"nodes{raise_limit}"
            )
        return self.problem_of(self.path)

    @property
    def conditions(self) -> list[Condition]:
        aside = [
            Condition(
                Kind.DATA_LEFT_OVER,
                f"{path} is damaged and was set aside, {_mib(size)}",
                f"when its logs are whole, run `vsn damaged --volumes {self.name} --delete`",
                volume=self.name,
            )
            for path, size in self._aside.items()
        ]
        if not self.condition:
            return aside
        kind = Kind.VOLUME_FULL if self.is_full else Kind.VOLUME_FAILED
        kind = kind if self.error else Kind.VOLUME_NEARLY_FULL
        return [Condition(kind, self.condition, volume=self.name), *aside]

    @property
    def name(self) -> str:
        """The directory that the operator configured."""
        return self.path.rpartition("/cid=")[0] or "/"

    def lacks(self, path: str) -> bool:
        """Return whether a directory is gone or was replaced, although the volume exists."""
        return path in self.vanished and self.path not in self.vanished

    def problem_of(self, path: str) -> str:
        """Return a sentence about a directory on the volume; "" if nothing is wrong."""
        if self.lacks(path):
            return f"{path} is gone or was replaced"
        if not self.error:
            return ""
        advice = ": free space" if self.is_full else ""
        return f"volume {self.name} failed: {self.error}{advice}"

    def space(self) -> Space:
        """Return the space of the file system. Blocks."""
        return self._files.space(self.path)

    async def measure(self) -> DiskSpeed:
        """Measure the time of a small synced write."""
        async with self._looking:
            self._worker = self._worker or self._new_worker()
            return await off_loop(self._worker, partial(measure, self._files, self.path))

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look_periodically())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def watch(self, path: str) -> None:
        """Report from now on if this directory vanishes. Blocks."""
        self._watched[path] = self._files.inode(path)

    def forget(self, path: str) -> None:
        self._watched.pop(path, None)

    def give_up(self, path: str) -> None:
        """Forget a directory that is gone."""
        self.forget(path)
        self.vanished -= {path}

    async def trust(self, path: str) -> None:
        """Watch a directory again that had vanished and was created again."""
        async with self._looking:
            self._worker = self._worker or self._new_worker()
            await off_loop(self._worker, partial(self.watch, path))
        self._take(Look(self.error, self.vanished - {path}, self.nearly_full, self.is_spent))

    def failed(self, error: BaseException) -> None:
        """Called by a store when a change failed with this error."""
        self._doubted.set()
        if isinstance(error, OSError) and not is_of_volume(error):
            return  # perhaps of a replica that was just removed: the check will tell
        loop = asyncio.get_running_loop()
        self._usable_at_s = loop.time() + limits.VOLUME_FAILED_S
        self._take(Look(describe(error), self.vanished, self.nearly_full, self.is_spent))

    def look_soon(self) -> None:
        """Check the volume soon, because something was set aside on it."""
        self._doubted.set()

    async def look(self) -> None:
        """Check the volume now."""
        async with self._looking:
            self._worker = self._worker or self._new_worker()
            looking = asyncio.ensure_future(off_loop(self._worker, self._look))
            try:
                while not (await asyncio.wait([looking], timeout=self._measure_in_s))[0]:
                    self._meter = self._meter or self._new_worker()
                    await self._measure_with(self._meter)
                result = looking.result()
            finally:
                looking.cancel()
        now_s = asyncio.get_running_loop().time()
        is_better = self.error and not result.error
        if is_better and (result.nearly_full or now_s < self._usable_at_s):
            result = result._replace(error=self.error)
        self._take(result)

    async def _look_periodically(self) -> None:
        loop = asyncio.get_running_loop()
        look_at_s = 0.0
        while True:
            delay_s = limits.VOLUME_LOOK_S if self.works else limits.VOLUME_LOOK_FAILED_S
            look_at_s = look_at_s or loop.time() + delay_s
            with suppress(TimeoutError):
                async with asyncio.timeout(min(look_at_s - loop.time(), self._measure_in_s)):
                    await self._doubted.wait()
            if self._doubted.is_set() or loop.time() >= look_at_s or not self.works:
                self._doubted.clear()
                look_at_s = 0.0
                await self.look()
            else:
                await self._measure_soon()

    @property
    def _measure_in_s(self) -> float:
        """When to measure again: before a fast disk could have filled the remaining space."""
        in_s = self.room.left_bytes / limits.VOLUME_BYTES_PER_S if self.room.total else 0.0
        return max(in_s, limits.VOLUME_MEASURE_S)

    async def _measure_soon(self) -> None:
        """Measure only the space, which costs almost nothing."""
        async with self._looking:
            self._worker = self._worker or self._new_worker()
            await self._measure_with(self._worker)

    async def _measure_with(self, worker: Worker) -> None:
        try:
            measured = await off_loop(worker, self._measure)
        except OSError:
            self._doubted.set()
        else:
            self._take(Look(self.error, self.vanished, *measured))

    def _look(self) -> Look:
        """Check the volume, in the worker."""
        vanished = frozenset(
            p for p, inode in list(self._watched.items()) if self._is_gone(p, inode)
        )
        if self.path in vanished:
            return Look("its directory is gone or was replaced: bring it back", vanished)
        try:
            self._look_aside()
            self._write()
            return Look("", vanished, *self._measure())
        except OSError as error:
            return Look(describe(error), vanished)

    def _look_aside(self) -> None:
        """Find data that was set aside. Blocks."""
        before, used = self._aside, self._files.used
        paths = set_aside.find(self._files, self.path)
        self._aside = {path: before[path] if path in before else used(path) for path in paths}

    def _measure(self) -> tuple[bool, bool]:
        """Measure the space, in a worker. Return `nearly_full` and `is_spent`."""
        with self._measuring:
            return self._measure_alone()

    def _measure_alone(self) -> tuple[bool, bool]:
        space = self._files.space(self.path)
        is_counted = time.monotonic() >= self._count_again_s
        if is_counted:
            self._count(space)
        room, enough = self._room(space), _ENOUGH if self.nearly_full else 1.0
        if not is_counted and not self.nearly_full and room.reserves < enough:
            self._count(space)  # other programs may have used the space
            room = self._room(space)
        self.room = room
        # Judged by the disk alone: passing a limit breaks nothing.
        is_spent = room.free < _SPENT * reserve_of(room.total)
        return room.reserves < enough or is_spent, is_spent

    def _count(self, space: Space) -> None:
        began_s = time.monotonic()
        self._counted, self._free_when_counted = self._files.used(self.path), space.free
        took_s = time.monotonic() - began_s
        self._count_again_s = began_s + max(limits.VOLUME_LOOK_S, took_s * _COUNT_PART)

    def _room(self, space: Space) -> Room:
        """Return the space. Until bytes are counted again, all space that disappears counts as used
        by this node."""
        used = self._counted + max(0, self._free_when_counted - space.free)
        return Room(used, self._limit.of(space.total), *space)

    def _is_gone(self, path: str, inode: int) -> bool:
        try:
            return self._files.inode(path) != inode
        except OSError:
            return True

    def _write(self) -> None:
        file = self._files.open(f"{self.path}/probe", create=True)
        try:
            file.write([_CONTENT], 0)
            file.sync()
        finally:
            file.close()

    def _take(self, result: Look) -> None:
        before = Look(self.error, self.vanished, self.nearly_full, self.is_spent)
        if result == before:
            return
        self.error, self.vanished, self.nearly_full, self.is_spent = result
        if result[:3] != before[:3]:
            level = logging.ERROR if self.error else logging.WARNING
            logger.log(level, "%s", self.condition or f"{self.path} is well again")
        if self._task is not None:
            self._changed(self)


def is_of_volume(error: OSError) -> bool:
    """Return whether an error affects the whole volume."""
    return error.errno is None or error.errno in _OF_VOLUMES


def describe(error: BaseException) -> str:
    """Return the message of an error without its path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
