"""One replica's files: its entries, its commits and what it must know of itself.

    <path>/meta  <path>/data/…  <path>/commit/…  <path>/spare/…

Methods that take `done` are called on the loop and return at once; effects are visible to
lookups at once and stored when `done` is called. `read` and `find` may wait for the disk and
belong in a worker; their `_cached` twins never wait and say when they would have to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Final, Literal, NamedTuple

from loomlog.batch import assign_position
from loomlog.config import StorageSettings
from loomlog.core.ordered.recovery import NOWHERE, Place, RecoveredContext, recover
from loomlog.errors import AlreadyExists, Corrupt, InvalidArgument, NotYetWritten, Trimmed
from loomlog.storage import stream_meta
from loomlog.storage.commit_log import CommitLog
from loomlog.storage.data_log import DataLog
from loomlog.storage.files import Files, Finished, Step
from loomlog.storage.journal import Channel, Journal
from loomlog.storage.producers import ProducerMark
from loomlog.storage.reading import NotCached, Read, from_cache, from_disk
from loomlog.storage.segments import Batch
from loomlog.storage.stream_meta import StreamMeta
from loomlog.types import CommitContext, Glsn, Llsn


class Miss(Enum):
    """The answer of a `_cached` lookup that would have had to wait."""

    MISS = "miss"


MISS: Final = Miss.MISS


class Chunk(NamedTuple):
    """Whole batches, joined, with their positions filled in."""

    buffer: memoryview
    first_llsn: Llsn
    last_llsn: Llsn
    first_glsn: Glsn
    last_glsn: Glsn


class StreamStore:
    """The storage of one replica. `create` or `open` it; both block."""

    def __init__(
        self,
        files: Files,
        path: str,
        meta: StreamMeta,
        journal: Journal,
        settings: StorageSettings,
    ) -> None:
        self._files = files
        self._path = path
        self._meta = meta
        self._journal = journal
        self._channel = Channel(f"stream {meta.stream_id}")
        self._data = DataLog(files, path, meta.stream_id, self._channel, journal, settings)
        self._commits = CommitLog(files, path, self._channel, journal, settings)
        self._removals: deque[tuple[Step, Finished]] = deque()
        self._removing = False
        self.local_low = NOWHERE  # the first committed entry that is kept
        self.context = self._recover()

    @classmethod
    def create(
        cls,
        files: Files,
        path: str,
        meta: StreamMeta,
        journal: Journal,
        settings: StorageSettings,
    ) -> StreamStore:
        """A new, empty replica at `path`."""
        if files.exists(f"{path}/meta"):
            raise AlreadyExists(f"{path} holds a replica already; remove it first")
        if files.exists(path):
            files.remove_tree(path)  # a creation or removal that was interrupted
        files.make_directory(path)
        store = cls(files, path, meta, journal, settings)
        stream_meta.save(files, path, meta)  # last: without it the directory is nobody's
        files.sync_directory(path.rpartition("/")[0])
        return store

    @classmethod
    def open(
        cls, files: Files, path: str, journal: Journal, settings: StorageSettings
    ) -> StreamStore:
        """The replica that is stored at `path`, recovered."""
        return cls(files, path, stream_meta.load(files, path), journal, settings)

    # ---- what it knows ------------------------------------------------------------------

    @property
    def path(self) -> str:
        return self._path

    @property
    def meta(self) -> StreamMeta:
        return self._meta

    @property
    def error(self) -> BaseException | None:
        """Why nothing can be stored here any more."""
        return self._channel.error

    @property
    def stored_bytes(self) -> int:
        return self._data.stored_bytes + self._commits.stored_bytes

    @property
    def last_llsn(self) -> Llsn:
        """The last entry handed in; it may not be stored yet."""
        return self._data.last_llsn

    @property
    def first_llsn(self) -> Llsn:
        """The first entry that is stored, or would be; trimmed ones may still be."""
        return self._data.first_llsn

    def producers(self) -> dict[int, list[ProducerMark]]:
        """The last batches of every producer, committed or not, oldest first."""
        return self._data.producers()

    # ---- writing ------------------------------------------------------------------------

    def append(
        self, batches: Sequence[memoryview], first_llsn: Llsn, last_llsn: Llsn, done: Finished
    ) -> None:
        """Store entries that go on where the stream ends. The batches must not change until
        `done`."""
        self._data.append(batches, first_llsn, last_llsn, done)

    def commit(self, context: CommitContext, done: Finished) -> None:
        """Store a commit. A little later than an append: losing it only means to hear it again."""
        self._commits.append(context, done)
        if self.local_low == NOWHERE and context.length:
            self.local_low = _first_above(self._meta.trimmed_glsn, context)

    def truncate(self, last_llsn: Llsn, done: Finished) -> None:
        """Drop stored entries above `last_llsn` so that they never come back. No append may be
        made until `done`."""
        newest = self._commits.last
        if newest is not None and last_llsn < newest.last_llsn:
            raise InvalidArgument(
                f"{self._channel.name}: LLSN {newest.last_llsn} is committed, "
                f"cannot cut at {last_llsn}"
            )
        self._data.truncate(last_llsn, done)

    def set_meta(
        self, *, epoch: int | None = None, trimmed_glsn: Glsn | None = None, done: Finished
    ) -> None:
        """Change what is known of this replica."""
        meta = self._meta
        meta = meta if epoch is None else replace(meta, epoch=epoch)
        self._meta = meta if trimmed_glsn is None else replace(meta, trimmed_glsn=trimmed_glsn)
        self._journal.call(self._channel, [partial(self._save, self._meta)], done)

    def _save(self, meta: StreamMeta) -> None:
        stream_meta.save(self._files, self._path, meta)

    # ---- trimming -----------------------------------------------------------------------

    def trim(self, glsn: Glsn, done: Finished) -> None:
        """Drop everything up to `glsn`: from now on it is trimmed; whole files go."""
        if glsn <= self._meta.trimmed_glsn:
            self._journal.call(self._channel, [], done)
            return
        self._meta = replace(self._meta, trimmed_glsn=glsn)
        newest = self._commits.last
        lows: list[Place] = []
        steps: list[Step] = [
            partial(self._save, self._meta),
            # No entry may go before the commit that counts it is stored.
            self._commits.sync,
            lambda: lows.append(self._find_low(glsn)),
        ]
        self._journal.call(self._channel, steps, partial(self._trimmed, glsn, newest, lows, done))

    def _trimmed(
        self,
        glsn: Glsn,
        newest: CommitContext | None,
        lows: list[Place],
        done: Finished,
        error: BaseException | None,
    ) -> None:
        if error is not None:
            done(error)
            return
        # Commits may have come since it was looked up; those are in memory.
        self.local_low = lows[0] if lows[0] != NOWHERE else self._find_low(glsn)
        self._removals.extend((step, _ignore) for step in self._drop_trimmed(glsn, newest))
        self._removals.append((_nothing, done))
        self._remove_next()

    def _drop_trimmed(self, glsn: Glsn, newest: CommitContext | None) -> list[Step]:
        """Forget whole files below the trim; `newest` is the last commit that is surely stored."""
        if newest is None:
            return []
        return [
            *self._data.drop_below(min(self._first_kept, newest.last_llsn + 1)),
            *self._commits.drop_below(glsn, newest.llsn),
        ]

    @property
    def _first_kept(self) -> Llsn:
        """The first LLSN that is not trimmed."""
        newest = self._commits.last
        return self.local_low.llsn or (newest.last_llsn + 1 if newest else 1)

    def _remove_next(self) -> None:
        """One file a job: removing is slow, and appends go in between. Oldest first, so that a
        crash leaves no hole."""
        if self._removals and not self._removing:
            self._removing = True
            step, done = self._removals.popleft()
            self._journal.call(self._channel, [step], partial(self._removed, done))

    def _removed(self, done: Finished, error: BaseException | None) -> None:
        self._removing = False
        self._remove_next()
        done(error)

    def _find_low(self, trimmed_glsn: Glsn) -> Place:
        """The first committed entry above the trim. Blocking."""
        commit = self._commits.find(trimmed_glsn + 1, from_disk)
        return NOWHERE if commit is None else _first_above(trimmed_glsn, commit)

    # ---- reading ------------------------------------------------------------------------

    def find(self, glsn: Glsn) -> CommitContext | None:
        """The commit that holds `glsn`, or the first with entries after it; None if none."""
        return self._commits.find(glsn, from_disk)

    def find_cached(self, glsn: Glsn) -> CommitContext | Literal[Miss.MISS] | None:
        try:
            return self._commits.find(glsn, from_cache)
        except NotCached:
            return MISS

    def find_llsn(self, llsn: Llsn) -> CommitContext | None:
        """The commit that holds `llsn`; None if there is none, or none any more."""
        return self._find_llsn(llsn, from_disk)

    def find_llsn_cached(self, llsn: Llsn) -> CommitContext | Literal[Miss.MISS] | None:
        try:
            return self._find_llsn(llsn, from_cache)
        except NotCached:
            return MISS

    def _find_llsn(self, llsn: Llsn, read: Read) -> CommitContext | None:
        _, commit = next(self._commits.walk(llsn, read), (0, None))
        return commit if commit is not None and commit.llsn <= llsn <= commit.last_llsn else None

    def read(self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> Chunk:
        """Committed batches from the one that holds `first_llsn`; none that starts above
        `last_llsn`; at least one, else no more than `max_bytes`."""
        return self._read(first_llsn, last_llsn, max_bytes, from_disk)

    def read_cached(self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> Chunk | None:
        """The same, or None if it would have to wait for the disk."""
        try:
            return self._read(first_llsn, last_llsn, max_bytes, from_cache)
        except NotCached:
            return None

    def _read(self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int, read: Read) -> Chunk:
        newest = self._commits.last
        if newest is None or first_llsn > newest.last_llsn:
            raise NotYetWritten(f"{self._channel.name}: LLSN {first_llsn} is not committed yet")
        if first_llsn < self._first_kept:
            raise Trimmed(f"{self._channel.name}: LLSN {first_llsn} was trimmed")
        batches = self._data.read(first_llsn, last_llsn, max_bytes, read)
        try:
            first_glsn, last_glsn = self._assign_positions(batches, read)
        except Corrupt:
            if first_llsn < self._first_kept:
                raise Trimmed(f"{self._channel.name}: LLSN {first_llsn} was trimmed") from None
            raise
        first, last = batches[0], batches[-1]
        size = sum(len(batch.view) for batch in batches)
        joined = memoryview(first.view.obj)[:size]
        return Chunk(joined, first.header.first_llsn, last.header.last_llsn, first_glsn, last_glsn)

    def _assign_positions(self, batches: list[Batch], read: Read) -> tuple[Glsn, Glsn]:
        """Fill in GLSNs from the commits; the first and the last one."""
        commits = self._commits.walk(batches[0].header.first_llsn, read)
        ordinal, commit = next(commits, (0, None))
        glsns: list[Glsn] = []
        for header, view in batches:
            while commit is not None and commit.last_llsn < header.first_llsn:
                ordinal, commit = next(commits, (0, None))
            if commit is None or not (
                commit.llsn <= header.first_llsn and header.last_llsn <= commit.last_llsn
            ):
                raise Corrupt(
                    f"{self._path}, {self._channel.name}: no commit holds the batch of LLSN "
                    f"{header.first_llsn} to {header.last_llsn}"
                )
            glsns.append(commit.glsn + header.first_llsn - commit.llsn)
            assign_position(view, glsns[-1])
        last = batches[-1].header
        self._commits.remember(last.last_llsn + 1, ordinal)
        return glsns[0], glsns[-1] + last.count - 1

    # ---- opening and closing ------------------------------------------------------------

    def _recover(self) -> RecoveredContext:
        found = recover(
            self._commits.newest_first(),
            self._data.last_llsn,
            trimmed_glsn=self._meta.trimmed_glsn,
        )
        self._commits.drop_above(found.high_watermark, found.uncommitted_begin, self._meta.epoch)
        damaged = found.damaged or self._data.damaged or self._commits.damaged
        if not damaged and found.uncommitted_end > self._data.next_llsn:
            self._data.restart(found.uncommitted_end)  # only trimmed entries are missing
        try:
            self.local_low = self._find_low(self._meta.trimmed_glsn)
        except Corrupt:
            damaged = True
        damaged = damaged or self._data.first_llsn > self._first_kept
        if not damaged:
            # What a crash kept a trim from doing.
            for step in self._drop_trimmed(self._meta.trimmed_glsn, self._commits.last):
                step()
        return replace(found, local_low=self.local_low, damaged=damaged)

    def close(self) -> None:
        """Close the files. Blocking; after the journal and its worker are closed."""
        self._data.close()
        self._commits.close()


def _first_above(trimmed_glsn: Glsn, commit: CommitContext) -> Place:
    """The first entry of a commit that is not trimmed, or NOWHERE."""
    glsn = max(commit.glsn, trimmed_glsn + 1)
    skipped = glsn - commit.glsn
    return Place(glsn, commit.llsn + skipped) if skipped < commit.length else NOWHERE


def _nothing() -> None:
    """The step of a trim whose files are gone."""


def _ignore(error: BaseException | None) -> None:
    """The channel keeps the error; whoever is answered next gets it."""
