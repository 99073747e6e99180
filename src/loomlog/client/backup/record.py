"""The file that describes one backup."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from crc32c import crc32c

from loomlog import protocol_names
from loomlog.archive.contents import Archive
from loomlog.archive.location import Location
from loomlog.archive.record import ArchiveInfo
from loomlog.errors import Corrupt, NotFound, VersionMismatch
from loomlog.types import Glsn, LogId
from loomlog.wire.info import LogInfo

VERSION: Final = 1
_PREFIX: Final = "backup-"
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings that a log is created with."""

    protocol: str
    streams: int
    replicas: int
    min_replicas: int | None = None
    nodeset: int | None = None
    retention_s: int | None = None
    retention_bytes: int | None = None
    compression: str = "none"

    @classmethod
    def default(cls) -> LogSettings:
        return cls(protocol_names.DEFAULT, 1, 3)

    @classmethod
    def of(cls, log: LogInfo) -> LogSettings:
        active = log.segments[-1]
        return cls(
            active.protocol,
            active.streams,
            active.replicas,
            active.min_replicas,
            active.nodeset,
            log.retention_s,
            log.retention_bytes,
            active.compression,
        )


@dataclass(frozen=True, slots=True)
class LogBackup:
    """The entries of a log in a backup: all from `first` to `through`."""

    name: str
    log_id: LogId
    settings: LogSettings
    directory: str  # within the directory of the backup
    first: Glsn  # the head of the log; its directory may have older positions
    through: Glsn  # the last position; one before `first` if the log was empty
    files: int
    size_bytes: int
    manifest: str  # empty: there are no entries
    manifest_crc32c: int
    staged_tail: Glsn = 0  # the tail of its staging log; 0 if nothing was ever staged

    def archive(self, backups: Location) -> Archive:
        """Return its entries, given the directory of the backup."""
        info = ArchiveInfo(
            log_id=self.log_id,
            location=backups.inside(self.directory).uri,
            first=self.first,
            through=self.through,
            files=self.files,
            size_bytes=self.size_bytes,
            manifest=self.manifest,
            manifest_crc32c=self.manifest_crc32c,
            run="",
        )
        return Archive(info)


@dataclass(frozen=True, slots=True)
class Backup:
    """One backup of a cluster."""

    cluster: str  # its identity
    made: str  # when it began, in UTC
    logs: tuple[LogBackup, ...]
    registers: Mapping[str, bytes] = field(default_factory=dict)
    grants: tuple[tuple[str, str, str], ...] = ()  # subject, what, pattern
    left_out: tuple[str, ...] = ()  # what the backup does not contain, to show to people

    @property
    def name(self) -> str:
        """The name of its file; names sort by age."""
        return f"{_PREFIX}{self.made.replace(':', '').replace('-', '')}{_SUFFIX}"

    def log(self, name: str) -> LogBackup:
        for log in self.logs:
            if log.name == name:
                return log
        raise NotFound(f"the backup of {self.made} has no log {name!r}: it has {self._names()}")

    def _names(self) -> str:
        return ", ".join(log.name for log in self.logs) or "none"

    def encode(self) -> bytes:
        fields = asdict(self)
        fields["registers"] = {k: b64encode(v).decode() for k, v in self.registers.items()}
        content = json.dumps({"version": VERSION, **fields}, indent=1)
        return f'{{"crc32c": {crc32c(content.encode())}, "backup":\n{content}\n}}\n'.encode()


def decode(data: bytes, name: str) -> Backup:
    """Decode the file of a backup; a Corrupt error names it."""
    try:
        head, _, rest = data.decode().partition('"backup":\n')
        content = rest.removesuffix("\n}\n")
        if json.loads(head + '"": 0}')["crc32c"] != crc32c(content.encode()):
            raise ValueError
        fields = json.loads(content)
        if fields.pop("version") == VERSION:
            return _decode(fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Corrupt(f"{name} is damaged, or not a backup") from None
    raise VersionMismatch(f"{name} was made by another version of loomlog: restore it with that")


def _decode(fields: dict[str, Any]) -> Backup:
    logs = (log | {"settings": LogSettings(**log["settings"])} for log in fields["logs"])
    return Backup(
        cluster=str(fields["cluster"]),
        made=str(fields["made"]),
        logs=tuple(LogBackup(**log) for log in logs),
        registers={k: b64decode(v, validate=True) for k, v in fields["registers"].items()},
        grants=tuple((str(s), str(verb), str(p)) for s, verb, p in fields["grants"]),
        left_out=tuple(map(str, fields["left_out"])),
    )


def backups(directory: Location) -> list[Backup]:
    """Return the backups in a directory, the newest last."""
    names = [n for n in directory.names() if n.startswith(_PREFIX) and n.endswith(_SUFFIX)]
    return [decode(directory.read(name), directory.describe(name)) for name in names]


def newest(directory: Location, made: str = "") -> Backup:
    """Return the newest backup, or the one that was made at the time `made`."""
    candidates = [b for b in backups(directory) if made in ("", b.made)]
    if not candidates:
        what = f"no backup of {made}" if made else "no backup"
        raise NotFound(f"there is {what} in {directory.uri}: `loom backup list` shows them")
    return candidates[-1]
