"""Opens the commit log of a replica after a crash.

Records count as far as checksum, ordinal and order fit; whatever follows is wiped, so that it
cannot come back behind other records.
"""

from __future__ import annotations

from loomlog.config import StorageSettings
from loomlog.storage.files import Files
from loomlog.storage.ordered.commit_log import (
    RECENT,
    RECORD_BYTES,
    SLOT_OFFSETS,
    CommitFile,
    CommitLog,
    Found,
    decode,
    follows,
)
from loomlog.storage.ordered.journal import Channel, Journal
from loomlog.types import CommitContext


def open_commit_log(
    files: Files, path: str, channel: Channel, journal: Journal, settings: StorageSettings
) -> CommitLog:
    """Open what is stored of the replica at `path`. Blocking."""
    path = f"{path}/commit"
    files.make_directory(path)
    found = _open_files(files, path, channel, settings.commit_file_bytes)
    return CommitLog(files, path, channel, journal, settings, found)


def _open_files(files: Files, path: str, channel: Channel, file_bytes: int) -> Found:
    """Open the files in a directory. Read the newest whole, and one record of each other."""
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
    contexts = _scan(file, data)
    file.first = contexts[0] if contexts else None
    return contexts


def _scan(file: CommitFile, data: bytearray) -> list[CommitContext]:
    """Return the records in `data`, the whole file, as far as they fit together."""
    contexts: list[CommitContext] = []
    ordinal = file.first_ordinal
    while (found := decode(data, file.offset(ordinal))) is not None:
        if found[0] != ordinal or (contexts and not follows(found[1], contexts[-1])):
            break
        contexts.append(found[1])
        ordinal += 1
    return contexts


def _open_slots(
    file: CommitFile, next_ordinal: int, last: CommitContext | None, file_bytes: int
) -> CommitContext | None:
    """Return the latest empty commit that counts; clear what does not."""
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
