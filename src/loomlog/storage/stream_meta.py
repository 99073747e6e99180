"""What a replica must know of itself besides its data: a small file, replaced atomically.

<path>/meta    one line of JSON, then its CRC32C in hex on a line of its own
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from crc32c import crc32c

from loomlog.errors import Corrupt, VersionMismatch
from loomlog.storage.files import Files
from loomlog.types import Glsn, Llsn, LogId, StreamId

FORMAT = 1


@dataclass(frozen=True, slots=True)
class StreamMeta:
    """Whose data this is, its seal epoch, how far it was trimmed, and where it began if that is
    not the first entry of the stream."""

    log_id: LogId
    stream_id: StreamId
    epoch: int = 0
    trimmed_glsn: Glsn = 0
    base_llsn: Llsn = 1
    base_high_watermark: Glsn = 0  # before the first commit
    wiping: bool = False  # what is stored does not count: the replica begins anew at the base


def save(files: Files, path: str, meta: StreamMeta) -> None:
    """Blocking; survives a power loss whatever the sync mode: epochs fence."""
    line = json.dumps({"format": FORMAT, **asdict(meta)}).encode()
    replace_file(files, f"{path}/meta", b"%s\n%08x\n" % (line, crc32c(line)))


def load(files: Files, path: str) -> StreamMeta:
    """Blocking."""
    file = files.open(f"{path}/meta")
    data = bytes(file.read(file.size(), 0))
    file.close()
    line, _, crc = data.partition(b"\n")
    if crc != b"%08x\n" % crc32c(line):
        raise Corrupt(f"{path}/meta does not match its checksum; remove this replica and add anew")
    fields = json.loads(line)
    if fields.pop("format") != FORMAT:
        raise VersionMismatch(f"{path}/meta has another format version; upgrade the software")
    return StreamMeta(**fields)


def replace_file(files: Files, path: str, data: bytes) -> None:
    """All of it or what was there before, also after a power loss. Blocking."""
    temporary = f"{path}.tmp"
    file = files.open(temporary, create=True)
    file.truncate(0)
    file.write([data], 0)
    file.sync()
    file.close()
    files.rename(temporary, path)
    files.sync_directory(path.rpartition("/")[0])
