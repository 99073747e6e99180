"""A RoundLog in one preallocated file (round_file.py says what is in it).

One job is under way at a time; the next takes all that was appended meanwhile. A full file is
replaced: the snapshot and the waiting records go into a new file, and when that is durable under
its name the old one is removed. A start reads one file.

When the disk fails it is unknown how much of the last job it has, so nothing more is written to
that file: it is replaced, like a full one, as soon as the disk takes another.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from loomlog.errors import Corrupt, LoomError, NotLeader
from loomlog.metadata.rounds.contract import Done, Snapshot
from loomlog.metadata.rounds.round_file import (
    FILE_BYTES,
    Record,
    RoundFile,
    clean,
    creation,
    encode,
    open_file,
    remove,
    remove_if_there,
    sync_way_to,
)
from loomlog.storage.files import Files, Worker

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0  # after the disk failed


class _Waiting(NamedTuple):
    record: Record
    done: Done


class FileRoundLog:
    """A round log in a file. Created by `open`."""

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
        self._waiting: list[_Waiting] = []
        self._busy = False
        self._failure: BaseException | None = None
        self._retry: asyncio.TimerHandle | None = None
        self.trouble = ""  # why nothing can be written now

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
        self._waiting.append(_Waiting(Record(epoch, record), done))
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

    def _append_job(self, batch: list[_Waiting], data: bytes) -> None:
        current = self._current
        assert current.file is not None
        file, at = current.file, current.end

        def finished(error: BaseException | None) -> None:
            if error is None:
                current.end += len(data)
                current.next_number += len(batch)
            self._finished(batch, error)

        self._worker.run([lambda: file.write([data], at), file.sync], finished)

    def _roll_job(self, batch: list[_Waiting], records: list[Record]) -> None:
        old = self._current
        kept = [Record(self._epoch, content) for content in self._snapshot()]
        # The kept and the new records are one job: they become durable together.
        data = encode([*kept, *records], 1)
        new = RoundFile.fresh(old.number + 1, self._epoch, max(self._file_bytes, 2 * len(data)))
        new.next_number += len(kept) + len(records)

        def finished(error: BaseException | None) -> None:
            if error is None:
                self._current = new
            self._finished(batch, error)

        steps = creation(self._files, self._directory, new, data)
        steps += [old.close, lambda: remove_if_there(self._files, self._directory, [old.number])]
        self._worker.run(steps, finished)

    def _finished(self, batch: list[_Waiting], error: BaseException | None) -> None:
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

    def _try_later(self, batch: list[_Waiting], error: BaseException) -> None:
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
