"""Opens the commit log of a replica after a crash.

Records are valid up to the first whose checksum, ordinal or order is wrong. The rest is wiped, so
that it cannot reappear after new records.

After damage or a power loss, an invalid record may be followed by sound ones. A single lost record
is reconstructed if its neighbours determine it. Otherwise the file is copied to `….damaged` before
the records after it are wiped; the metadata repository, or a peer, sends these commits again.
"""

from __future__ import annotations

import logging

from loomlog.config import StorageSettings
from loomlog.errors import Corrupt
from loomlog.storage.files import Files, from_disk, keep_copy
from loomlog.storage.ordered.commit_log import (
    MAGIC,
    RECENT,
    RECORD_BYTES,
    SLOT_OFFSETS,
    CommitFile,
    CommitLog,
    RecoveredCommits,
    decode,
    encode,
    follows,
)
from loomlog.storage.ordered.journal import Channel, Journal
from loomlog.types import CommitContext, Llsn

logger = logging.getLogger(__name__)


def open_commit_log(
    files: Files,
    path: str,
    base: CommitContext,
    channel: Channel,
    journal: Journal,
    settings: StorageSettings,
) -> CommitLog:
    """Open the commit log of the replica at `path`, whose first commit follows `base`. Blocking."""
    path = f"{path}/commit"
    files.make_directory(path)
    found = _open_files(files, path, base, channel, settings.commit_file_bytes)
    return CommitLog(files, path, channel, journal, settings, found)


def _open_files(
    files: Files, path: str, base: CommitContext, channel: Channel, file_bytes: int
) -> RecoveredCommits:
    """Open the files in a directory. Read the newest completely, and one record of each other."""
    chain = [
        CommitFile(f"{path}/{name}", int(name[:-3]), channel)
        for name in files.list(path)
        if name.endswith(".cc")
    ]
    for file in chain:
        file.opened = files.open(file.path)
    if not chain:
        return RecoveredCommits([], 0, [], None, damaged=False)
    contexts, hole = _open_newest(chain, base)
    hole_end = hole
    while not contexts and len(chain) > 1:  # a new file whose first record was not stored
        file = chain.pop()
        keep_copy(files, file.path, file.file, 0)
        files.remove(file.path)
        files.sync_directory(path)
        contexts, hole = _open_newest(chain, base)
        hole_end = max(hole_end, hole)
    newest, last = chain[-1], contexts[-1] if contexts else None
    next_ordinal = newest.first_ordinal + len(contexts)
    if hole or any(newest.file.read(RECORD_BYTES, newest.offset(next_ordinal))):
        kept = keep_copy(files, newest.path, newest.file, 0)
        logger.warning("%s: record %d is not whole, kept in %s", newest.path, next_ordinal, kept)
    empty = _open_slots(newest, next_ordinal, last, file_bytes)
    lost = [file for file in chain[:-1] if not _read_first(file)]
    return RecoveredCommits(chain, next_ordinal, contexts[-RECENT:], empty, bool(lost), hole_end)


def _open_newest(chain: list[CommitFile], base: CommitContext) -> tuple[list[CommitContext], Llsn]:
    """Return the valid records of the newest file, and the last LLSN of sound records that are not
    used because one before them is lost; 0 if there are none."""
    file = chain[-1]
    before = base if file.first_ordinal == 0 else None
    if len(chain) > 1:
        try:
            [before] = chain[-2].read(file.first_ordinal - 1, 1, from_disk)
        except Corrupt:
            before = None
    contexts, hole_end = _scan(file, file.file.read(file.file.size(), 0), before)
    file.first = contexts[0] if contexts else None
    return contexts, hole_end


def _scan(
    file: CommitFile, data: bytearray, before: CommitContext | None
) -> tuple[list[CommitContext], Llsn]:
    contexts: list[CommitContext] = []
    while True:
        ordinal = file.first_ordinal + len(contexts)
        found = decode(data, file.offset(ordinal))
        if (
            found is not None
            and found[0] == ordinal
            and (not contexts or follows(found[1], contexts[-1]))
        ):
            contexts.append(found[1])
            continue
        last = contexts[-1] if contexts else before
        later = _records_after(file, data, ordinal, last)
        if not later:
            return contexts, 0
        lost = _between(last, later[ordinal + 1]) if ordinal + 1 in later else None
        if lost is None:
            logger.warning("%s: record %d is lost, later ones are not", file.path, ordinal)
            return contexts, max(context.last_llsn for context in later.values())
        logger.warning("%s: record %d was lost and is written again", file.path, ordinal)
        file.file.write([encode(ordinal, lost)], file.offset(ordinal))
        file.file.sync()
        contexts.append(lost)


def _records_after(
    file: CommitFile, data: bytearray, ordinal: int, last: CommitContext | None
) -> dict[int, CommitContext]:
    """Return the sound records after that of `ordinal`, by their ordinals."""
    if data.find(MAGIC, file.offset(ordinal + 1)) < 0:
        return {}
    after: dict[int, CommitContext] = {}
    count = (len(data) - file.offset(file.first_ordinal)) // RECORD_BYTES
    for later in range(ordinal + 1, file.first_ordinal + count):
        found = decode(data, file.offset(later))
        if found is None or found[0] != later:
            continue
        if last is None or (
            found[1].llsn > last.last_llsn and found[1].high_watermark > last.high_watermark
        ):
            after[later] = last = found[1]
    return after


def _between(last: CommitContext | None, following: CommitContext) -> CommitContext | None:
    """Return the lost commit between two others, if they determine it."""
    if last is None:
        return None
    length = following.llsn - last.last_llsn - 1
    high_watermark = following.prev_high_watermark
    if length < 1 or high_watermark - last.high_watermark != length:
        return None  # some of these positions belong to other streams
    if last.epoch not in (0, following.epoch):
        return None
    glsn, llsn = last.high_watermark + 1, last.last_llsn + 1
    return CommitContext(high_watermark, last.high_watermark, glsn, llsn, length, following.epoch)


def _open_slots(
    file: CommitFile, next_ordinal: int, last: CommitContext | None, file_bytes: int
) -> CommitContext | None:
    """Return the latest valid empty commit. Clear invalid ones."""
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
    """Set `file.first`. Return False if the first record is lost."""
    found = decode(file.file.read(RECORD_BYTES, file.offset(file.first_ordinal)))
    if found is not None and found[0] == file.first_ordinal:
        file.first = found[1]
        return True
    data = file.file.read(file.file.size(), 0)
    offsets = range(file.offset(file.first_ordinal), len(data), RECORD_BYTES)
    file.first = next((found[1] for offset in offsets if (found := decode(data, offset))), None)
    return False
