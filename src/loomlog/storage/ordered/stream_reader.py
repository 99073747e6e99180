"""Reads one replica: positions, batches, parts to copy.

Nothing here changes a file or waits for a writer; StreamStore writes while workers read. Calls that
may wait for the disk belong in a worker. With `from_cache` a look-up never waits, but raises
NotCached.

A replica is copied to another in parts: batches, and commits that cover exactly these. A commit
that is larger than a part is cut between batches, and each piece becomes a commit of its own. All
pieces but the last have their own last GLSN as high watermark, so that a replica with only the
first pieces does not claim to have more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from loomlog.batch import assign_position
from loomlog.core.ordered.recovery import NOWHERE, last_place
from loomlog.errors import Corrupt, NotYetWritten, Trimmed
from loomlog.storage.files import Read, from_disk
from loomlog.storage.ordered.commit_log import CommitLog
from loomlog.storage.ordered.data_file import Examined, StoredBatch
from loomlog.storage.ordered.data_log import DataLog
from loomlog.storage.ordered.journal import Channel
from loomlog.storage.ordered.replica_paths import StreamMeta
from loomlog.types import CommitContext, Glsn, Llsn


class Chunk(NamedTuple):
    """Batches in one buffer, with their positions filled in."""

    buffer: memoryview
    first_llsn: Llsn
    last_llsn: Llsn
    first_glsn: Glsn
    last_glsn: Glsn


class Beginning(NamedTuple):
    """The start of a replica's data."""

    llsn: Llsn
    glsn: Glsn  # 0: nothing is stored
    prev_high_watermark: Glsn  # before its first commit


class ReplicaPart(NamedTuple):
    """Stored batches in one buffer, and their commits."""

    buffer: memoryview
    first_llsn: Llsn
    last_llsn: Llsn
    commits: list[CommitContext]


class StreamReader:
    """The reading half of a replica's storage."""

    def __init__(
        self, path: str, meta: StreamMeta, channel: Channel, data: DataLog, commits: CommitLog
    ) -> None:
        self.path = path
        self.meta = meta
        self._channel = channel
        self._data = data
        self._commits = commits
        self.local_low = NOWHERE  # the first committed entry that is kept

    @property
    def first_kept(self) -> Llsn:
        """The first LLSN that is not trimmed."""
        newest = self._commits.last
        end = newest.last_llsn + 1 if newest else self.meta.base_llsn
        return self.local_low.llsn or end

    # ---- reading ------------------------------------------------------------------------

    def find(self, glsn: Glsn, read: Read = from_disk) -> CommitContext | None:
        """Return the commit that holds `glsn`, or the first with entries after it, or None."""
        return self._commits.find(glsn, read)

    def find_llsn(self, llsn: Llsn, read: Read = from_disk) -> CommitContext | None:
        """Return the commit that holds `llsn`; None if it is not committed yet, or trimmed."""
        for _, commit in self._commits.walk(llsn, read):
            if llsn <= commit.last_llsn:  # `walk` may begin one commit too early
                return commit if commit.llsn <= llsn else None
        return None

    def find_time(self, timestamp_us: int, first_llsn: Llsn) -> Llsn | None:
        """Return the start of the first committed batch with an entry of that time or later, or
        `first_llsn` if that is inside it; None if there is none. Blocking."""
        newest = self._commits.last
        if newest is None:
            return None
        header = self._data.find_time(timestamp_us, first_llsn, newest.last_llsn)
        return max(header.first_llsn, first_llsn) if header else None

    def size(self, first_llsn: Llsn, end_llsn: Llsn) -> int:
        """Return the total size of the batches that begin in [first_llsn, end_llsn). Blocking."""
        return self._data.size(first_llsn, end_llsn)

    def read(
        self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int, read: Read = from_disk
    ) -> Chunk:
        """Return committed batches, beginning with the one that holds `first_llsn`: at least one,
        none that starts above `last_llsn`, and otherwise no more than `max_bytes`."""
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

    def _assign_positions(self, batches: list[StoredBatch], read: Read) -> tuple[Glsn, Glsn]:
        """Fill in the GLSNs, from the commits. Return the first and the last one."""
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
                    f"{self.path}, {self._channel.name}: no commit holds the batch of LLSN "
                    f"{header.first_llsn} to {header.last_llsn}"
                )
            glsns.append(commit.glsn + header.first_llsn - commit.llsn)
            assign_position(view, glsns[-1])
        last = batches[-1].header
        self._commits.remember(last.last_llsn + 1, ordinal)
        return glsns[0], glsns[-1] + last.count - 1

    def commits_after(self, high_watermark: Glsn, count_max: int) -> list[CommitContext]:
        """Return the commits with entries above a high watermark, oldest first. Blocking."""
        return list(islice(self._commits.after(high_watermark, from_disk), count_max))

    # ---- copying to another replica -----------------------------------------------------

    def beginning(self) -> Beginning:
        """Return where a copy of everything that is not trimmed starts: with a whole batch.
        Blocking."""
        low, newest = self.local_low, self._commits.empty or self._commits.last
        if low == NOWHERE:
            if newest is None:
                return Beginning(self.meta.base_llsn, 0, self.meta.base_high_watermark)
            return Beginning(newest.last_llsn + 1, 0, newest.high_watermark)
        batch = self._data.read(low.llsn, low.llsn, 1, from_disk)[0]
        _, commit = next(self._commits.walk(low.llsn, from_disk))
        piece = cut(commit, batch.header.first_llsn, batch.header.last_llsn)
        return Beginning(piece.llsn, piece.glsn, piece.prev_high_watermark)

    def read_part(
        self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int, read: Read = from_disk
    ) -> ReplicaPart:
        """Like `read`, but return batches as stored, and their commits. The range must begin and
        end with a batch, and may begin below the trim where data is still stored."""
        self._check_readable(first_llsn, self._data.first_llsn)
        batches = self._data.read(first_llsn, last_llsn, max_bytes, read)
        first, last = batches[0].header.first_llsn, batches[-1].header.last_llsn
        self._check_readable(last, 0)
        commits = pieces((commit for _, commit in self._commits.walk(first, read)), first, last)
        if not commits or commits[0].llsn != first:
            raise Trimmed(f"{self._channel.name}: the commits of LLSN {first} were trimmed")
        return ReplicaPart(_joined(batches), first, last, commits)

    def read_stored(self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> memoryview:
        """Return committed batches as stored, beginning with the one that holds `first_llsn`."""
        self._check_readable(first_llsn, self._data.first_llsn)
        return _joined(self._data.read(first_llsn, last_llsn, max_bytes, from_disk))

    # ---- looking for damage -------------------------------------------------------------

    def examine(self, llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> Examined:
        """Check committed batches, beginning at or below `llsn`, up to the first that is broken.
        Raise Corrupt if their commits cannot be read. Blocking."""
        examined = self._data.examine(llsn, last_llsn, max_bytes)
        for _, commit in self._commits.walk(llsn, from_disk):
            if commit.last_llsn >= examined.next_llsn - 1:
                break
        return examined


def _joined(batches: list[StoredBatch]) -> memoryview:
    """Return batches that were read together, and are adjacent, as one buffer."""
    size = sum(len(batch.view) for batch in batches)
    return memoryview(batches[0].view.obj)[:size]


# ---- parts


def pieces(
    commits: Iterable[CommitContext], first_llsn: Llsn, last_llsn: Llsn
) -> list[CommitContext]:
    """Return the commits of a range of entries that begins and ends with a batch, cut to it."""
    cut_commits: list[CommitContext] = []
    for commit in commits:
        if commit.last_llsn >= first_llsn:
            cut_commits.append(cut(commit, first_llsn, last_llsn))
        if commit.last_llsn >= last_llsn:
            break
    return cut_commits


def cut(commit: CommitContext, first_llsn: Llsn, last_llsn: Llsn) -> CommitContext:
    """Return the piece of a commit within [first_llsn, last_llsn], which it overlaps."""
    before = max(0, first_llsn - commit.llsn)
    after = max(0, commit.last_llsn - last_llsn)
    piece = commit._replace(
        glsn=commit.glsn + before,
        llsn=commit.llsn + before,
        length=commit.length - before - after,
    )
    if before:
        piece = piece._replace(prev_high_watermark=piece.glsn - 1)
    return piece._replace(high_watermark=last_place(piece).glsn) if after else piece


def check_cover(
    commits: Sequence[CommitContext], ends: Sequence[Llsn], first_llsn: Llsn, high_watermark: Glsn
) -> None:
    """Raise Corrupt unless the commits cover exactly the batches that end at `ends`, each batch by
    a single commit, and continue from `high_watermark`."""
    boundaries = set(ends)
    llsn = first_llsn
    for commit in commits:
        if (
            commit.llsn != llsn
            or commit.length < 1
            or commit.last_llsn not in boundaries
            or commit.glsn <= high_watermark
            or commit.high_watermark < last_place(commit).glsn
        ):
            raise Corrupt(f"{commit} does not follow LLSN {llsn - 1} and GLSN {high_watermark}")
        llsn, high_watermark = commit.last_llsn + 1, commit.high_watermark
    if not ends or llsn != ends[-1] + 1:
        raise Corrupt(f"commits up to LLSN {llsn - 1} for entries up to {ends[-1:]}")
