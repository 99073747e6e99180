"""A run that moves old ranges of a log to its archive: claim it, write files, publish them, check
them against the log, trim the log.

A run may be killed at any point. The register of the log decides: files count once it names their
manifest, and a run may swap it only if no other run has changed it. The next run first claims the
register, so that earlier runs can no longer change it, and then removes their leftovers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from loomlog.archive import contents, record
from loomlog.archive.contents import Archive, Saved
from loomlog.archive.location import Location, uri_of
from loomlog.archive.manifest import RangeFile
from loomlog.archive.record import ArchiveInfo
from loomlog.client.blocking import BlockingCluster
from loomlog.errors import (
    Conflict,
    Corrupt,
    DataLoss,
    InvalidArgument,
    NotFound,
    NotYetWritten,
    SwapUnknown,
)
from loomlog.spark.archive_tasks import (
    ArchivedLog,
    Checked,
    CheckTask,
    WriteTask,
    check_file,
    cut,
    write_file,
)
from loomlog.types import Glsn

ROWS_PER_FILE: Final = 1_000_000
FILES_PER_STEP: Final = 64  # are published together; a run that is killed has lost at most these

T = TypeVar("T")
R = TypeVar("R")


class RunTasks(Protocol):
    """Runs all tasks, in any order; `finished` is called with the number of finished ones."""

    def __call__(
        self, work: Callable[[Any], Any], tasks: Sequence[Any], finished: Callable[[int], None]
    ) -> list[Any]: ...


Report = Callable[[str, int, int], None]
"""Called with the progress of a run: the current step, processed rows, and all rows."""


@dataclass(frozen=True, slots=True)
class ArchiveOutcome:
    """The result of a run."""

    log: str
    location: str
    first: Glsn  # of the archive
    through: Glsn
    files_written: int
    rows_written: int
    files_checked: int
    head: Glsn  # of the log


def in_turn(work: Callable[[T], R], tasks: Sequence[T], finished: Callable[[int], None]) -> list[R]:
    """Run tasks in this process, one after the other."""
    found = []
    for task in tasks:
        found.append(work(task))
        finished(len(found))
    return found


def run(
    cluster: BlockingCluster,
    address: str,
    log: str,
    *,
    to: str | None,
    until: Glsn,
    rows_per_file: int = ROWS_PER_FILE,
    trim: bool = False,
    run_tasks: RunTasks = in_turn,
    report: Report = lambda what, done, total: None,
) -> ArchiveOutcome:
    """Archive a log up to `until`. With `trim`, compare every file with the log and then trim the
    log as far as it is archived."""
    job = _ArchiveRun(cluster, address, log, _Tasks(run_tasks, report))
    job.claim(to)
    report("cleaning", 0, 1)
    contents.clean(job.archive)
    files = job.write(until, rows_per_file)
    checked = job.check_and_trim(min(until, job.info.through)) if trim else 0
    return ArchiveOutcome(
        log=log,
        location=job.info.location,
        first=job.info.first,
        through=job.info.through,
        files_written=len(files),
        rows_written=sum(file.rows for file in files),
        files_checked=checked,
        head=cluster.log(log).head(),
    )


def verify(
    cluster: BlockingCluster,
    address: str,
    log: str,
    *,
    run_tasks: RunTasks = in_turn,
    report: Report = lambda what, done, total: None,
) -> list[Checked]:
    """Read every file of the archive, and compare it with the log where that is not trimmed."""
    info = existing(cluster, log)
    head = cluster.log(log).head()
    place = ArchivedLog(address, log, info.location)
    tasks = [CheckTask(place, file, head) for file in Archive(info).files()]
    return _Tasks(run_tasks, report).run("checking", check_file, tasks)


def forget(cluster: BlockingCluster, log: str) -> ArchiveInfo:
    """End the archive of a log; its files stay."""
    info = existing(cluster, log)
    register = cluster.register(record.register_name(log))
    found = register.get()
    if found is not None:
        register.swap(None, found.version)
    return info


def existing(cluster: BlockingCluster, log: str) -> ArchiveInfo:
    info = cluster.log(log).archive()
    if info is None:
        raise NotFound(f"log {log!r} has no archive: `loom archive run {log} --to DIR` makes one")
    return info


def older_than(cluster: BlockingCluster, log: str, age_s: float) -> Glsn:
    """Return the last position of entries that are at least this old, by the writers' clocks."""
    return cluster.log(log).find_time(time.time() - age_s) - 1


class _ArchiveRun:
    """One run, which can change the archive until another run begins."""

    def __init__(self, cluster: BlockingCluster, address: str, log: str, tasks: _Tasks) -> None:
        self._address = address
        self._log = cluster.log(log)
        self._register = cluster.register(record.register_name(log))
        self._tasks = tasks
        self._report = tasks.report
        self._version = 0
        self.archive: Archive

    @property
    def info(self) -> ArchiveInfo:
        return self.archive.info

    @property
    def _place(self) -> ArchivedLog:
        return ArchivedLog(self._address, self._log.name, self.info.location)

    def claim(self, to: str | None) -> None:
        """Take over the archive: earlier runs can no longer change it."""
        self._report("claiming", 0, 1)
        described = self._log.describe()
        found = self._register.get()
        self._version = 0 if found is None else found.version
        info = None if found is None else record.decode(found.value, self._log.name)
        if info is None or info.log_id != described.id:
            info = self._begun(to, described.id, max(described.head, 1))
        else:
            if to is not None and not _within(info.location, uri_of(to)):
                raise InvalidArgument(
                    f"log {self._log.name!r} is archived at {info.location}: leave --to out"
                )
            info = contents.find_newer(info)
        if info.through < described.head - 1:
            raise DataLoss(
                f"positions {info.through + 1} to {described.head - 1} of log {self._log.name!r} "
                "were trimmed before they were archived, and an archive has no gaps: "
                f"`loom archive forget {self._log.name}` ends it, and the next run begins a new one"
            )
        Location(info.location).create_directory()
        self._swap(replace(info, run=secrets.token_hex(8)))

    def write(self, until: Glsn, rows_per_file: int) -> list[RangeFile]:
        """Archive the remaining entries up to `until`."""
        tail = self._log.tail()
        if until > tail:
            raise NotYetWritten(
                f"position {until} of log {self._log.name!r} is not written yet; the last one is "
                f"{tail}"
            )
        tasks = list(cut(self._log, self._place, self.info.through + 1, until, rows_per_file))
        total = sum(task.rows for task in tasks)
        made: list[RangeFile] = []
        for at in range(0, len(tasks), FILES_PER_STEP):
            done = sum(task.rows for task in tasks[:at])
            files = self._tasks.run(
                "writing", write_file, tasks[at : at + FILES_PER_STEP], done, total
            )
            files.sort(key=lambda file: file.first)
            self._publish(contents.extend(self.archive, files))
            made += files
        return made

    def check_and_trim(self, position: Glsn) -> int:
        """Compare all files with the log, then trim it; return the number of files."""
        head = self._log.head()
        if position < head:
            return 0
        tasks = [CheckTask(self._place, file, head) for file in self.archive.files(head, position)]
        checked = self._tasks.run("checking", check_file, tasks)
        damaged = [found for found in checked if found.problem]
        if damaged:
            raise self._mended(damaged, head)
        found = self._register.get()
        if found is None or found.version != self._version:
            raise self._taken_over()
        self._report("trimming", 0, 1)
        self._log.trim(position)
        return len(checked)

    def _mended(self, damaged: list[Checked], head: Glsn) -> Corrupt:
        """Rewrite damaged files whose rows the log still has; return an error that lists both."""
        problems = "; ".join(found.problem for found in damaged)
        lost = [found.file for found in damaged if found.file.first < head]
        tasks = [
            WriteTask(self._place, found.file.first, found.file.last, found.file.rows)
            for found in damaged
            if found.file not in lost
        ]
        files = {file.first: file for file in self._tasks.run("mending", write_file, tasks)}
        others = {f.file.name: files[f.file.first] for f in damaged if f.file.first in files}
        if others:
            self._publish(contents.exchange(self.archive, others))
        if lost:
            return Corrupt(
                f"{problems}. Nothing was trimmed; the log no longer has all rows of "
                f"{', '.join(file.name for file in lost)}: restore it from a copy"
            )
        return Corrupt(
            f"{problems}. It was written again and nothing was trimmed: run again, and check the "
            "disk"
        )

    # ---- the register

    def _begun(self, to: str | None, log_id: int, first: Glsn) -> ArchiveInfo:
        if to is None:
            raise InvalidArgument(
                f"log {self._log.name!r} has no archive yet: say where, with --to"
            )
        directory = Location(uri_of(to)).inside(f"{self._log.name}-{secrets.token_hex(4)}")
        return ArchiveInfo(
            log_id=log_id,
            location=directory.uri,
            first=first,
            through=first - 1,
            files=0,
            size_bytes=0,
            manifest="",
            manifest_crc32c=0,
            run="",
        )

    def _publish(self, saved: Saved) -> None:
        """Make the files of a manifest the content of the archive."""
        self._report("publishing", 0, 1)
        self._swap(
            replace(
                self.info,
                through=saved.manifest.ranges[-1].last,
                files=saved.manifest.file_count,
                size_bytes=saved.manifest.size_bytes,
                manifest=saved.name,
                manifest_crc32c=saved.crc32c,
            )
        )

    def _swap(self, info: ArchiveInfo) -> None:
        value = info.encode()
        try:
            self._version = self._register.swap(value, self._version)
        except Conflict:
            raise self._taken_over() from None
        except SwapUnknown:
            found = self._register.get()
            if found is None or found.value != value:
                raise
            self._version = found.version
        self.archive = Archive(info)

    def _taken_over(self) -> Conflict:
        return Conflict(
            f"another run of the archive of log {self._log.name!r} has begun: this one stops and "
            "leaves the rest to it"
        )


class _Tasks:
    """Runs tasks, and reports the number of processed rows."""

    def __init__(self, run_tasks: RunTasks, report: Report) -> None:
        self._run_tasks = run_tasks
        self.report = report

    def run(
        self,
        what: str,
        work: Callable[[Any], R],
        tasks: Sequence[Any],
        done: int = 0,
        total: int | None = None,
    ) -> list[R]:
        """Return the results; count rows as if all tasks were of the same size."""
        rows = sum(task.rows for task in tasks)
        total = rows if total is None else total

        def finished(count: int) -> None:
            self.report(what, done + rows * count // max(len(tasks), 1), total)

        finished(0)
        return self._run_tasks(work, tasks, finished) if tasks else []


def _within(location: str, uri: str) -> bool:
    return location == uri or location.rpartition("/")[0] == uri
