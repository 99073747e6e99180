"""Rounds in files: the format, creation and recovery of a file, and a RoundLog in one.

    rounds-00000007.log:  file header (64 bytes) | record | record | … | zeros

Records start at multiples of 64 bytes and are numbered from 1 in each file. The writer has one job
in progress at a time (write, then fdatasync). So a crash may tear records of one job in any way,
but if one of a LATER job exists, all before it had been durable: a broken record before such a one
is corruption, not a torn tail.

A file appears under its name with its first records, and with the size in its header. It is never
truncated, so a shorter one was damaged and has lost rounds.

Errors name the file, the byte and the records. Callers add the remedy, which depends on the owner
of the file.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from crc32c import crc32c

from loomlog.errors import Corrupt, LoomError, NotLeader, VersionMismatch
from loomlog.limits import ALIGNMENT, KIB, MIB
from loomlog.metadata.rounds import RECORD_FORMAT, Done, Snapshot
from loomlog.storage.files import File, Files, Step, Worker

logger = logging.getLogger(__name__)

FILE_BYTES: Final = 4 * MIB  # some 30,000 rounds; reading it takes milliseconds
FORMAT: Final = 2
RETRY_S: Final = 1.0  # after the disk failed
SHORT_BYTES_MAX: Final = 16 * KIB  # of rounds: writing more takes longer than a sync

_FILE_MAGIC: Final = b"loomrnds"
_FILE: Final = struct.Struct("<8sIIQQQ")  # magic, CRC of the rest, format, number, epoch, size
_RECORD_MAGIC: Final = b"LMRR"
_RECORD: Final = struct.Struct("<4sIIIQQ")  # magic, CRC of the rest, size, place in job, number, …
_CRC_FROM: Final = 8  # in a record


class StoredRound(NamedTuple):
    """A round as it is stored, and the epoch of the leader that wrote it."""

    epoch: int
    content: bytes


class _FoundRound(NamedTuple):
    number: int
    place: int  # in the job that wrote it, from 0
    record: StoredRound
    end: int


class RoundFile:
    """A round file and its written part."""

    def __init__(self, number: int, epoch: int, capacity: int) -> None:
        self.number = number
        self.epoch = epoch
        self.capacity = capacity
        self.end = ALIGNMENT
        self.next_number = 1
        self.records: list[StoredRound] = []
        self.file: File | None = None
        self.has_remains = False  # of a record after the last complete one

    @classmethod
    def fresh(cls, number: int, epoch: int, capacity: int) -> RoundFile:
        return cls(number, epoch, _aligned(max(capacity, 2 * ALIGNMENT)))

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


# ---- files


def _name(number: int) -> str:
    return f"rounds-{number:08d}.log"


def _path(directory: str, number: int) -> str:
    return f"{directory}/{_name(number)}"


def clean(files: Files, directory: str) -> list[int]:
    """Return the numbers of the files, oldest first; remove unfinished ones."""
    numbers = []
    for name in files.list(directory):
        if name.endswith(".tmp"):
            files.remove(f"{directory}/{name}")
        elif name.startswith("rounds-") and name.endswith(".log"):
            numbers.append(int(name[len("rounds-") : -len(".log")]))
    return sorted(numbers)


def remove(files: Files, directory: str, numbers: Sequence[int]) -> None:
    """Remove round files, if they exist."""
    for number in numbers:
        with suppress(FileNotFoundError):
            files.remove(_path(directory, number))


def creation(files: Files, directory: str, new: RoundFile, data: bytes) -> list[Step]:
    """Return the steps that make a file durable under its name. It is filled with zeros, because
    syncing a write into blocks that were written before takes half the time."""
    path = _path(directory, new.number)
    new.end = ALIGNMENT + len(data)

    def write() -> None:
        new.file = files.open(f"{path}.tmp", create=True)
        new.file.truncate(0)
        rest = bytes(new.capacity - new.end)
        new.file.write([_file_header(new), data, rest], 0)

    def sync() -> None:
        assert new.file is not None
        new.file.sync()

    def publish() -> None:
        files.rename(f"{path}.tmp", path)
        files.sync_directory(directory)

    return [write, sync, publish]


def sync_way_to(files: Files, directory: str) -> None:
    """Sync a directory and its parents. A process that was killed may have created them without a
    sync, and a power loss must not make a file in them unreachable."""
    files.sync_directory(directory)
    while "/" in directory.rstrip("/"):
        directory = directory.rstrip("/").rpartition("/")[0] or "/"
        try:
            files.sync_directory(directory)
        except PermissionError:
            return  # not permitted, so it existed before


def read_file(files: Files, directory: str, number: int) -> list[StoredRound]:
    """Return the records in a file, which may be in use, up to the first broken one."""
    path = _path(directory, number)
    file = files.open(path)
    try:
        data = bytes(file.read(file.size(), 0))
    finally:
        file.close()
    found = _read_file_header(data, path, number)
    _scan(found, data, path)
    return found.records


def open_file(files: Files, directory: str, number: int) -> RoundFile:
    path = _path(directory, number)
    file = files.open(path)
    try:
        data = bytes(file.read(file.size(), 0))
        opened = _read_file_header(data, path, number)
        opened.file = file
        _scan(opened, data, path)
        _clear_rest(files, directory, opened, data)
        # Data that was read may not be durable, and after a failed sync no later one makes it so.
        file.write([data[: opened.end]], 0)
        file.sync()
    except BaseException:
        file.close()
        raise
    return opened


def _scan(opened: RoundFile, data: bytes, path: str) -> None:
    while (found := _record_at(data, opened.end)) is not None:
        if found.number != opened.next_number:
            break
        opened.records.append(found.record)
        opened.epoch = max(opened.epoch, found.record.epoch)
        opened.next_number += 1
        opened.end = found.end
    _check_torn(opened, data, path)


def _check_torn(opened: RoundFile, data: bytes, path: str) -> None:
    """Raise unless the rest can be the remains of one job that was never durable."""
    at = data.find(_RECORD_MAGIC, opened.end)
    while at >= 0:
        found = _record_at(data, at) if at % ALIGNMENT == 0 else None
        if found is not None and found.number - found.place > opened.next_number:
            raise Corrupt(
                f"{path}: {_numbers(opened.next_number, found.number - 1)} damaged (from byte "
                f"{opened.end} on), though record {found.number} is whole"
            )
        at = data.find(_RECORD_MAGIC, at + 1)


def _numbers(first: int, last: int) -> str:
    return f"record {first} is" if first == last else f"records {first} to {last} are"


def _clear_rest(files: Files, directory: str, opened: RoundFile, data: bytes) -> None:
    """Write zeros after the last complete record, so that remains of a torn job are never read. A
    marker file records this for later starts."""
    assert opened.file is not None
    mark, rest = _mark(directory), data[opened.end :]
    if rest.count(0) != len(rest):
        file = files.open(mark, create=True)
        file.close()
        files.sync_directory(mark.rpartition("/")[0])
        opened.file.write([bytes(len(rest))], opened.end)
    opened.has_remains = files.exists(mark)


def _mark(directory: str) -> str:
    """Return the marker file that exists while the end of the rounds is doubtful."""
    return f"{directory.rstrip('/')}.doubtful"


# ---- bytes


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _file_header(file: RoundFile) -> bytes:
    fields = (FORMAT, file.number, file.epoch, file.capacity)
    crc = int(crc32c(_FILE.pack(_FILE_MAGIC, 0, *fields)[12:]))
    return _FILE.pack(_FILE_MAGIC, crc, *fields).ljust(ALIGNMENT, b"\0")


def _read_file_header(data: bytes, path: str, number: int) -> RoundFile:
    if len(data) < ALIGNMENT or not data.startswith(_FILE_MAGIC):
        raise Corrupt(f"{path} is not a file of rounds")
    _, crc, version, written_number, epoch, capacity = _FILE.unpack_from(data)
    if version == 1:  # its header was shorter
        raise VersionMismatch(f"{path} has format 1, this release reads {FORMAT}")
    if int(crc32c(data[12 : _FILE.size])) != crc:
        raise Corrupt(f"{path}: the file header is damaged")
    if version != FORMAT:
        raise VersionMismatch(f"{path} has format {version}, this release reads {FORMAT}")
    if written_number != number:
        raise Corrupt(f"{path} is file {written_number} of the rounds under another name")
    if len(data) < capacity:  # members of a quorum may have written beyond it
        raise Corrupt(f"{path} was cut: it has {len(data)} of {capacity} bytes")
    return RoundFile(number, epoch, capacity)


def encode(records: Sequence[StoredRound], first_number: int) -> bytes:
    parts = []
    for place, (epoch, content) in enumerate(records):
        head = _RECORD.pack(_RECORD_MAGIC, 0, len(content), place, first_number + place, epoch)
        crc = int(crc32c(head[_CRC_FROM:] + content))
        record = b"".join((head[:4], crc.to_bytes(4, "little"), head[_CRC_FROM:], content))
        parts.append(record.ljust(_aligned(len(record)), b"\0"))
    return b"".join(parts)


def _record_at(data: bytes, at: int) -> _FoundRound | None:
    if at + _RECORD.size > len(data):
        return None
    magic, crc, size, place, number, epoch = _RECORD.unpack_from(data, at)
    end = at + _RECORD.size + size
    if magic != _RECORD_MAGIC or end > len(data):
        return None
    if int(crc32c(data[at + _CRC_FROM : end])) != crc:
        return None
    content = data[at + _RECORD.size : end]
    return _FoundRound(number, place, StoredRound(epoch, content), at + _aligned(end - at))


# ---- the round log


class _QueuedRound(NamedTuple):
    record: StoredRound
    done: Done


class FileRoundLog:
    """A RoundLog in one preallocated file. Created by `open`.

    One job is in progress at a time; the next one takes everything that was appended meanwhile. A
    full file is replaced: the snapshot and the waiting records are written to a new file, and when
    that is durable under its name, the old one is removed.

    When the disk fails, it is unknown how much of the last job was written, so nothing more is
    written to that file: it is replaced, like a full one, as soon as the disk works again.
    """

    def __init__(
        self, files: Files, directory: str, worker: Worker, file_bytes: int, opened: RoundFile
    ) -> None:
        self._files = files
        self._directory = directory
        self._worker = worker
        self._file_bytes = file_bytes
        self._current = opened
        self._epoch = opened.epoch + 1
        self._snapshot: Snapshot = tuple
        self._waiting: list[_QueuedRound] = []
        self._busy = False
        self._failure: BaseException | None = None
        self._retry: asyncio.TimerHandle | None = None
        self.trouble = ""  # why rounds cannot be written now

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        worker: Worker,
        *,
        create: bool,
        file_bytes: int = FILE_BYTES,
    ) -> FileRoundLog:
        """Open what is there, or begin (only if `create`). Blocks."""
        files.make_directory(directory)
        sync_way_to(files, directory)
        numbers = clean(files, directory)
        if numbers:
            opened = _open(files, directory, numbers[-1])
            remove(files, directory, numbers[:-1])
        elif create:
            opened = RoundFile.fresh(1, 0, file_bytes)
            for step in creation(files, directory, opened, b""):
                step()
        else:
            raise Corrupt(
                f"{directory} holds no round log, but this cluster has metadata: restore it from "
                "a copy, or from the nodes with `loom metadata rebuild`; without it positions "
                "would be given twice"
            )
        return cls(files, directory, worker, file_bytes, opened)

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def is_doubtful(self) -> bool:
        return self._current.has_remains

    @property
    def record_format(self) -> int:
        return RECORD_FORMAT

    def trust(self) -> None:
        self._current.has_remains = False
        mark = _mark(self._directory)

        def remove_mark() -> None:
            with suppress(OSError):  # the next start is doubtful again
                self._files.remove(mark)

        self._worker.run([remove_mark], lambda error: None)

    def read(self) -> list[bytes]:
        return [record.content for record in self._current.records]

    def begin(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._current.records.clear()

    def append(self, epoch: int, record: bytes, done: Done) -> None:
        if self._failure is not None:
            raise LoomError(f"the round log failed before: {self._failure}") from self._failure
        if epoch < self._epoch:
            raise NotLeader(f"the round log is in epoch {self._epoch}: epoch {epoch} is over")
        self._epoch = epoch
        self._waiting.append(_QueuedRound(StoredRound(epoch, record), done))
        if not self._busy:
            self._next_job()

    def close(self) -> None:
        self._failure = self._failure or LoomError("the round log is closed")
        if self._retry is not None:
            self._retry.cancel()
        self._current.close()

    # ---- jobs

    def _next_job(self) -> None:
        self._busy = True
        batch, self._waiting = self._waiting, []
        records = [waiting.record for waiting in batch]
        current = self._current
        data = encode(records, current.next_number)
        if not self.trouble and current.end + len(data) <= current.capacity:
            self._append_job(batch, data)
        else:
            self._roll_job(batch, records)

    def _append_job(self, batch: list[_QueuedRound], data: bytes) -> None:
        current = self._current
        assert current.file is not None
        file, at = current.file, current.end

        def finished(error: BaseException | None) -> None:
            if error is None:
                current.end += len(data)
                current.next_number += len(batch)
            self._finished(batch, error)

        run = self._worker.run_short if len(data) <= SHORT_BYTES_MAX else self._worker.run
        run([lambda: file.write([data], at), file.sync], finished)

    def _roll_job(self, batch: list[_QueuedRound], records: list[StoredRound]) -> None:
        old = self._current
        kept = [StoredRound(self._epoch, content) for content in self._snapshot()]
        # The snapshot and the new records are one job: they become durable together.
        data = encode([*kept, *records], 1)
        new = RoundFile.fresh(old.number + 1, self._epoch, max(self._file_bytes, 2 * len(data)))
        new.next_number += len(kept) + len(records)

        def finished(error: BaseException | None) -> None:
            if error is None:
                self._current = new
            self._finished(batch, error)

        steps = creation(self._files, self._directory, new, data)
        steps += [old.close, lambda: remove(self._files, self._directory, [old.number])]
        self._worker.run(steps, finished)

    def _finished(self, batch: list[_QueuedRound], error: BaseException | None) -> None:
        if error is not None:
            self._try_later(batch, error)
            return
        if self.trouble:
            logger.warning("rounds can be written to %s again", self._directory)
            self.trouble = ""
        for waiting in batch:
            waiting.done(None)
        self._busy = False
        if self._waiting and self._failure is None:
            self._next_job()

    def _try_later(self, batch: list[_QueuedRound], error: BaseException) -> None:
        trouble = f"rounds cannot be written to {self._directory}, appends wait: {error}"
        if trouble != self.trouble:
            logger.error("%s", trouble)
        self.trouble = trouble
        self._waiting = batch + self._waiting
        if self._failure is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._next_job)


def _open(files: Files, directory: str, number: int) -> RoundFile:
    try:
        return open_file(files, directory, number)
    except Corrupt as error:
        raise Corrupt(
            f"{error}: restore the file from a copy, or move {directory} away and restore the "
            "rounds from the nodes with `loom metadata rebuild`"
        ) from error
