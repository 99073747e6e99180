"""The register of a log that describes its archive.

Swapping this register is what makes files part of the archive, atomically.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from loomlog.archive.manifest import require_types
from loomlog.errors import Corrupt, VersionMismatch
from loomlog.types import Glsn, LogId

VERSION: Final = 1


def register_name(log: str) -> str:
    return f"archive/{log}"


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """The archive of a log: every position from `first` to `through`."""

    log_id: LogId  # so that a later log of the same name does not use this archive
    location: str
    first: Glsn
    through: Glsn  # one before `first` while nothing is archived
    files: int
    size_bytes: int
    manifest: str  # the name of its file; empty while there is none
    manifest_crc32c: int
    run: str  # the run that may change the archive

    def covers(self, position: Glsn) -> bool:
        return self.first <= position <= self.through

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}).encode()


def decode(value: bytes, log: str) -> ArchiveInfo:
    try:
        fields = json.loads(value)
        version = fields.pop("version")
        if version == VERSION:
            info = ArchiveInfo(**fields)
            require_types(info)
            return info
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Corrupt(
            f"the register {register_name(log)!r} does not describe an archive: another program "
            "wrote it"
        ) from None
    raise VersionMismatch(
        f"the archive of log {log!r} is of version {version}, this program knows {VERSION}: "
        "update it"
    )
