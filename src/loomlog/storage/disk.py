"""The ports of files.py on a real disk: vectored I/O, workers, a lock.

A file is closed when its last user drops it: a reader in another thread may still use a file that
was trimmed, and its descriptor must not be reused meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Final, Protocol

from loomlog.errors import InvalidArgument
from loomlog.meters import note_sync
from loomlog.storage.files import File, Finished, Space, Step, UnsyncedError, Worker
from loomlog.types import Buffer

FILE_MODE: Final = 0o600  # entries and secrets are only for the user that runs the server
DIRECTORY_MODE: Final = 0o700

# An EagerWorker runs a job on the loop if the last one took less than QUICK_S, so that the loop is
# not blocked for long, and ended at least ALONE_S ago.
QUICK_S: Final = 0.001
ALONE_S: Final = 0.0003

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"  # only on Linux
_BLOCK_BYTES: Final = 512  # of st_blocks, whatever the file system
_BUFFERS_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)  # only on Linux
_NO_NOWAIT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class RealFile:
    """An open file."""

    __slots__ = ("_fd", "_nowait", "_path")

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._nowait = bool(_RWF_NOWAIT)

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        for start in range(0, len(buffers), _BUFFERS_MAX):
            offset = self._write_some(buffers[start : start + _BUFFERS_MAX], offset)

    def _write_some(self, buffers: Sequence[Buffer], offset: int) -> int:
        size = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, offset)
        while written < size:  # a signal, or a full disk, where the next write raises
            rest = _skip(buffers, written)
            written += os.pwritev(self._fd, rest, offset + written)
        return offset + size

    def read(self, size: int, offset: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        while done < size:
            try:
                got = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                error.filename = self._path
                raise
            if not got:
                break
            done += got
        view.release()
        del data[done:]
        return data

    def read_cached(self, size: int, offset: int) -> bytearray | None:
        if not self._nowait:
            return None
        data = bytearray(size)
        try:
            got = os.preadv(self._fd, [data], offset, _RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise
            self._nowait = False  # not supported by this file system
            return None
        if got < size and offset + got < self.size():
            return None
        del data[got:]
        return data

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def allocate(self, size: int) -> None:
        if size > 0:
            os.posix_fallocate(self._fd, 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        begun_s = perf_counter()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise UnsyncedError(error.errno, error.strerror, self._path) from error
        note_sync(begun_s)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RealFile({self._path!r})"


def _skip(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """Return the buffers without their first `count` bytes."""
    rest: list[Buffer] = []
    for buffer in buffers:
        if count >= len(buffer):
            count -= len(buffer)
        else:
            rest.append(memoryview(buffer)[count:])
            count = 0
    return rest


class RealFiles:
    """The file system of this machine."""

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, FILE_MODE))

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        """Raise OSError if it cannot be determined: a failing disk must not look empty."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def inode(self, path: str) -> int:
        return os.stat(path).st_ino

    def stamp(self, path: str) -> str:
        stat, boot = os.stat(path), _boot_id()
        place = f"{stat.st_dev} {stat.st_ino} {stat.st_ctime_ns}"  # ctime: inodes are reused
        return f"{boot} {place}" if boot else ""

    def space(self, path: str) -> Space:
        stat = os.statvfs(path)
        return Space(stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)

    def used(self, path: str) -> int:
        count, directories = 0, [path]
        linked: set[int] = set()  # inodes: files with several names count once
        while directories:
            with suppress(FileNotFoundError), os.scandir(directories.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.path)
                    else:
                        with suppress(FileNotFoundError):  # removed meanwhile
                            stat = entry.stat(follow_symlinks=False)
                            if stat.st_nlink == 1 or stat.st_ino not in linked:
                                count += stat.st_blocks * _BLOCK_BYTES
                            linked.update([stat.st_ino] if stat.st_nlink > 1 else ())
        return count

    def make_directory(self, path: str) -> None:
        parent = os.path.dirname(path)
        if parent and not os.path.isdir(parent):
            self.make_directory(parent)
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _boot_id() -> str:
    """Return the kernel's id of this boot; "" if it has none."""
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return ""


class Loop(Protocol):
    """The methods of an event loop that the worker uses."""

    def call_soon_threadsafe(
        self, callback: Callable[[BaseException | None], None], error: BaseException | None, /
    ) -> object: ...


class CallSoon(Protocol):
    """An event loop's call_soon."""

    def __call__(self, callback: Callable[[], None], /) -> object: ...


class ThreadWorker:
    """A dedicated thread: half the hand-over cost of an executor, and strictly in order.

    Its queue needs no bound: a journal has one job in progress, a reader one per subscription.
    """

    def __init__(self, loop: Loop, name: str = "loomlog-disk") -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[Sequence[Step], Finished] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        self._jobs.put((steps, finished))

    run_short = run

    @property
    def waiting(self) -> int:
        """The number of jobs that have not begun."""
        return self._jobs.qsize()

    def close(self) -> None:
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            steps, finished = job
            error = _run(steps)
            try:
                self._loop.call_soon_threadsafe(finished, error)
            except RuntimeError:  # the loop is closed: nobody awaits the result
                pass
            del job, steps, finished, error  # an idle thread must not keep files open


def _run(steps: Sequence[Step]) -> BaseException | None:
    try:
        for step in steps:
            step()
    except BaseException as error:  # handed to the loop, which decides
        return error
    return None


class EagerWorker:
    """Runs short jobs on the loop, and the others in a worker, in order.

    Handing a job to a thread and its result back to the loop costs about as much as a sync. So a
    short job that comes alone runs on the loop, provided that recent jobs were quick. It runs in
    the next iteration, so that messages sent in this one leave first. Jobs in close succession go
    to the thread, and so do all jobs while the disk is slow.
    """

    def __init__(
        self, worker: Worker, call_soon: CallSoon, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._worker = worker
        self._call_soon = call_soon
        self._clock = clock
        self._next: tuple[Sequence[Step], Finished] | None = None  # runs in the next iteration
        self._under_way = 0  # jobs in the thread
        self._ended_s = 0.0
        self._took_s = QUICK_S  # so that the first job, whose time is unknown, uses the thread

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        self._run_early()
        self._hand_over(steps, finished)

    def run_short(self, steps: Sequence[Step], finished: Finished) -> None:
        if self._next is not None:
            self._run_early()
        is_quick = self._took_s < QUICK_S and not self._under_way
        if is_quick and self._clock() - self._ended_s >= ALONE_S:
            self._next = steps, finished
            self._call_soon(self._run_here)
        else:
            self._hand_over(steps, finished)

    @property
    def waiting(self) -> int:
        """The number of jobs in the thread that have not ended."""
        return self._under_way

    def close(self) -> None:
        self._run_early()
        self._worker.close()

    def _run_early(self) -> None:
        """Run the job that waits for the next iteration now: another one must not overtake it."""
        if (job := self._next) is not None:
            self._call_soon(partial(job[1], self._run_next(job[0])))

    def _run_here(self) -> None:
        if (job := self._next) is not None:
            steps, finished = job
            finished(self._run_next(steps))

    def _run_next(self, steps: Sequence[Step]) -> BaseException | None:
        self._next = None
        began_s = self._clock()
        try:
            for step in steps:
                step()
        except Exception as error:  # not kept here: its frames may hold a database open
            return error
        finally:
            self._ended_s = ended_s = self._clock()
            self._took_s = ended_s - began_s
        return None

    def _hand_over(self, steps: Sequence[Step], finished: Finished) -> None:
        began_s = self._clock()

        def ended(error: BaseException | None) -> None:
            self._under_way -= 1
            self._ended_s = ended_s = self._clock()
            self._took_s = ended_s - began_s
            finished(error)

        self._under_way += 1
        self._worker.run(steps, ended)


class DirectoryLock:
    """The lock of a directory."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def lock_directory(path: str) -> DirectoryLock:
    """Lock a directory against other processes. The kernel unlocks it when this process ends."""
    fd = os.open(f"{path}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise InvalidArgument(
            f"{path} is in use by another process; stop it, or use another directory"
        ) from None
    return DirectoryLock(fd)
