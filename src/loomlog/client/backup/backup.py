"""Makes and verifies backups of a running cluster. All functions block."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from loomlog.archive import contents, range_file
from loomlog.archive.location import Location, safe_name, uri_of
from loomlog.archive.manifest import RangeFile
from loomlog.client.access import TokenInfo
from loomlog.client.backup.publishers import PREFIXES, is_at_work
from loomlog.client.backup.record import Backup, LogBackup, LogSettings, backups
from loomlog.client.blocking import BlockingCluster
from loomlog.client.row_ranges import SILENCE_S, cut
from loomlog.core.transactions import DECISIONS_LOG
from loomlog.errors import Conflict, Corrupt, DataLoss, NotFound, SwapUnknown
from loomlog.staging_logs import staging_name
from loomlog.types import Gap, Glsn
from loomlog.wire.info import LogInfo

ROWS_PER_FILE: Final = 1_000_000

IDENTITY: Final = "backup"  # the register by which backups recognise a cluster
TRIES: Final = 50  # to find writers and pipelines between two publications
TRY_S: Final = 0.1

Report = Callable[[str, int, int], None]
"""Called with the progress: the current activity, positions done, positions in total."""


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class BackupOutcome:
    """A finished backup, and how much was written for it."""

    backup: Backup
    location: str
    files_written: int
    rows_written: int


def make(
    cluster: BlockingCluster,
    to: str,
    *,
    only: Collection[str] = (),
    rows_per_file: int = ROWS_PER_FILE,
    report: Report = silent,
) -> BackupOutcome:
    """Back up all registers, all permissions, and all logs, or `only` those named."""
    directory = Location(uri_of(to))
    directory.create_directory()
    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    identity = _identity(cluster)
    access = cluster.access()
    grants = tuple((g.subject, g.what, g.pattern) for g in access.rules.grants)
    logs = _chosen(cluster.logs(), only)
    earlier = [backup for backup in backups(directory) if backup.cluster == identity]
    previous = {log.log_id: log for backup in earlier for log in backup.logs}
    runs = [_LogRun(cluster, log, previous.get(log.id), directory) for log in logs]
    registers, busy = _settled(cluster, runs, report)
    for run in runs:
        run.begin()
    total = sum(run.missing for run in runs)
    done = 0
    for run in runs:
        for _ in run.write(rows_per_file):
            report(f"writing {run.name}", done + run.written, total)
        done += run.missing
    left_out = _left_out(registers, busy, access.tokens)
    kept = {name: value for name, value in registers.items() if name not in busy}
    results = tuple(run.result() for run in runs)
    backup = Backup(identity, made, results, kept, grants, left_out)
    directory.write(backup.name, backup.encode())
    files = [file for run in runs for file in run.files]
    return BackupOutcome(backup, directory.uri, len(files), sum(file.rows for file in files))


def verify(directory: Location, backup: Backup, report: Report = silent) -> int:
    """Read every file of a backup and return the number of files. Raise Corrupt, with the names of
    all files that are damaged or missing."""
    files = [
        (archive, file)
        for log in backup.logs
        for archive in [log.archive(directory)]
        for file in archive.files()
    ]
    problems = []
    for done, (archive, file) in enumerate(files):
        report("checking", done, len(files))
        try:
            range_file.check(archive.location, file)
        except (Corrupt, DataLoss) as error:
            problems.append(str(error))
    if problems:
        raise Corrupt("; ".join(problems))
    return len(files)


class _LogRun:
    """Backs up one log: writes the entries that its directory does not have yet."""

    def __init__(
        self, cluster: BlockingCluster, info: LogInfo, previous: LogBackup | None, backups: Location
    ) -> None:
        self.name = info.name
        self._log = cluster.log(info.name)
        self._staging = cluster.log(staging_name(info.name))
        self._info = info
        self._previous = previous
        self._backups = backups
        self._tail: Glsn = 0
        self._staged_tail: Glsn = 0
        self.files: list[RangeFile] = []

    def find_tail(self) -> None:
        """Determine the last entry of the backup."""
        self._tail = self._log.tail()

    def begin(self) -> None:
        """Determine which entries the directory has already."""
        try:
            self._staged_tail = self._staging.tail()
        except NotFound:
            pass  # nothing was ever staged
        head = max(self._log.head(), 1)
        previous = self._previous
        if previous is None or not head - 1 <= previous.through <= self._tail:
            previous = LogBackup(
                name=self.name,
                log_id=self._info.id,
                settings=LogSettings.of(self._info),
                directory=safe_name(f"{self.name}-{secrets.token_hex(4)}"),
                first=head,
                through=head - 1,
                files=0,
                size_bytes=0,
                manifest="",
                manifest_crc32c=0,
            )
        self._base = previous
        self._archive = previous.archive(self._backups)
        self._archive.location.create_directory()

    @property
    def missing(self) -> int:
        return max(self._tail - self._base.through, 0)

    @property
    def written(self) -> int:
        return self.files[-1].last - self._base.through if self.files else 0

    def write(self, rows_per_file: int) -> Iterator[RangeFile]:
        """Write the missing entries, read every file back, and yield it."""
        location = self._archive.location
        for first, last, _ in cut(self._log, self._base.through + 1, self._tail, rows_per_file):
            rows = self._log.subscribe_arrow(
                first, last, archived=False, gaps=True, timeout_s=SILENCE_S
            )
            file = range_file.write(location, first, last, _whole(rows, self.name))
            range_file.check(location, file)
            self.files.append(file)
            yield file

    def result(self) -> LogBackup:
        """Describe what the directory has now, without entries that were trimmed meanwhile."""
        unchanged = replace(
            self._base,
            settings=LogSettings.of(self._info),
            first=min(max(self._log.head(), 1), self._tail + 1),
            staged_tail=self._staged_tail,
        )
        if not self.files:
            return unchanged
        saved = contents.extend(self._archive, self.files)
        return replace(
            unchanged,
            through=self._tail,
            files=saved.manifest.file_count,
            size_bytes=saved.manifest.size_bytes,
            manifest=saved.name,
            manifest_crc32c=saved.crc32c,
        )


def _whole(items: Iterable[Any], log: str) -> Iterator[Any]:
    """Yield rows and gaps; raise DataLoss if entries are lost."""
    for item in items:
        if isinstance(item, Gap) and item.kind == "dataloss":
            raise DataLoss(
                f"log {log!r} has lost its entries from {item.first} to {item.last}: trim it up to "
                "there, or leave it out with --log"
            )
        yield item


def _settled(
    cluster: BlockingCluster, runs: Iterable[_LogRun], report: Report
) -> tuple[dict[str, bytes], set[str]]:
    """Determine the tails of all logs. Return all registers, which are read before that, and the
    names of those whose writers or pipelines were publishing meanwhile."""
    for attempt in range(TRIES):
        registers = {name: current.value for name, current in cluster.registers().items()}
        for run in runs:
            run.find_tail()
        before = {name: value for name, value in registers.items() if name.startswith(PREFIXES)}
        after = {n: f.value for prefix in PREFIXES for n, f in cluster.registers(prefix).items()}
        busy = {
            name
            for name in before | after
            if before.get(name) != after.get(name) or is_at_work(name, after[name])
        }
        if not busy:
            break
        report(f"waiting for {min(busy)}", attempt, TRIES)
        time.sleep(TRY_S)
    return registers, busy


def _identity(cluster: BlockingCluster) -> str:
    """Return a random text that identifies this cluster, since several may have the same name."""
    register = cluster.register(IDENTITY)
    while (identity := register.get()) is None:
        try:
            register.swap(secrets.token_hex(16).encode(), 0)
        except (Conflict, SwapUnknown):
            pass  # read it again
    return identity.value.decode()


def _chosen(logs: list[LogInfo], only: Collection[str]) -> list[LogInfo]:
    """Return the logs to back up. Staging logs and the log of decisions are not among them: the
    entries that are read have the published rows, and none of failed transactions."""
    ordinary = [log for log in logs if log.staging_for is None and log.name != DECISIONS_LOG]
    if unknown := set(only) - {log.name for log in ordinary}:
        raise NotFound(f"there is no log {min(unknown)!r}: `loom log list` shows them")
    return [log for log in ordinary if not only or log.name in only]


def _left_out(
    registers: Iterable[str], busy: Iterable[str], tokens: Iterable[TokenInfo]
) -> tuple[str, ...]:
    lines = ["leases, certificates, storage nodes, rows that are staged and not published"]
    for name in sorted(busy):
        kind, _, rest = name.partition("/")
        lines.append(
            f"{kind} {rest}: it was publishing all the time, so pause it and back up again"
        )
    for token in tokens:  # their signing keys are left out, which could sign other tokens
        if not token.revoked and token.expires_s > time.time():
            allow = " ".join(f"--allow {each}" for each in token.allow)
            lines.append(
                f"token {token.name}: `loom token create {token.name} {allow}` makes another one"
            )
    for name in registers:
        kind, _, rest = name.partition("/")
        if kind == "archive":
            lines.append(f"the files of the archive of {rest}")
    return tuple(lines)
