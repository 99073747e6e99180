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
from loomlog.storage.parts import Beginning, Part, cut, pieces
from loomlog.storage.producers import ProducerMark
from loomlog.storage.reading import NotCached, Read, from_cache, from_disk
from loomlog.storage.segments import Batch, Broken, Examined
from loomlog.storage.stream_meta import StreamMeta
from loomlog.types import CommitContext, Glsn, Llsn


class Miss(Enum):
    """The answer of a `_cached` lookup that would have had to wait."""

    MISS = "miss"


MISS: Final = Miss.MISS
_WIPED: Final = "wiped"  # where a restart puts the old files until they are removed


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
        self._settings = settings
        self._channel = Channel(f"stream {meta.stream_id}")
        self._data = DataLog(
            files, path, meta.stream_id, self._channel, journal, settings, meta.base_llsn
        )
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
        store = cls._opened(files, path, journal, settings)
        if files.exists(f"{path}/{_WIPED}"):
            files.remove_tree(f"{path}/{_WIPED}")
        return store

    @classmethod
    def _opened(
        cls, files: Files, path: str, journal: Journal, settings: StorageSettings
    ) -> StreamStore:
        meta = stream_meta.load(files, path)
        if meta.wiping:
            _set_aside(files, path)
            meta = replace(meta, wiping=False)
            store = cls(files, path, meta, journal, settings)
            stream_meta.save(files, path, meta)
            return store
        return cls(files, path, meta, journal, settings)

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

    @property
    def first_kept(self) -> Llsn:
        """The first LLSN that is not trimmed."""
        newest = self._commits.last
        end = newest.last_llsn + 1 if newest else self._meta.base_llsn
        return self.local_low.llsn or end

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
            *self._data.drop_below(min(self.first_kept, newest.last_llsn + 1)),
            *self._commits.drop_below(glsn, newest.llsn),
        ]

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
        for _, commit in self._commits.walk(llsn, read):
            if llsn <= commit.last_llsn:  # a reader may have left its mark one commit before
                return commit if commit.llsn <= llsn else None
        return None

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
        self._check_readable(first_llsn, self.first_kept)
        batches = self._data.read(first_llsn, last_llsn, max_bytes, read)
        try:
            first_glsn, last_glsn = self._assign_positions(batches, read)
        except Corrupt:
            self._check_readable(first_llsn, self.first_kept)
            raise
        first, last = batches[0].header.first_llsn, batches[-1].header.last_llsn
        return Chunk(_joined(batches), first, last, first_glsn, last_glsn)

    def _check_readable(self, llsn: Llsn, first_llsn: Llsn) -> None:
        newest = self._commits.last
        if newest is None or llsn > newest.last_llsn:
            raise NotYetWritten(f"{self._channel.name}: LLSN {llsn} is not committed yet")
        if llsn < first_llsn:
            raise Trimmed(f"{self._channel.name}: LLSN {llsn} was trimmed")

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

    # ---- copying to another replica -----------------------------------------------------

    def beginning(self) -> Beginning:
        """Where a copy of all that is kept begins: with a whole batch. Blocking."""
        low, newest = self.local_low, self._commits.empty or self._commits.last
        if low == NOWHERE:
            if newest is None:
                return Beginning(self._meta.base_llsn, 0, self._meta.base_high_watermark)
            return Beginning(newest.last_llsn + 1, 0, newest.high_watermark)
        batch = self._data.read(low.llsn, low.llsn, 1, from_disk)[0]
        _, commit = next(self._commits.walk(low.llsn, from_disk))
        piece = cut(commit, batch.header.first_llsn, batch.header.last_llsn)
        return Beginning(piece.llsn, piece.glsn, piece.prev_high_watermark)

    def read_part(self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> Part:
        """As `read`, but as stored and with the commits; it must begin and end with a batch.
        `first_llsn` may be below the trim, as far as the data is still there."""
        return self._read_part(first_llsn, last_llsn, max_bytes, from_disk)

    def read_part_cached(self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> Part | None:
        """The same, or None if it would have to wait for the disk."""
        try:
            return self._read_part(first_llsn, last_llsn, max_bytes, from_cache)
        except NotCached:
            return None

    def _read_part(self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int, read: Read) -> Part:
        self._check_readable(first_llsn, self._data.first_llsn)
        batches = self._data.read(first_llsn, last_llsn, max_bytes, read)
        first, last = batches[0].header.first_llsn, batches[-1].header.last_llsn
        self._check_readable(last, 0)
        commits = pieces((commit for _, commit in self._commits.walk(first, read)), first, last)
        if not commits or commits[0].llsn != first:
            raise Trimmed(f"{self._channel.name}: the commits of LLSN {first} were trimmed")
        return Part(_joined(batches), first, last, commits)

    def read_stored(self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> memoryview:
        """Committed batches from the one that holds `first_llsn`, as they are stored."""
        self._check_readable(first_llsn, self._data.first_llsn)
        return _joined(self._data.read(first_llsn, last_llsn, max_bytes, from_disk))

    # ---- finding and repairing damage ---------------------------------------------------

    def examine(self, llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> Examined:
        """Check stored, committed batches from one at or below `llsn` on, up to the first that is
        broken. Blocking. Raises Corrupt if it is their commits that cannot be read."""
        examined = self._data.examine(llsn, last_llsn, max_bytes)
        for _, commit in self._commits.walk(llsn, from_disk):
            if commit.last_llsn >= examined.next_llsn - 1:
                break
        return examined

    def overwrite(self, broken: Broken, batch: memoryview, done: Finished) -> None:
        """Put a sound copy in the place of a broken batch."""
        self._data.overwrite(broken, batch, done)

    # ---- beginning anew -----------------------------------------------------------------

    def restart(
        self, first_llsn: Llsn, high_watermark: Glsn, trimmed_glsn: Glsn, done: Finished
    ) -> None:
        """Wipe everything and go on at `first_llsn`. A crash leaves the old replica or the wiped
        one. Clears an error, too. Nothing else may be asked until `done`."""
        meta = replace(
            self._meta,
            trimmed_glsn=max(trimmed_glsn, self._meta.trimmed_glsn),
            base_llsn=first_llsn,
            base_high_watermark=high_watermark,
            wiping=True,
        )
        self._renew([partial(self._save, meta)], done)

    def reopen(self, done: Finished) -> None:
        """Recover from what is stored, as after a restart of the process, to get over an error.
        Nothing else may be asked until `done`."""
        self._renew([], done)

    def _renew(self, steps: list[Step], done: Finished) -> None:
        opened: list[StreamStore] = []

        def open_again() -> None:
            opened.append(
                StreamStore._opened(self._files, self._path, self._journal, self._settings)
            )

        self._journal.call(
            Channel(self._channel.name), [*steps, open_again], partial(self._renewed, opened, done)
        )

    def _renewed(
        self, opened: list[StreamStore], done: Finished, error: BaseException | None
    ) -> None:
        if error is not None:
            self._channel.error = self._channel.error or error
            done(error)
            return
        self._data.abandon()
        self._commits.abandon()
        fresh = opened[0]
        self._meta, self._channel = fresh._meta, fresh._channel
        self._data, self._commits = fresh._data, fresh._commits
        self.local_low, self.context = fresh.local_low, fresh.context
        self._removals.append((self._remove_wiped, _ignore))
        self._remove_next()
        done(None)

    def _remove_wiped(self) -> None:
        wiped = f"{self._path}/{_WIPED}"
        if self._files.exists(wiped):
            self._files.remove_tree(wiped)

    # ---- opening and closing ------------------------------------------------------------

    def _recover(self) -> RecoveredContext:
        found = recover(
            self._commits.newest_first(),
            self._data.last_llsn,
            trimmed_glsn=self._meta.trimmed_glsn,
            base=(self._meta.base_high_watermark, self._meta.base_llsn),
        )
        self._commits.drop_above(found.high_watermark, found.uncommitted_begin, self._meta.epoch)
        damaged = found.damaged or self._data.damaged or self._commits.damaged
        if not damaged and found.uncommitted_end > self._data.next_llsn:
            self._data.restart(found.uncommitted_end)  # only trimmed entries are missing
        try:
            self.local_low = self._find_low(self._meta.trimmed_glsn)
        except Corrupt:
            damaged = True
        damaged = damaged or self._data.first_llsn > self.first_kept
        if not damaged:
            # What a crash kept a trim from doing.
            for step in self._drop_trimmed(self._meta.trimmed_glsn, self._commits.last):
                step()
        return replace(found, local_low=self.local_low, damaged=damaged)

    def close(self) -> None:
        """Close the files. Blocking; after the journal and its worker are closed."""
        self._data.close()
        self._commits.close()


def _set_aside(files: Files, path: str) -> None:
    """Move what does not count any more out of the way. Blocking."""
    wiped = f"{path}/{_WIPED}"
    files.make_directory(wiped)
    for name in ("data", "commit"):
        if files.exists(f"{path}/{name}"):
            if files.exists(f"{wiped}/{name}"):
                files.remove_tree(f"{wiped}/{name}")
            files.rename(f"{path}/{name}", f"{wiped}/{name}")
    files.sync_directory(path)


def _joined(batches: list[Batch]) -> memoryview:
    """Batches that were read together lie side by side."""
    size = sum(len(batch.view) for batch in batches)
    return memoryview(batches[0].view.obj)[:size]


def _first_above(trimmed_glsn: Glsn, commit: CommitContext) -> Place:
    """The first entry of a commit that is not trimmed, or NOWHERE."""
    glsn = max(commit.glsn, trimmed_glsn + 1)
    skipped = glsn - commit.glsn
    return Place(glsn, commit.llsn + skipped) if skipped < commit.length else NOWHERE


def _nothing() -> None:
    """The step of a trim whose files are gone."""


def _ignore(error: BaseException | None) -> None:
    """The channel keeps the error; whoever is answered next gets it."""
