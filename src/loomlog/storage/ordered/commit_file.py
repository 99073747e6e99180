"""The files of the commit log: their format, and how they are opened after a crash.

    commit/<ordinal of the first record, 20 digits>.cc

    offset  size
    0       64    slot A: an empty commit
    512     64    slot B: another; a sector each, so that no write touches both
    1024    64n   records, then zeros

A record: CRC32C of the rest (4), magic "LMC1" (4), ordinal, high watermark, previous high
watermark, GLSN, LLSN, length, epoch (8 each). Little-endian. Records count as far as checksum,
ordinal and order fit; whatever follows is wiped when the file is opened, so that it cannot come
back behind other records.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from crc32c import crc32c

from loomlog.errors import Corrupt
from loomlog.storage.files import File, Files
from loomlog.storage.ordered.allocation import allocation
from loomlog.storage.ordered.file_read import Read
from loomlog.storage.ordered.journal import Channel
from loomlog.types import Buffer, CommitContext

RECORD_BYTES = 64
SLOT_OFFSETS = (0, 512)
RECENT = 1024  # contexts kept in memory for reads at the tail
_RECORDS_OFFSET = 1024
_MAGIC = int.from_bytes(b"LMC1", "little")
_CRC = Struct("<I")
_BODY = Struct("<I7Q")


def records_max(file_bytes: int) -> int:
    """Return how many records fit into a file of that size."""
    return max(1, (file_bytes - _RECORDS_OFFSET) // RECORD_BYTES)


def encode(ordinal: int, context: CommitContext) -> bytes:
    body = _BODY.pack(_MAGIC, ordinal, *context)
    return _CRC.pack(crc32c(body)) + body


def decode(data: Buffer, offset: int = 0) -> tuple[int, CommitContext] | None:
    """The ordinal and the commit at `offset`, or None where no sound record stands."""
    if len(data) < offset + RECORD_BYTES:
        return None
    body = memoryview(data)[offset + _CRC.size : offset + RECORD_BYTES]
    fields = _BODY.unpack(body)
    if fields[0] != _MAGIC or crc32c(body) != _CRC.unpack_from(data, offset)[0]:
        return None
    return fields[1], CommitContext._make(fields[2:])


class CommitFile:
    """One file. It is a journal's target: it comes to be when the roll is carried out."""

    def __init__(self, path: str, first_ordinal: int, channel: Channel) -> None:
        self.path = path
        self.first_ordinal = first_ordinal
        self.channel = channel
        self.first: CommitContext | None = None  # its first record that can be read
        self.opened: File | None = None
        self.allocated = 0  # its size
        self.stored_slot: int | None = None  # holds the latest empty commit known to be stored

    @property
    def file(self) -> File:
        if self.opened is None:
            raise OSError(f"{self.path} is not there yet")
        return self.opened

    @property
    def free_slot(self) -> int:
        return 0 if self.stored_slot is None else 1 - self.stored_slot

    def offset(self, ordinal: int) -> int:
        return _RECORDS_OFFSET + (ordinal - self.first_ordinal) * RECORD_BYTES

    def read(self, ordinal: int, count: int, read: Read) -> list[CommitContext]:
        """Return `count` records, or raise Corrupt."""
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
        """Let zeros follow the records, and clear the slots that say they are behind more of
        them. Blocking."""
        for slot, offset in enumerate(SLOT_OFFSETS):
            found = decode(self.file.read(RECORD_BYTES, offset))
            if slot != keep_slot and found is not None and found[0] >= end_ordinal:
                self.file.write([bytes(RECORD_BYTES)], offset)
        self.stored_slot = keep_slot
        end = self.offset(end_ordinal)
        self.file.truncate(end)
        # Written once more: after a sync that failed, no other one stores what was read here.
        self.file.write([self.file.read(end, 0)], 0)
        self.allocated = allocation(end, size)
        self.file.allocate(self.allocated)
        self.file.sync()

    def scan(self, data: bytearray) -> list[CommitContext]:
        """The records in `data`, the whole file, as far as they fit together."""
        contexts: list[CommitContext] = []
        ordinal = self.first_ordinal
        while (found := decode(data, self.offset(ordinal))) is not None:
            if found[0] != ordinal or (contexts and not follows(found[1], contexts[-1])):
                break
            contexts.append(found[1])
            ordinal += 1
        return contexts


def follows(context: CommitContext, earlier: CommitContext) -> bool:
    """Whether it can be the next commit of a stream."""
    return context.llsn == earlier.last_llsn + 1 and context.high_watermark > earlier.high_watermark


@dataclass(slots=True)
class Found:
    """The contents of a file on disk."""

    chain: list[CommitFile]
    next_ordinal: int
    recent: list[CommitContext]  # the newest records
    empty: CommitContext | None  # newer than all records
    damaged: bool  # records in the middle are lost


def open_commit_files(files: Files, path: str, channel: Channel, file_bytes: int) -> Found:
    """Open the files in a directory. Reads the newest whole, and one record of each other."""
    chain = [
        CommitFile(f"{path}/{name}", int(name[:-3]), channel)
        for name in files.list(path)
        if name.endswith(".cc")
    ]
    for file in chain:
        file.opened = files.open(file.path)
    if not chain:
        return Found([], 0, [], None, damaged=False)
    contexts = _open_newest(chain[-1])
    while not contexts and len(chain) > 1:  # rolled, and its first record did not make it
        files.remove(chain.pop().path)
        files.sync_directory(path)
        contexts = _open_newest(chain[-1])
    next_ordinal = chain[-1].first_ordinal + len(contexts)
    empty = _open_slots(chain[-1], next_ordinal, contexts[-1] if contexts else None, file_bytes)
    lost = [file for file in chain[:-1] if not _read_first(file)]
    return Found(chain, next_ordinal, contexts[-RECENT:], empty, damaged=bool(lost))


def _open_newest(file: CommitFile) -> list[CommitContext]:
    data = file.file.read(file.file.size(), 0)
    contexts = file.scan(data)
    file.first = contexts[0] if contexts else None
    return contexts


def _open_slots(
    file: CommitFile, next_ordinal: int, last: CommitContext | None, file_bytes: int
) -> CommitContext | None:
    """The latest empty commit that counts; clears away what does not."""
    newest: CommitContext | None = None
    keep_slot: int | None = None
    for slot, offset in enumerate(SLOT_OFFSETS):
        found = decode(file.file.read(RECORD_BYTES, offset))
        if found is None or found[0] != next_ordinal or (last and not follows(found[1], last)):
            continue
        if newest is None or found[1].high_watermark > newest.high_watermark:
            newest, keep_slot = found[1], slot
    file.wipe(next_ordinal, file_bytes, keep_slot=keep_slot)
    return newest


def _read_first(file: CommitFile) -> bool:
    """Know where the file starts; False if its first record is lost."""
    found = decode(file.file.read(RECORD_BYTES, file.offset(file.first_ordinal)))
    if found is not None and found[0] == file.first_ordinal:
        file.first = found[1]
        return True
    data = file.file.read(file.file.size(), 0)
    offsets = range(file.offset(file.first_ordinal), len(data), RECORD_BYTES)
    file.first = next((found[1] for offset in offsets if (found := decode(data, offset))), None)
    return False
