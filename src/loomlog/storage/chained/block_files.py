"""Large blocks of chains, in files next to the table (batch_files.py).

Each replica fills one file after the other. A file is removed when everything in it is trimmed;
therefore a row of the table records the highest position in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from loomlog.core.chained.chain import Block, Replica
from loomlog.core.chained.replica import Standing
from loomlog.errors import Corrupt
from loomlog.limits import KIB, MIB, POSITION_MAX
from loomlog.storage.batch_files import BatchFiles
from loomlog.storage.files import File, Files
from loomlog.types import Glsn

LARGE_BYTES: Final = 32 * KIB  # smaller blocks are not worth a second sync
FILE_BYTES: Final = 64 * MIB  # then the next file begins; a trim frees space in units of this
FILES_MAX: Final = 4  # synced by one commit; further large blocks go to rows, like small ones


class FilePlace(NamedTuple):
    """The place of a batch."""

    number: int  # of its file
    offset: int
    size: int
    crc: int


class Content(NamedTuple):
    """The contents of a file."""

    highest: Glsn = 0  # the highest position of its blocks
    size: int = 0


Contents: TypeAlias = dict[Replica, dict[int, Content]]  # by file number


class BlockFiles:
    """The files of one table. One thread adds blocks, another removes files, any may read."""

    def __init__(self, files: Files, path: str, contents: Contents) -> None:
        """`contents` comes from the rows of the table. All other files are removed. Blocking."""
        self._files = BatchFiles(files, path)
        self._lock = Lock()  # protects all mutable state
        self._contents = contents
        # The current file of each replica. Numbers are not reused: readers may still use old files.
        self._current = {replica: max(files) for replica, files in contents.items() if files}
        self._changed: dict[tuple[Replica, int], Content] = {}  # since the last flush
        self._files.remove_others(
            {(_folder(replica), number) for replica in contents for number in contents[replica]}
        )

    @property
    def stored_bytes(self) -> int:
        with self._lock:
            return sum(
                content.size for files in self._contents.values() for content in files.values()
            )

    def bytes_of(self, replica: Replica) -> int:
        with self._lock:
            return sum(content.size for content in self._contents.get(replica, {}).values())

    # ---- adding

    def takes(self, replica: Replica) -> bool:
        """Return whether a large block goes to a file: a commit syncs only a few files."""
        changed = self._changed
        return len(changed) < FILES_MAX or (replica, self._current.get(replica)) in changed

    def add(self, replica: Replica, block: Block) -> FilePlace:
        """Queue a block; the next flush writes it."""
        size = len(block.batch)
        with self._lock:
            number = self._number(replica)
            files = self._contents.setdefault(replica, {})
            highest = max(files.get(number, Content()).highest, block.last)
            offset = self._files.add(_folder(replica), number, block.batch)
            files[number] = self._changed[replica, number] = Content(highest, offset + size)
        return FilePlace(number, offset, size, crc32c(block.batch))

    def _number(self, replica: Replica) -> int:
        """Return the number of the file for the next block."""
        number = self._current.get(replica, 0)
        content = self._contents.get(replica, {}).get(number)
        if content is None or content.size >= FILE_BYTES:
            number = self._current[replica] = number + 1
        return number

    def flush(self, *, sync: bool) -> dict[tuple[Replica, int], Content]:
        """Write the queued blocks. Return the changed contents, to be recorded in rows."""
        with self._lock:
            self._files.flush(sync=sync)
            changed, self._changed = self._changed, {}
        return changed

    # ---- reading

    def open(self, replica: Replica, number: int) -> File:
        """Open a file for reading. Raise FileNotFoundError if everything in it was trimmed, or the
        whole table is gone, and Corrupt if only files are missing."""
        try:
            return self._files.open(_folder(replica), number)
        except FileNotFoundError as error:
            with self._lock:
                is_used = number in self._contents.get(replica, {})
            if is_used and self._files.has_home():
                raise Corrupt(f"{error.filename} is missing: check the disk") from None
            raise

    # ---- removing

    def remove(self, replica: Replica, position: Glsn) -> list[int]:
        """Remove the files that end at or below a position. Return their numbers."""
        with self._lock:
            files = self._contents.get(replica, {})
            gone = [number for number in files if files[number].highest <= position]
            for number in gone:
                self._files.remove(_folder(replica), number)
                del files[number]
            if not files and self._contents.pop(replica, None) is not None:
                self._files.remove_folder(_folder(replica))
            if position >= POSITION_MAX:
                self._current.pop(replica, None)  # the replica itself was removed
        return gone

    def close(self) -> None:
        with self._lock:
            self._files.close()


def read(file: File, place: FilePlace) -> bytearray:
    batch = file.read(place.size, place.offset)
    if len(batch) != place.size or crc32c(batch) != place.crc:
        raise Corrupt("a large block is not what was written: check the disk")
    return batch


def needless(
    contents: Contents, standings: Mapping[Replica, Standing]
) -> Iterator[tuple[Replica, int]]:
    """Yield the files that an earlier process should have removed."""
    for replica, files in contents.items():
        standing = standings.get(replica)
        for number, content in files.items():
            if standing is None or content.highest <= standing.trimmed:
                yield replica, number


def _folder(replica: Replica) -> int:
    """Return a number that is unique among the replicas of the node."""
    return replica.log_id << 96 | replica.chain << 64 | replica.birth
