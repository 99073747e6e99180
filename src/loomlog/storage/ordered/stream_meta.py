"""The metadata of a replica: a small file, replaced atomically.

<path>/meta    one line of JSON, then its CRC32C in hex on a line of its own

Stamps identify the data, whatever its directory is called. They are random numbers, chosen when
something is created; nothing is deleted on a request that does not name them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from loomlog.errors import Corrupt, VersionMismatch
from loomlog.storage import small_files
from loomlog.storage.files import Files
from loomlog.types import Glsn, Llsn, LogId, StreamId

FORMAT = 2


@dataclass(frozen=True, slots=True)
class StreamMeta:
    """The owner of the data, its seal epoch, how far it was trimmed, and where it starts if that is
    not the first entry of the stream."""

    log_id: LogId
    stream_id: StreamId
    stamp: int = 0  # of the stream, the same on all its replicas
    birth: int = 0  # of this replica
    cluster: str = ""  # the stamp of the cluster
    epoch: int = 0
    trimmed_glsn: Glsn = 0
    base_llsn: Llsn = 1
    base_high_watermark: Glsn = 0  # before the first commit
    wiping: bool = False  # the stored data is void: the replica restarts at the base


def save(files: Files, path: str, meta: StreamMeta) -> None:
    """Blocking; survives a power loss whatever the sync mode: epochs fence."""
    data = small_files.encode({"format": FORMAT, **asdict(meta)})
    small_files.replace_file(files, f"{path}/meta", data)


def load(files: Files, path: str) -> StreamMeta:
    """Blocking."""
    fields = small_files.decode(small_files.read(files, f"{path}/meta"))
    if fields is None:
        raise Corrupt(f"{path}/meta does not match its checksum; remove this replica and add anew")
    version = fields.pop("format")
    if version != FORMAT:
        raise VersionMismatch(f"{path}/meta: expected format {FORMAT}, found {version}")
    return StreamMeta(**fields)
