"""The commit log of a replica: 64-byte records in files that grow up to a fixed size.

    commit/<ordinal of the first record, 20 digits>.cc

    offset  size
    0       64    slot A: an empty commit
    512     64    slot B: another; in separate sectors, so that no write touches both
    1024    64n   records, dense in LLSN, then zeros

A record: CRC32C of the rest (4), magic "LMC1" (4), ordinal, high watermark, previous high
watermark, GLSN, LLSN, length, epoch (8 each). Little-endian.

Empty commits only advance the high watermark, so only the latest is kept. It is written to the slot
of the newest file that does not hold the latest stored one: so a torn write never moves the high
watermark back. Only one such write is in progress at a time; of those that arrive meanwhile, only
the latest is written. An empty commit has the ordinal of the next record, and is valid only if all
records before that are stored.

Lookups find a new commit immediately: those that may not be in the file yet are in `_recent`.
Commits are written lazily. Losing the last ones is harmless: the metadata repository sends them
again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from operator import attrgetter
from struct import Struct

from crc32c import crc32c

from loomlog.config import StorageSettings
from loomlog.core.ordered.recovery import last_place
from loomlog.errors import Corrupt, InvalidArgument
from loomlog.storage.files import Files, Finished, Read, Step, from_disk, keep_copy
from loomlog.storage.ordered.journal import Channel, ChannelFile, Journal, allocation
from loomlog.types import Buffer, CommitContext, Glsn, Llsn, SyncMode

RECORD_BYTES = 64
SLOT_OFFSETS = (0, 512)
RECENT = 1024  # contexts kept in memory for reads at the tail
_BLOCK_RECORDS = 64
_CURSORS_MAX = 256  # remembered places where readers will continue
_RECORDS_OFFSET = 1024
MAGIC = b"LMC1"
_MAGIC = int.from_bytes(MAGIC, "little")
_CRC = Struct("<I")
_BODY = Struct("<I7Q")


def records_max(file_bytes: int) -> int:
    """Return how many records fit into a file of that size."""
    return max(1, (file_bytes - _RECORDS_OFFSET) // RECORD_BYTES)


def encode(ordinal: int, context: CommitContext) -> bytes:
    body = _BODY.pack(_MAGIC, ordinal, *context)
    return _CRC.pack(crc32c(body)) + body


def decode(data: Buffer, offset: int = 0) -> tuple[int, CommitContext] | None:
    """Return the ordinal and the commit at `offset`, or None if there is no sound record."""
    if len(data) < offset + RECORD_BYTES:
        return None
    body = memoryview(data)[offset + _CRC.size : offset + RECORD_BYTES]
    fields = _BODY.unpack(body)
    if fields[0] != _MAGIC or crc32c(body) != _CRC.unpack_from(data, offset)[0]:
        return None
    return fields[1], CommitContext._make(fields[2:])


class CommitFile(ChannelFile):
    """One file. A new one is created and opened by the worker."""

    def __init__(self, path: str, first_ordinal: int, channel: Channel) -> None:
        super().__init__(path, channel)
        self.first_ordinal = first_ordinal
        self.first: CommitContext | None = None  # the first readable record
        self.stored_slot: int | None = None  # the slot with the latest stored empty commit

    @property
    def free_slot(self) -> int:
        return 0 if self.stored_slot is None else 1 - self.stored_slot

    def offset(self, ordinal: int) -> int:
        return _RECORDS_OFFSET + (ordinal - self.first_ordinal) * RECORD_BYTES

    def read(self, ordinal: int, count: int, read: Read) -> list[CommitContext]:
        """Return `count` records. Raise Corrupt if one is not sound."""
        start = self.offset(ordinal)
        data = read(self.file, count * RECORD_BYTES, start)
        contexts = []
        for number in range(count):
            found = decode(data, number * RECORD_BYTES)
            if found is None or found[0] != ordinal + number:
                raise Corrupt(
                    f"{self.path} at {start + number * RECORD_BYTES}: "
                    f"no sound commit record {ordinal + number}"
                )
            contexts.append(found[1])
        return contexts

    def wipe(self, end_ordinal: int, size: int, *, keep_slot: int | None = None) -> None:
        """Write zeros after the records, and clear slots that belong after later records.
        Blocking."""
        for slot, offset in enumerate(SLOT_OFFSETS):
            found = decode(self.file.read(RECORD_BYTES, offset))
            if slot != keep_slot and found is not None and found[0] >= end_ordinal:
                self.file.write([bytes(RECORD_BYTES)], offset)
        self.stored_slot = keep_slot
        end = self.offset(end_ordinal)
        self.file.truncate(end)
        # Write the records again: after a failed sync, a later sync need not store them.
        self.file.write([self.file.read(end, 0)], 0)
        self.allocated = allocation(end, size)
        self.file.allocate(self.allocated)
        self.file.sync()


def follows(context: CommitContext, earlier: CommitContext) -> bool:
    """Return whether a commit can directly follow an earlier one of its stream."""
    return context.llsn == earlier.last_llsn + 1 and context.high_watermark > earlier.high_watermark


@dataclass(slots=True)
class RecoveredCommits:
    """The contents of the files of a log (commit_recovery.py)."""

    chain: list[CommitFile]
    next_ordinal: int
    recent: list[CommitContext]  # the newest records
    empty: CommitContext | None  # newer than all records
    damaged: bool  # records in the middle are lost
    hole_end: Llsn = 0  # last LLSN of sound records that follow a lost one, and are not used


class CommitLog:
    """The commit files of one replica."""

    def __init__(
        self,
        files: Files,
        path: str,
        channel: Channel,
        journal: Journal,
        settings: StorageSettings,
        found: RecoveredCommits,
    ) -> None:
        """`path` is the directory with the files."""
        self._files = files
        self._path = path
        self._channel = channel
        self._journal = journal
        self._durable = settings.sync is not SyncMode.NONE
        self._file_bytes = settings.commit_file_bytes
        self._records_max = records_max(settings.commit_file_bytes)
        self.damaged = found.damaged
        self.hole_end = found.hole_end  # 0 once commits up to there are stored again
        self._chain = found.chain  # replaced, never mutated: readers may use it
        self._next = found.next_ordinal
        first = found.next_ordinal - len(found.recent)
        self._recent = (first, found.recent)  # the newest commits, and the ordinal of the first
        self._stored = found.next_ordinal
        self._cursors: dict[Llsn, int] = {}
        self.last = found.recent[-1] if found.recent else None  # the last non-empty commit
        self.empty = found.empty  # the latest empty commit, if it is newer than `last`
        self._empty_under_way = False
        self._waiting: list[tuple[CommitContext, Finished]] = []  # empty commits, not written yet

    @property
    def stored_bytes(self) -> int:
        return (self._next - self._oldest) * RECORD_BYTES

    @property
    def paths(self) -> list[str]:
        """Return the paths of the current files."""
        return [file.path for file in self._chain if file.opened is not None]

    @property
    def _oldest(self) -> int:
        return self._chain[0].first_ordinal if self._chain else self._next

    # ---- writing ------------------------------------------------------------------------

    def append(self, context: CommitContext, done: Finished) -> None:
        """Append the next commit. `done` is called when it is stored."""
        self._check_order(context)
        if context.length:
            self._append_record(context, done)
        else:
            self.empty = context
            self._waiting.append((context, done))
            self._write_empty()

    def _check_order(self, context: CommitContext) -> None:
        newest = self.empty or self.last
        if newest is not None and not follows(context, newest):
            raise InvalidArgument(f"{self._path}: {context} does not follow {newest}")

    def _append_record(self, context: CommitContext, done: Finished) -> None:
        file = self._file_with_room()
        ordinal = self._next
        file.first = file.first or context
        self._recent[1].append(context)  # before `_next` shows it to readers
        self._next = ordinal + 1
        self.last, self.empty = context, None
        if context.last_llsn >= self.hole_end:
            self.hole_end = 0
        # Waiting empty commits are superseded: they count as stored when this one is.
        dones = [*(waiting for _, waiting in self._waiting), done]
        self._waiting = []
        self._journal.write_lazy(
            file,
            file.offset(ordinal),
            [encode(ordinal, context)],
            partial(self._stored_record, ordinal, dones),
        )
        self._journal.grow(file, file.offset(self._next), self._file_bytes)

    def _stored_record(
        self, ordinal: int, dones: list[Finished], error: BaseException | None
    ) -> None:
        if error is None:
            self._stored = ordinal + 1
            self._forget_old()
        for done in dones:
            done(error)

    def _forget_old(self) -> None:
        first, recent = self._recent
        count = min(len(recent) - RECENT, self._stored - first)
        if count >= RECENT:  # seldom, because the rest has to be copied
            self._recent = (first + count, recent[count:])

    def _write_empty(self) -> None:
        if self._empty_under_way or not self._waiting:
            return
        self._empty_under_way = True
        context = self._waiting[-1][0]
        dones = [done for _, done in self._waiting]
        self._waiting = []
        file = self._chain[-1] if self._chain else self._roll()
        slot = file.free_slot
        self._journal.write_lazy(
            file,
            SLOT_OFFSETS[slot],
            [encode(self._next, context)],
            partial(self._stored_empty, file, slot, dones),
        )

    def _stored_empty(
        self, file: CommitFile, slot: int, dones: list[Finished], error: BaseException | None
    ) -> None:
        self._empty_under_way = False
        if error is None:
            file.stored_slot = slot
        self._write_empty()
        for done in dones:
            done(error)

    def _file_with_room(self) -> CommitFile:
        if self._chain and self._next - self._chain[-1].first_ordinal < self._records_max:
            return self._chain[-1]
        return self._roll()

    def _roll(self) -> CommitFile:
        last = self._chain[-1] if self._chain else None
        file = CommitFile(f"{self._path}/{self._next:020d}.cc", self._next, self._channel)
        file.allocated = allocation(file.offset(self._next), self._file_bytes)
        self._journal.call(self._channel, [partial(self._create, last, file)])
        self._chain = [*self._chain, file]
        return file

    def _create(self, last: CommitFile | None, file: CommitFile) -> None:
        """Create a file, off the loop. Its existence implies that all records before it are
        stored."""
        if last is not None and self._durable:
            last.file.sync()
        file.opened = self._files.open(file.path, create=True)
        file.opened.allocate(file.allocated)
        if self._durable:
            file.opened.sync()
            self._files.sync_directory(self._path)

    # ---- lookups ------------------------------------------------------------------------

    def find(self, glsn: Glsn, read: Read) -> CommitContext | None:
        """Return the first commit with entries that ends at or above `glsn`."""
        ordinal = self._search(glsn, _glsn, _last_glsn, read)
        return self._at(ordinal, read) if ordinal < self._next else None

    def walk(self, llsn: Llsn, read: Read) -> Iterator[tuple[int, CommitContext]]:
        """Yield the commits, beginning with the one that holds `llsn`, each with its ordinal."""
        ordinal = self._cursors.get(llsn)
        if ordinal is None or ordinal < self._oldest:  # a cursor may be one commit too early
            ordinal = self._search(llsn, _llsn, _last_llsn, read)
        return self._from(ordinal, read)

    def after(self, high_watermark: Glsn, read: Read) -> Iterator[CommitContext]:
        """Yield the commits with entries whose high watermark is above this one, oldest first."""
        ordinal = self._search(high_watermark + 1, _high_watermark, _high_watermark, read)
        return (context for _, context in self._from(ordinal, read))

    def _from(self, ordinal: int, read: Read) -> Iterator[tuple[int, CommitContext]]:
        while ordinal < self._next:
            for context in self._block(ordinal, read):
                yield ordinal, context
                ordinal += 1

    def remember(self, llsn: Llsn, ordinal: int) -> None:
        """Remember that a reader will continue at `llsn`, in this commit or the next."""
        if len(self._cursors) >= _CURSORS_MAX:
            self._cursors = {}
        self._cursors[llsn] = ordinal

    def newest_first(self) -> Iterator[CommitContext]:
        """Yield the commits, newest first, back to the first that cannot be read. Blocking."""
        if self.empty is not None:
            yield self.empty
        for ordinal in range(self._next - 1, self._oldest - 1, -1):
            try:
                yield self._at(ordinal, from_disk)
            except Corrupt:
                self.damaged = True
                return

    def _search(self, number: int, start: _Key, last: _Key, read: Read) -> int:
        """Return the ordinal of the first record with `last` at or above `number`."""
        first, recent = self._recent
        if recent and (start(recent[0]) <= number or first <= self._oldest):
            return first + bisect_left(recent, number, key=last)
        chain = [file for file in self._chain if file.first is not None]
        if not chain:
            return self._next
        after = bisect_right(chain, number, key=lambda file: start(file.first))  # type: ignore[arg-type]
        low = chain[max(after - 1, 0)].first_ordinal
        high = chain[max(after, 1)].first_ordinal if max(after, 1) < len(chain) else self._next
        ordinals = range(low, high)
        return low + bisect_left(ordinals, number, key=lambda o: last(self._at(o, read)))

    def _at(self, ordinal: int, read: Read) -> CommitContext:
        return self._block(ordinal, read, 1)[0]

    def _block(self, ordinal: int, read: Read, count: int = _BLOCK_RECORDS) -> list[CommitContext]:
        """Return at least one and at most `count` commits, beginning with `ordinal`."""
        first, recent = self._recent
        if ordinal >= first:
            return recent[ordinal - first : ordinal - first + count]
        chain = self._chain
        position = bisect_right(chain, ordinal, key=_first_ordinal) - 1
        if position < 0:
            raise Corrupt(f"{self._path}: record {ordinal} was trimmed")
        end = chain[position + 1].first_ordinal if position + 1 < len(chain) else first
        return chain[position].read(ordinal, min(count, end - ordinal, first - ordinal), read)

    # ---- dropping -----------------------------------------------------------------------

    def drop_above(self, high_watermark: Glsn, llsn: Llsn, epoch: int) -> None:
        """Delete newer commits, after which `llsn` is the first uncommitted LLSN. Blocking; only
        while the store is being opened."""
        if self.empty is not None and self.empty.high_watermark > high_watermark:
            self.empty = None
        newer = takewhile(
            lambda commit: commit.length and commit.high_watermark > high_watermark,
            self.newest_first(),
        )
        count = sum(1 for _ in newer)
        if count:
            self._cut(self._next - count)
            self._keep_watermark(high_watermark, llsn, epoch)

    def keep_copies(self) -> None:
        """Copy the files to `….damaged` before commits of lost entries are dropped: an operator may
        want them. Blocking."""
        for file in self._chain:
            keep_copy(self._files, file.path, file.file, 0)

    def _keep_watermark(self, high_watermark: Glsn, llsn: Llsn, epoch: int) -> None:
        """Store the high watermark below the dropped commits, so that later recoveries find it."""
        before = self.last.high_watermark if self.last else 0
        if high_watermark > before:
            self.empty = CommitContext(high_watermark, before, 0, llsn, 0, epoch)
            file = self._chain[-1]
            file.file.write([encode(self._next, self.empty)], SLOT_OFFSETS[0])
            file.file.sync()
            file.stored_slot = 0

    def _cut(self, end: int) -> None:
        kept = [file for file in self._chain if file.first_ordinal < end] or self._chain[:1]
        for file in reversed(self._chain[len(kept) :]):
            self._files.remove(file.path)
        self._files.sync_directory(self._path)
        last = kept[-1]
        last.wipe(end, self._file_bytes)
        if last.first_ordinal == end:
            last.first = None
        self._chain = kept
        self._next = self._stored = end
        self._recent = (end, [])
        self.last, self.empty = None, None
        recent = list(islice(self.newest_first(), RECENT))[::-1]
        self._recent = (end - len(recent), recent)
        self.last = recent[-1] if recent else None

    def drop_below(self, glsn: Glsn, stored_llsn: Llsn) -> list[Step]:
        """Forget files whose commits end at or below `glsn`, except those that are not followed by
        a commit at or below `stored_llsn`. Return the steps that remove them."""
        count = 0
        while count + 1 < len(self._chain):
            first = self._chain[count + 1].first
            if first is None or first.glsn > glsn + 1 or first.llsn > stored_llsn:
                break
            count += 1
        dropped, self._chain = self._chain[:count], self._chain[count:]
        for file in dropped:
            self._journal.forget(file)
        return [partial(self._remove, file) for file in dropped]

    def sync(self) -> None:
        """Sync the files, off the loop. All but the last two were synced when they were full."""
        if self._durable:
            for file in self._chain[-2:]:
                if file.opened is not None:
                    file.opened.sync()

    def _remove(self, file: CommitFile) -> None:
        self._files.remove(file.path)
        if self._durable:
            self._files.sync_directory(self._path)

    def abandon(self) -> None:
        """Forget the files, which were replaced. They are closed with their last reader."""
        for file in self._chain:
            self._journal.forget(file)

    def close(self) -> None:
        """Close the files. Blocking; nothing may be in progress."""
        for file in self._chain:
            if file.opened is not None:
                file.opened.close()


_Key = Callable[[CommitContext], int]
_first_ordinal = attrgetter("first_ordinal")
_high_watermark = attrgetter("high_watermark")
_glsn = attrgetter("glsn")
_llsn = attrgetter("llsn")
_last_llsn = attrgetter("last_llsn")


def _last_glsn(context: CommitContext) -> Glsn:
    return last_place(context).glsn
