"""A storage engine driven by hand: no thread, no clock, the real disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hand_worker import HandWorker

from loomlog.batch import assign_llsn, build, split
from loomlog.config import StorageSettings
from loomlog.limits import KIB
from loomlog.storage.disk import RealFiles
from loomlog.storage.files import File, Files, Finished
from loomlog.storage.ordered.journal import Journal
from loomlog.storage.ordered.replica_paths import StreamMeta
from loomlog.storage.ordered.stream_store import StreamStore
from loomlog.types import Buffer, CommitContext, SyncMode

STREAM = 7


@dataclass
class HandTimer:
    delay: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class HandClock:
    """Timers ring when told to."""

    def __init__(self) -> None:
        self._timers: list[HandTimer] = []

    @property
    def timers(self) -> list[HandTimer]:
        return [timer for timer in self._timers if not timer.cancelled]

    def call_later(self, delay: float, callback: Callable[[], None], /) -> HandTimer:
        timer = HandTimer(delay, callback)
        self._timers.append(timer)
        return timer

    def ring(self) -> None:
        """Let all that are set go off."""
        ringing, self._timers = self.timers, []
        for timer in ringing:
            timer.callback()


@dataclass
class DiskLog:
    """Records the calls to a disk, and makes some of them fail."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    bytes_read: Counter[str] = field(default_factory=Counter)
    broken: dict[tuple[str, str], OSError] = field(default_factory=dict)  # (call, part of a path)

    def note(self, call: str, path: str) -> None:
        self.calls.append((call, path))
        for (broken, part), error in self.broken.items():
            if broken == call and part in path:
                raise error

    def count(self, call: str, part: str = "") -> int:
        return sum(1 for found, path in self.calls if found == call and part in path)


class WatchedFile:
    def __init__(self, file: File, path: str, log: DiskLog) -> None:
        self._file = file
        self._path = path
        self._log = log

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._log.note("write", self._path)
        self._file.write(buffers, offset)

    def read(self, size: int, offset: int) -> bytearray:
        data = self._file.read(size, offset)
        self._log.note("read", self._path)
        self._log.bytes_read[self._path] += len(data)
        return data

    def read_cached(self, size: int, offset: int) -> bytearray | None:
        self._log.note("read_cached", self._path)
        return self._file.read_cached(size, offset)

    def size(self) -> int:
        return self._file.size()

    def allocate(self, size: int) -> None:
        self._log.note("allocate", self._path)
        self._file.allocate(size)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._log.note("sync", self._path)
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class WatchedFiles(RealFiles):
    """The real disk under observation."""

    def __init__(self) -> None:
        self.log = DiskLog()

    def open(self, path: str, *, create: bool = False) -> File:
        return WatchedFile(super().open(path, create=create), path, self.log)

    def rename(self, source: str, target: str) -> None:
        self.log.note("rename", target)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.log.note("remove", path)
        super().remove(path)


SMALL = StorageSettings(
    data_file_bytes=8 * KIB,
    commit_file_bytes=1024 + 8 * 64,
    index_interval_bytes=512,
    spare_files_max=2,
)


class StorageRig:
    """One replica with its journal. `settle` lets everything that was asked for happen."""

    def __init__(
        self, path: str, settings: StorageSettings = SMALL, files: Files | None = None
    ) -> None:
        self.files = files or RealFiles()
        self.path = path
        self.settings = settings
        self.worker = HandWorker()
        self.clock = HandClock()
        self.journal = Journal(self.worker, self.clock.call_later, settings)
        self.answers: list[BaseException | None] = []
        if self.files.exists(f"{path}/meta"):
            self.store = StreamStore.open(self.files, path, self.journal, settings)
        else:
            meta = StreamMeta(log_id=1, stream_id=STREAM)
            self.store = StreamStore.create(self.files, path, meta, self.journal, settings)

    def data_files(self) -> list[str]:
        return [name for name in self.files.list(f"{self.path}/data") if name.endswith(".seg")]

    @property
    def next_llsn(self) -> int:
        return self.store.last_llsn + 1

    def done(self, error: BaseException | None) -> None:
        self.answers.append(error)

    def settle(self) -> None:
        while self.worker.jobs or self.clock.timers:
            while self.worker.jobs:
                self.worker.work()
            self.clock.ring()

    def append(
        self, *sizes: int, epoch: int = 1, count: int = 1, done: Finished | None = None
    ) -> list[bytearray]:
        """Batches of `count` entries each, with bodies of the sizes given; not settled."""
        first = llsn = self.next_llsn
        batches = []
        for size in sizes:
            batches.append(batch(llsn, size, epoch=epoch, count=count))
            llsn += count
        self.store.append([memoryview(b) for b in batches], first, llsn - 1, done or self.done)
        return batches

    def commit(
        self,
        glsn: int,
        length: int,
        *,
        high_watermark: int = 0,
        epoch: int = 1,
        done: Finished | None = None,
    ) -> None:
        """The next `length` entries get GLSNs from `glsn` on; not settled."""
        newest = self.store._commits.empty or self.store._commits.last
        before, llsn = (newest.high_watermark, newest.last_llsn + 1) if newest else (0, 1)
        high_watermark = high_watermark or glsn + length - 1
        self.store.commit(
            CommitContext(high_watermark, before, glsn, llsn, length, epoch), done or self.done
        )

    def fill(self, batches: int, size: int = 300) -> list[bytearray]:
        """Append and commit that many batches, one by one: LLSN = GLSN."""
        stored = []
        for _ in range(batches):
            llsn = self.next_llsn
            stored += self.append(size)
            self.commit(llsn, 1)
        self.settle()
        return stored

    def read_all(self, first_llsn: int, last_llsn: int) -> list[int]:
        """The GLSNs of entries as read back, batch by batch, each checked."""
        found: list[int] = []
        while first_llsn <= last_llsn:
            chunk = self.store.read(first_llsn, last_llsn, 4096)
            assert chunk.first_llsn <= first_llsn
            for header, _ in split(chunk.buffer):
                found += range(header.first_position, header.last_position + 1)
            first_llsn = chunk.last_llsn + 1
        return found

    def close(self) -> None:
        self.journal.close()
        self.worker.close()
        self.store.close()

    def twice(self) -> Iterator[StreamStore]:
        """The store as it is, then as it is after a restart."""
        yield self.store
        yield self.reopen().store

    def reopen(self, files: Files | None = None) -> StorageRig:
        """The process ends without a word and starts again."""
        self.store.close()
        return StorageRig(self.path, self.settings, files)


def batch(
    llsn: int,
    size: int = 100,
    *,
    epoch: int = 1,
    count: int = 1,
    stream: int = STREAM,
    latest_us: int = 2,
) -> bytearray:
    """A batch whose body tells its LLSN and epoch."""
    body = (b"%d/%d " % (llsn, epoch) * size)[:size]
    made = build(
        body,
        codec=0,
        flags=0,
        count=count,
        raw_size=len(body),
        producer_id=5,
        sequence=llsn,
        min_timestamp_us=1,
        max_timestamp_us=latest_us,
    )
    assign_llsn(made, stream, epoch, llsn)
    return made


def with_sync(mode: SyncMode) -> StorageSettings:
    return StorageSettings(
        sync=mode,
        data_file_bytes=SMALL.data_file_bytes,
        commit_file_bytes=SMALL.commit_file_bytes,
        index_interval_bytes=SMALL.index_interval_bytes,
    )
