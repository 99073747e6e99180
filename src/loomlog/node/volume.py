"""The health of a node's volume.

Stores report every error that they meet, and the volume is checked now and then: are the
directories still there, can a file be written and synced, is there space? A volume that failed is
used again when a check finds nothing wrong, at the earliest after `VOLUME_FAILED_S`. The node is
notified when that changes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from loomlog import limits
from loomlog.core.conditions import Condition, Kind
from loomlog.node.workers import off_loop
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
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))


class Look(NamedTuple):
    """The result of a check."""

    error: str = ""
    vanished: frozenset[str] = frozenset()  # directories that are gone, or were replaced
    nearly_full: bool = False


class Volume:
    """Lives on the loop; `watch` may be called in any thread."""

    def __init__(
        self,
        files: Files,
        path: str,
        new_worker: Callable[[], Worker],
        changed: Callable[[Volume], None],
    ) -> None:
        """`path`: the node's directory on the volume. Blocks."""
        self.path = path
        self.error = ""  # why it does not work
        self.vanished: frozenset[str] = frozenset()
        self.nearly_full = False
        self._files = files
        self._new_worker = new_worker
        self._worker: Worker | None = None
        self._changed = changed
        self._watched = {path: files.inode(path)}
        self._usable_at_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._doubted = asyncio.Event()
        self._looking = asyncio.Lock()

    @property
    def works(self) -> bool:
        return not self.error

    @property
    def is_full(self) -> bool:
        """Whether it failed for lack of space, which harms nothing that is stored."""
        return any(reason.lower() in self.error.lower() for reason in _FULL)

    @property
    def takes_more(self) -> bool:
        """Whether anything new should be put there."""
        return self.works and not self.nearly_full

    @property
    def condition(self) -> str:
        """A sentence for operators about the volume; empty if nothing is wrong."""
        if self.nearly_full and not self.error:
            return f"volume {self.name} is nearly full, nothing new is placed there: free space"
        return self.problem_of(self.path)

    @property
    def conditions(self) -> list[Condition]:
        if not self.condition:
            return []
        kind = Kind.VOLUME_FULL if self.is_full else Kind.VOLUME_FAILED
        kind = kind if self.error else Kind.VOLUME_NEARLY_FULL
        return [Condition(kind, self.condition, volume=self.name)]

    @property
    def name(self) -> str:
        """The directory that the node was started with."""
        return self.path.rpartition("/cid=")[0] or "/"

    def problem_of(self, path: str) -> str:
        """Return a sentence about a directory on the volume; empty if nothing is wrong."""
        if path in self.vanished and self.path not in self.vanished:
            return f"{path} is gone or was replaced"
        if not self.error:
            return ""
        advice = ": free space" if self.is_full else ""
        return f"volume {self.name} failed: {self.error}{advice}"

    def space(self) -> Space:
        """Return the space of its file system. Blocks."""
        return self._files.space(self.path)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look_now_and_then())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def watch(self, path: str) -> None:
        """Notice when this directory vanishes. Blocks."""
        self._watched[path] = self._files.inode(path)

    def forget(self, path: str) -> None:
        self._watched.pop(path, None)

    def failed(self, error: BaseException) -> None:
        """Called by a store that could not change anything because of this error."""
        self._doubted.set()
        if isinstance(error, OSError) and not is_of_volume(error):
            return  # such as of a replica that was just removed: check
        loop = asyncio.get_running_loop()
        self._usable_at_s = loop.time() + limits.VOLUME_FAILED_S
        self._take(Look(describe(error), self.vanished, self.nearly_full))

    async def look(self) -> None:
        """Check the volume now."""
        async with self._looking:
            self._worker = self._worker or self._new_worker()
            found = await off_loop(self._worker, self._look)
        now_s = asyncio.get_running_loop().time()
        is_better = self.error and not found.error
        if is_better and (found.nearly_full or now_s < self._usable_at_s):
            found = found._replace(error=self.error)
        self._take(found)

    async def _look_now_and_then(self) -> None:
        while True:
            delay_s = limits.VOLUME_LOOK_S if self.works else limits.VOLUME_LOOK_FAILED_S
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._doubted.wait()
            self._doubted.clear()
            await self.look()

    def _look(self) -> Look:
        """Check the volume, in the worker."""
        vanished = frozenset(
            p for p, inode in list(self._watched.items()) if self._is_gone(p, inode)
        )
        if self.path in vanished:
            return Look("its directory is gone or was replaced: bring it back", vanished)
        try:
            self._write()
            free, total = self._files.space(self.path)
        except OSError as error:
            return Look(describe(error), vanished)
        reserve = min(limits.VOLUME_RESERVE_BYTES, total // limits.VOLUME_RESERVE_PART)
        return Look("", vanished, free < reserve)

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

    def _take(self, found: Look) -> None:
        if found == (self.error, self.vanished, self.nearly_full):
            return
        before = self.condition
        self.error, self.vanished, self.nearly_full = found
        if self.condition != before:
            level = logging.ERROR if self.error else logging.WARNING
            logger.log(level, "%s", self.condition or f"{self.path} is well again")
        if self._task is not None:
            self._changed(self)


def is_of_volume(error: OSError) -> bool:
    """Return whether everything on the same volume is going to meet this error."""
    return error.errno is None or error.errno in _OF_VOLUMES


def describe(error: BaseException) -> str:
    """Return what an error says of the disk, without the path that it happened to meet."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
