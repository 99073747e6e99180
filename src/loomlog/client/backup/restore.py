"""Restores the entries of a backup or an archive in a new log, at their old positions.

All functions block.

Entries are appended batch by batch, and every new position is compared with the old one. That works
only if the old positions have no gaps; otherwise the entries go to an archive, and the new log
begins after it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from crc32c import crc32c

from loomlog import limits
from loomlog.archive import contents, range_file, record
from loomlog.archive.contents import Archive
from loomlog.archive.location import Location, uri_of
from loomlog.archive.manifest import RangeFile, decode
from loomlog.archive.record import ArchiveInfo
from loomlog.client.backup import publishers
from loomlog.client.backup.backup import IDENTITY, Report, silent
from loomlog.client.backup.record import Backup, LogSettings
from loomlog.client.blocking import BlockingCluster, BlockingLog
from loomlog.core.groups.state import GroupState
from loomlog.core.permissions import Grant
from loomlog.core.queues.state import QueueState
from loomlog.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DataLoss,
    InvalidArgument,
    NotFound,
)
from loomlog.types import Glsn, LogId

APPEND_BYTES: Final = 4 * limits.MIB  # of one append
STAGED_SKIPPED: Final = 1 << 40
"""The positions of the staging log that are skipped, so that rows that were staged before, or after
the backup, are refused as trimmed rather than mistaken for other rows at their positions."""


@dataclass(frozen=True, slots=True)
class Source:
    """Entries to restore, and name and settings of the log to restore them in."""

    name: str
    settings: LogSettings
    archive: Archive

    @property
    def first(self) -> Glsn:
        return self.archive.info.first

    @property
    def through(self) -> Glsn:
        return self.archive.info.through

    @property
    def rows(self) -> int:
        return sum(map(self.rows_of, self.archive.files()))

    def adapted(self, name: str, replicas: int | None) -> Source:
        """Return a copy with another name or number of replicas, if they are given."""
        settings = self.settings
        if replicas is not None:
            least = min(settings.min_replicas or replicas, replicas)
            settings = replace(settings, replicas=replicas, min_replicas=least)
        return replace(self, name=name or self.name, settings=settings)

    def check_gaps(self) -> None:
        """Raise InvalidArgument if the entries cannot get their old positions by appending."""
        for file in self.archive.files():
            if self.rows_of(file) != file.last - max(file.first, self.first) + 1:
                raise InvalidArgument(
                    f"log {self.name!r} has positions without an entry between {file.first} and "
                    f"{file.last}, so its entries cannot be appended at their positions: keep them "
                    "in an archive that readers can reach, with --archive DIR"
                )

    def rows_of(self, file: RangeFile) -> int:
        """Return the number of entries of a file that are to be restored."""
        if file.first >= self.first:
            return file.rows
        return sum(batch.num_rows for batch in self.archive.batches(self.first, file.last))


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """A log that was restored."""

    name: str
    first: Glsn
    through: Glsn
    entries: int
    archive: str | None = None  # the location of its entries; None: they are in the log itself


@dataclass(frozen=True, slots=True)
class RestoreOutcome:
    """The result of a restore: what was restored, and what was not."""

    logs: list[RestoredLog] = field(default_factory=list)
    registers: int = 0
    grants: int = 0
    left_out: list[str] = field(default_factory=list)


def sources(directory: Location, backup: Backup) -> list[Source]:
    return [Source(log.name, log.settings, log.archive(directory)) for log in backup.logs]


def archived_source(directory: Location, name: str, settings: LogSettings) -> Source:
    """Return the entries of a log's archive, whose cluster may be gone."""
    present = set(directory.names())
    manifests = sorted(
        (n for n in present if n.startswith("manifest-") and n.endswith(".json")),
        key=lambda n: int(n.split("-")[1].split(".")[0]),
        reverse=True,
    )
    for manifest in manifests:
        archive = _archive_at(directory, manifest)
        if all(file.name in present for file in archive.files()):
            return Source(name, settings, archive)
    if manifests:
        raise DataLoss(f"files of the archive at {directory.uri} are missing: bring them back")
    raise NotFound(f"there is neither a backup nor an archive of a log at {directory.uri}")


def _archive_at(directory: Location, manifest: str) -> Archive:
    data = directory.read(manifest)
    ranges = decode(data, directory.describe(manifest)).ranges
    info = ArchiveInfo(
        log_id=0,
        location=directory.uri,
        first=ranges[0].first if ranges else 1,
        through=ranges[-1].last if ranges else 0,
        files=0,
        size_bytes=0,
        manifest=manifest,
        manifest_crc32c=crc32c(data),
        run="",
    )
    return Archive(info)


def restore_logs(
    cluster: BlockingCluster,
    wanted: list[Source],
    *,
    archive: str | None = None,
    report: Report = silent,
) -> list[RestoredLog]:
    """Create these logs, with their entries in the log itself, or if `archive` is given, in an
    archive at that location. Check first that all logs can be created."""
    existing = {log.name for log in cluster.logs()}
    for source in wanted:
        if source.name in existing:
            raise AlreadyExists(
                f"there is a log {source.name!r} already: restore it under another name, with --as"
            )
        if archive is None:
            source.check_gaps()
    total = sum(source.rows for source in wanted)
    done = 0
    restored = []
    for source in wanted:
        run = _LogRestore(cluster, source)
        for rows in run.attach(archive) if archive is not None else run.copy():
            done += rows
            report(f"restoring {source.name}", done, total)
        restored.append(run.result)
    return restored


class _LogRestore:
    """Restores one log."""

    def __init__(self, cluster: BlockingCluster, source: Source) -> None:
        self._cluster = cluster
        self._source = source
        self.result = RestoredLog(source.name, source.first, source.through, 0)

    def copy(self) -> Iterator[int]:
        """Append the entries to a new log that begins at their first position; yield how many were
        appended each time."""
        source, entries = self._source, 0
        log = self._create(source.first)
        for batch in source.archive.batches(source.first, source.through):
            for part in _parts(batch):
                _append(log, part)
                entries += part.num_rows
                yield part.num_rows
        if log.tail() != source.through:
            raise DataLoss(
                f"log {source.name!r} ends at {log.tail()} after {entries} entries were restored, "
                f"not at {source.through}: did another program append to it? Delete it and restore "
                "it again"
            )
        self.result = replace(self.result, entries=entries)

    def attach(self, to: str) -> Iterator[int]:
        """Copy the files to the archive of a new log, which begins after them; yield the number of
        entries of each file."""
        source = self._source
        directory = Location(uri_of(to)).inside(f"{source.name}-{secrets.token_hex(4)}")
        directory.create_directory()
        files = list(source.archive.files())
        for file in files:
            _copy_file(source.archive.location, directory, file)
            range_file.check(directory, file)
            yield source.rows_of(file)
        log = self._create(source.through + 1)
        empty = ArchiveInfo(
            log_id=log.describe().id,
            location=directory.uri,
            first=source.first,
            through=source.through,
            files=0,
            size_bytes=0,
            manifest="",
            manifest_crc32c=0,
            run="",
        )
        if files:
            saved = contents.extend(Archive(empty), files)
            info = replace(
                empty,
                files=saved.manifest.file_count,
                size_bytes=saved.manifest.size_bytes,
                manifest=saved.name,
                manifest_crc32c=saved.crc32c,
            )
            register = self._cluster.register(record.register_name(source.name))
            current = register.get()
            register.swap(info.encode(), 0 if current is None else current.version)
        entries = source.rows
        self.result = replace(self.result, entries=entries, archive=directory.uri)

    def _create(self, first: Glsn) -> BlockingLog:
        settings = asdict(self._source.settings)
        retention = settings.pop("retention_s")
        return self._cluster.create_log(
            self._source.name, **settings, retention=retention, first_position=first
        )


def _append(log: BlockingLog, rows: Any) -> None:
    first = int(rows.column("position")[0].as_py())
    positions = log.append_arrow(rows)
    if positions[0].position != first or positions[-1].position != first + rows.num_rows - 1:
        raise Conflict(
            f"position {first} of log {log.name!r} became {positions[0].position}: another program "
            "appends to it. Stop that, delete the log and restore it again"
        )


def _parts(batch: Any) -> Iterator[Any]:
    """Split a batch into parts that fit into one append each."""
    if batch.num_rows <= 1 or batch.nbytes <= APPEND_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))


def _copy_file(source: Location, target: Location, file: RangeFile) -> None:
    with source.open(file.name) as original, target.create(file.name) as copy:
        while data := original.read(APPEND_BYTES):
            copy.write(data)


# ---- registers and permissions


def restore_metadata(
    cluster: BlockingCluster, backup: Backup, restored: list[RestoredLog]
) -> RestoreOutcome:
    """Write the registers of the backup that do not exist yet, and its grants. Checkpoints, groups,
    queues, writers, pipelines and archives are changed to belong to the restored logs."""
    names = {log.name for log in restored}
    new_ids = {log.name: log.id for log in cluster.logs() if log.name in names}
    ids = {log.log_id: new_ids[log.name] for log in backup.logs if log.name in new_ids}
    attached = {record.register_name(log.name) for log in restored if log.archive}
    left_out = list(backup.left_out)
    for log in backup.logs:
        if log.staged_tail and log.name in names:
            cluster.make_staging_log(log.name, log.staged_tail + STAGED_SKIPPED)
    count = 0
    for name, value in backup.registers.items():
        if name == IDENTITY or name in attached:
            continue
        adapted = _adapted(name, value, ids, names)
        if isinstance(adapted, str):
            left_out.append(f"register {name}: {adapted}")
            continue
        try:
            cluster.register(name).swap(adapted, 0)
            count += 1
        except Conflict:
            left_out.append(f"register {name}: there is one already")
    if backup.grants:
        cluster.grant(*(Grant(*grant) for grant in backup.grants))
        left_out.append("whether permissions are enforced: `loom acl enable`")
    return RestoreOutcome(restored, count, len(backup.grants), left_out)


def _adapted(
    name: str, value: bytes, ids: Mapping[LogId, LogId], logs: Collection[str]
) -> bytes | str:
    """Return the value of a register, changed to belong to the restored log if it is about a log,
    or the reason why it cannot be restored."""
    if name.startswith(publishers.PREFIXES):
        return publishers.restored(name, value, logs)
    adapted = _with_new_id(name, value, ids)
    return "its log was deleted before" if adapted is None else adapted


def _with_new_id(name: str, value: bytes, ids: Mapping[LogId, LogId]) -> bytes | None:
    """Return the value with the id of the restored log; None if its log was not restored."""
    kind = name.partition("/")[0]
    try:
        match kind:
            case "checkpoint":
                fields = json.loads(value)
                new_id = ids.get(fields["log"])
                return None if new_id is None else json.dumps(fields | {"log": new_id}).encode()
            case "group":
                return _without_members(GroupState.decode(value), ids)
            case "queue":
                return _without_members(QueueState.decode(value), ids)
            case "archive":
                info = record.decode(value, name.partition("/")[2])
                new_id = ids.get(info.log_id)
                return None if new_id is None else replace(info, log_id=new_id).encode()
    except (ValueError, KeyError, TypeError, Corrupt):
        pass  # a user's own register that happens to have such a name
    return value


def _without_members(state: GroupState | QueueState, ids: Mapping[LogId, LogId]) -> bytes | None:
    """Return the state for the restored log, without members: their ids contain lease epochs, which
    the other cluster would assign again."""
    new_id = ids.get(state.log_id)
    if new_id is None:
        return None
    return replace(state.remove(state.members), log_id=new_id).encode()
