"""The files of one replica: its entries, its commits and its metadata.

    <path>/meta  <path>/data/…  <path>/commit/…  <path>/spare/…

Methods that take `done` are called on the loop and return immediately. Their effects are visible to
lookups (stream_reader.py) immediately, and are stored when `done` is called.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from loomlog.batch import Header
from loomlog.config import StorageSettings
from loomlog.core.ordered.recovery import NOWHERE, Place, RecoveredContext, recover
from loomlog.errors import AlreadyExists, Corrupt, InvalidArgument
from loomlog.storage.files import Files, Finished, Step, from_disk
from loomlog.storage.ordered import relocation
from loomlog.storage.ordered.commit_recovery import open_commit_log
from loomlog.storage.ordered.data_file import Broken
from loomlog.storage.ordered.data_log import DataLog
from loomlog.storage.ordered.journal import Channel, Journal
from loomlog.storage.ordered.removals import Removals, remove_wiped, set_aside
from loomlog.storage.ordered.replica_paths import StreamMeta, has_data, load_meta, save_meta
from loomlog.storage.ordered.stream_reader import StreamReader
from loomlog.types import CommitContext, Glsn, Llsn, ProducerMark

_DIRECTORIES: Final = ("data", "commit", "spare")


class StreamStore(StreamReader):
    """The storage of one replica. Use `create` or `open`, which block."""

    def __init__(
        self,
        files: Files,
        path: str,
        meta: StreamMeta,
        journal: Journal,
        settings: StorageSettings,
    ) -> None:
        channel = Channel(f"stream {meta.stream_id}")
        base = CommitContext(meta.base_high_watermark, 0, 0, meta.base_llsn, 0, 0)
        commits = open_commit_log(files, path, base, channel, journal, settings)
        newest = commits.empty or commits.last
        data = DataLog(
            files,
            path,
            meta.stream_id,
            channel,
            journal,
            settings,
            meta.base_llsn,
            max(newest.last_llsn if newest else 0, commits.hole_end),
        )
        super().__init__(path, meta, channel, data, commits)
        self._files = files
        self._journal = journal
        self._settings = settings
        self._removals = Removals(journal, channel)
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
        """Create an empty replica at `path`."""
        if files.exists(f"{path}/meta") or has_data(files, path):
            raise AlreadyExists(f"{path} holds a replica already; remove it first")
        if files.exists(path):
            files.remove_tree(path)  # left by an interrupted creation
        files.make_directory(path)
        store = cls(files, path, meta, journal, settings)
        save_meta(files, path, meta)  # last: without it the directory has no owner
        files.sync_directory(path.rpartition("/")[0])
        return store

    @classmethod
    def open(
        cls, files: Files, path: str, journal: Journal, settings: StorageSettings
    ) -> StreamStore:
        """Recover the replica at `path`."""
        _sync_names(files, path)
        store = cls._opened(files, path, journal, settings)
        remove_wiped(files, path)
        return store

    @classmethod
    def _opened(
        cls, files: Files, path: str, journal: Journal, settings: StorageSettings
    ) -> StreamStore:
        meta = load_meta(files, path)
        if meta.wiping:
            set_aside(files, path)
            meta = replace(meta, wiping=False)
            store = cls(files, path, meta, journal, settings)
            save_meta(files, path, meta)
            return store
        return cls(files, path, meta, journal, settings)

    # ---- state --------------------------------------------------------------------------

    @property
    def error(self) -> BaseException | None:
        """The reason why nothing can be stored here any more, or None."""
        return self._channel.error

    @property
    def stored_bytes(self) -> int:
        return self._data.stored_bytes + self._commits.stored_bytes

    @property
    def last_llsn(self) -> Llsn:
        """The last appended entry, which may not be stored yet."""
        return self._data.last_llsn

    @property
    def first_llsn(self) -> Llsn:
        """The first stored LLSN, which may be trimmed; the next one if nothing is stored."""
        return self._data.first_llsn

    @property
    def producers_from(self) -> Llsn:
        """The first LLSN from which `producers` is complete."""
        return self._data.producers_from

    def producers(self) -> dict[int, list[ProducerMark]]:
        """Return the last batches of every producer, committed or not, oldest first."""
        return self._data.producers()

    # ---- writing ------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[memoryview],
        first_llsn: Llsn,
        last_llsn: Llsn,
        done: Finished,
        headers: Sequence[Header] | None = None,
    ) -> None:
        """Store batches that continue where the stream ends. They must not change until `done`.
        `headers` are theirs, if the caller has read them already."""
        self._data.append(batches, first_llsn, last_llsn, done, headers)

    def commit(self, context: CommitContext, done: Finished) -> None:
        """Store a commit. `done` may be called later than for an append: a lost commit is simply
        sent again."""
        self._commits.append(context, done)
        if self.local_low == NOWHERE and context.length:
            self.local_low = _first_above(self.meta.trimmed_glsn, context)

    def truncate(self, last_llsn: Llsn, done: Finished) -> None:
        """Delete the entries above `last_llsn` so that they never reappear. The caller must not
        append until `done`."""
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
        """Change the meta file."""
        meta = self.meta
        meta = meta if epoch is None else replace(meta, epoch=epoch)
        self.meta = meta if trimmed_glsn is None else replace(meta, trimmed_glsn=trimmed_glsn)
        self._journal.call(self._channel, [partial(self._save, self.meta)], done)

    def _save(self, meta: StreamMeta) -> None:
        save_meta(self._files, self.path, meta)

    # ---- trimming -----------------------------------------------------------------------

    def trim(self, glsn: Glsn, done: Finished) -> None:
        """Trim up to `glsn`, effective immediately. Files that become unneeded are removed."""
        if glsn <= self.meta.trimmed_glsn:
            self._journal.call(self._channel, [], done)
            return
        self.meta = replace(self.meta, trimmed_glsn=glsn)
        newest = self._commits.last
        lows: list[Place] = []

        def trimmed(error: BaseException | None) -> None:
            if error is not None:
                done(error)
                return
            # Commits that have arrived since the lookup are in memory.
            self.local_low = lows[0] if lows[0] != NOWHERE else self._find_low(glsn)
            self._removals.add(self._drop_trimmed(glsn, newest), done)

        steps: list[Step] = [
            partial(self._save, self.meta),
            # No entry may be deleted before a commit that covers it is stored.
            self._commits.sync,
            lambda: lows.append(self._find_low(glsn)),
        ]
        self._journal.call(self._channel, steps, trimmed)

    def _drop_trimmed(self, glsn: Glsn, newest: CommitContext | None) -> list[Step]:
        """Forget whole files below the trim. `newest` is the last commit known to be stored."""
        if newest is None:
            return []
        return [
            *self._data.drop_below(min(self.first_kept, newest.last_llsn + 1)),
            *self._commits.drop_below(glsn, newest.llsn),
        ]

    def _find_low(self, trimmed_glsn: Glsn) -> Place:
        """Return the first committed entry above the trim. Blocking."""
        commit = self._commits.find(trimmed_glsn + 1, from_disk)
        return NOWHERE if commit is None else _first_above(trimmed_glsn, commit)

    # ---- repairing damage ---------------------------------------------------------------

    @property
    def broken(self) -> list[Broken]:
        """The batches that are known to be broken, without repaired and trimmed ones."""
        batches = sorted(self._data.broken.values())
        return [broken for broken in batches if broken.next_llsn > self.first_kept]

    def set_broken(self, broken: Broken) -> None:
        """Record a broken batch."""
        self._data.broken[broken.llsn] = broken

    def set_sound(self, llsn: Llsn) -> None:
        """Forget a broken batch: it was repaired, or trimmed."""
        self._data.broken.pop(llsn, None)

    def overwrite(self, broken: Broken, batch: memoryview, done: Finished) -> None:
        """Overwrite a broken batch with a sound copy."""
        self._data.overwrite(broken, batch, done)

    def find_missing(self, found: list[str], done: Finished) -> None:
        """Append the paths of missing files to `found`."""
        missing: list[str] = []

        def look() -> None:
            missing.extend(path for path in self._paths() if not self._files.exists(path))

        def finished(error: BaseException | None) -> None:
            found.extend(path for path in missing if path in self._paths())  # not dropped meanwhile
            done(error)

        self._journal.call(Channel(self._channel.name), [look], finished)

    def _paths(self) -> list[str]:
        return [f"{self.path}/meta", *self._data.paths, *self._commits.paths]

    # ---- restarting empty ----------------------------------------------------------------

    def restart(
        self, first_llsn: Llsn, high_watermark: Glsn, trimmed_glsn: Glsn, done: Finished
    ) -> None:
        """Wipe everything and continue at `first_llsn`. A crash leaves either the old replica or
        the wiped one. An error is cleared, and a missing directory created. No other method may be
        called until `done`."""
        meta = replace(
            self.meta,
            trimmed_glsn=max(trimmed_glsn, self.meta.trimmed_glsn),
            base_llsn=first_llsn,
            base_high_watermark=high_watermark,
            wiping=True,
        )
        self._renew([self._make_directory, partial(self._save, meta)], done)

    def _make_directory(self) -> None:
        """Create the replica's directory if it is missing, but not if its volume is."""
        if self._files.exists(self.path.rpartition("/")[0]):
            self._files.make_directory(self.path)

    def reopen(self, done: Finished) -> None:
        """Recover from an error by opening the files again, as after a restart of the process. No
        other method may be called until `done`."""
        self._renew([], done)

    def _renew(self, steps: list[Step], done: Finished) -> None:
        opened: list[StreamStore] = []

        def open_again() -> None:
            _sync_names(self._files, self.path)
            opened.append(
                StreamStore._opened(self._files, self.path, self._journal, self._settings)
            )

        def renewed(error: BaseException | None) -> None:
            if error is not None:
                self._channel.error = self._channel.error or error
                done(error)
                return
            self._take_over(opened[0])
            self._removals.add([partial(remove_wiped, self._files, self.path)])
            done(None)

        channel = Channel(self._channel.name)
        self.settle(lambda _: self._journal.call(channel, [*steps, open_again], renewed))

    def _take_over(self, fresh: StreamStore) -> None:
        """Adopt the state of a store that has opened the files again."""
        self.abandon()
        self.meta, self._channel = fresh.meta, fresh._channel
        self._data, self._commits = fresh._data, fresh._commits
        self.local_low, self.context = fresh.local_low, fresh.context
        self._removals.channel = fresh._channel

    # ---- another volume -------------------------------------------------------------------

    @property
    def finished_files(self) -> list[str]:
        """The names of files that no longer change, unless entries in them are cut off."""
        return self._data.finished_files

    def relocate(
        self,
        path: str,
        journal: Journal,
        early: Collection[str],
        opened_there: Step,
        done: Finished,
    ) -> None:
        """Move to another path, with another journal. `early` names files that were copied there
        already and have not changed since. `opened_there` is run when the replica is open at the
        new path. No other method may be called until `done`. A failure changes nothing."""
        opened: list[StreamStore] = []
        errors: list[Exception] = []

        def move() -> None:
            try:
                relocation.move(self._files, self.path, path, early)
                opened.append(StreamStore._opened(self._files, path, journal, self._settings))
                opened_there()
            except Exception as error:  # raising it would make the journal's volume fail
                relocation.take_back(self._files, self.path, path)
                errors.append(error)

        def moved(error: BaseException | None) -> None:
            if error is not None or errors:
                done(error or errors[0])
                return
            old = self.path
            self._take_over(opened[0])
            self.path, self._journal = path, journal
            self._removals = Removals(journal, self._channel)
            self._removals.add([partial(relocation.remove_moved, self._files, old)])
            done(None)

        channel = Channel(self._channel.name)
        self.settle(lambda _: self._journal.call(channel, [move], moved))

    def settle(self, done: Finished) -> None:
        """Call `done` when all background work has finished or failed. A trim removes files in the
        background, and a replica that is created in its place uses the same names."""
        self._journal.call(
            self._channel, [], lambda _: self._removals.add([], lambda error: done(None))
        )

    # ---- opening and closing ------------------------------------------------------------

    def _recover(self) -> RecoveredContext:
        found = recover(
            self._commits.newest_first(),
            self._data.last_llsn,
            trimmed_glsn=self.meta.trimmed_glsn,
            base=(self.meta.base_high_watermark, self.meta.base_llsn),
        )
        if found.damaged:
            self._commits.keep_copies()
        self._commits.drop_above(found.high_watermark, found.uncommitted_begin, self.meta.epoch)
        damaged = found.damaged or self._data.damaged or self._commits.damaged
        readable = not self._commits.damaged
        if not damaged and found.uncommitted_end > self._data.next_llsn:
            self._data.restart(found.uncommitted_end)  # only trimmed entries are missing
        try:
            self.local_low = self._find_low(self.meta.trimmed_glsn)
        except Corrupt:
            readable = False
        readable = readable and self._data.first_llsn <= self.first_kept
        damaged = damaged or not readable
        if not damaged:
            # Finish a trim that a crash interrupted.
            for step in self._drop_trimmed(self.meta.trimmed_glsn, self._commits.last):
                step()
        return replace(found, local_low=self.local_low, damaged=damaged, readable=readable)

    @property
    def lost_llsns(self) -> range:
        """The committed entries at the end that were damaged when the store was opened."""
        return self._data.lost_llsns

    @property
    def kept(self) -> str:
        """The path of the copy of their bytes."""
        return self._data.kept

    @property
    def lacks_commits(self) -> bool:
        """True if lost commits, which sound ones followed, have not been received again."""
        return bool(self._commits.hole_end)

    def abandon(self) -> None:
        """Forget the files, which are no longer in the directory. They are closed with their last
        reader."""
        self._data.abandon()
        self._commits.abandon()

    def close(self) -> None:
        """Close the files. Blocking; the journal and its worker must be closed before."""
        self._data.close()
        self._commits.close()


def _first_above(trimmed_glsn: Glsn, commit: CommitContext) -> Place:
    """Return the first entry of a commit that is not trimmed, or NOWHERE."""
    glsn = max(commit.glsn, trimmed_glsn + 1)
    skipped = glsn - commit.glsn
    return Place(glsn, commit.llsn + skipped) if skipped < commit.length else NOWHERE


def _sync_names(files: Files, path: str) -> None:
    """Sync directory entries, outermost first. A killed process may have left them unsynced, and
    they must survive a power loss before anything depends on them."""
    files.sync_directory(path.rpartition("/")[0])
    files.sync_directory(path)
    for name in _DIRECTORIES:
        if files.exists(f"{path}/{name}"):
            files.sync_directory(f"{path}/{name}")
