"""`loom archive …`: run the job that makes an archive, and look at what it made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from loomlog.cli.connection import connected_sync
from loomlog.cli.failures import UsageError
from loomlog.cli.output import console, new_table, plain, print_json, size
from loomlog.cli.spark_session import start_spark
from loomlog.cli.waiting import Progress, bar
from loomlog.client.moments import duration_s
from loomlog.errors import Corrupt, InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loomlog import BlockingCluster
    from loomlog.archive.record import ArchiveInfo
    from loomlog.spark.archive_job import Outcome, Report, RunTasks


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a log to archive: at most one of these; none: all there is."""

    until: int | None
    keep: int | None
    older_than_s: float | None

    def last(self, cluster: BlockingCluster, log: str) -> int:
        from loomlog.spark import archive_job

        if self.until is not None:
            return self.until
        if self.older_than_s is not None:
            return archive_job.older_than(cluster, log, self.older_than_s)
        return max(0, cluster.log(log).tail() - (self.keep or 0))


def seconds(text: str | None) -> float | None:
    """ "7d" -> 604800.0"""
    if text is None:
        return None
    try:
        return duration_s(text)
    except InvalidArgument as error:
        raise UsageError(f"--older-than: {error}") from error


def run(
    address: str,
    log: str,
    *,
    to: str | None,
    wanted: Extent,
    trim: bool,
    rows_per_file: int,
    spark_master: str,
    as_json: bool,
) -> None:
    from loomlog.spark import archive_job

    with connected_sync(address) as cluster, _reported() as report, _tasks(spark_master) as on:
        outcome = archive_job.run(
            cluster,
            address,
            log,
            to=to,
            until=wanted.last(cluster, log),
            rows_per_file=rows_per_file,
            trim=trim,
            run_tasks=on,
            report=report,
        )
    if as_json:
        print_json(asdict(outcome))
    else:
        _print_outcome(outcome)


def status(address: str, log: str | None, *, as_json: bool) -> None:
    from loomlog.archive import record

    with connected_sync(address) as cluster:
        names = [log] if log else [i.name for i in cluster.logs()]
        known = {} if log else cluster.registers(record.register_name(""))
        found = {
            name: info
            for name in names
            if log or record.register_name(name) in known
            if (info := cluster.log(name).archive()) is not None
        }
        heads = {name: cluster.log(name).head() for name in found}
    if as_json:
        print_json([{"log": n, "head": heads[n]} | asdict(info) for n, info in found.items()])
    elif found:
        print_archives(found)
    else:
        print("no archive yet: `loom archive run LOG --to DIR` makes one")


def list_files(address: str, log: str, *, as_json: bool) -> None:
    from loomlog.archive.reading import Archive
    from loomlog.spark import archive_job

    with connected_sync(address) as cluster:
        files = list(Archive(archive_job.existing(cluster, log)).files())
    if as_json:
        print_json([asdict(file) for file in files])
        return
    shown = new_table("file", "first", "last", "rows", "size")
    for file in files:
        counts = (f"{file.first:,}", f"{file.last:,}", f"{file.rows:,}", size(file.size_bytes))
        shown.add_row(file.name, *counts)
    console().print(shown)


def verify(address: str, log: str, *, spark_master: str, as_json: bool) -> None:
    """Corrupt in the end if something is."""
    from loomlog.spark import archive_job

    with connected_sync(address) as cluster, _reported() as report, _tasks(spark_master) as on:
        checked = archive_job.verify(cluster, address, log, run_tasks=on, report=report)
    damaged = [found for found in checked if found.problem]
    if as_json:
        print_json([{"file": c.file.name, "problem": c.problem} for c in checked])
    elif not damaged:
        print(f"the archive of {log} is whole; files: {len(checked)}")
    if damaged:
        raise Corrupt("; ".join(found.problem for found in damaged))


def forget(address: str, log: str, *, as_json: bool) -> None:
    from loomlog.spark import archive_job

    with connected_sync(address) as cluster:
        info = archive_job.forget(cluster, log)
    if as_json:
        print_json({"log": log, "location": info.location})
    else:
        print(f"{log} has no archive any more; its files are still at {info.location}")


def print_archives(archives: dict[str, ArchiveInfo]) -> None:
    shown = new_table("log", "archive", "first", "last", "files", "size")
    for log, info in archives.items():
        counts = (f"{info.first:,}", f"{info.through:,}", f"{info.files:,}", size(info.size_bytes))
        shown.add_row(plain(log), plain(info.location), *counts)
    console().print(shown)


def _print_outcome(outcome: Outcome) -> None:
    print(
        f"archived {outcome.rows_written:,} entries of {outcome.log} in {outcome.files_written} "
        f"files; the archive at {outcome.location} has {outcome.first:,} to {outcome.through:,}"
    )
    if outcome.files_checked:
        print(
            f"{outcome.files_checked} files are as the log is; the log now begins at "
            f"{outcome.head:,}"
        )


@contextmanager
def _reported() -> Iterator[Report]:
    """A bar on a terminal, on stderr."""
    with bar() as show:

        def report(what: str, done: int, total: int) -> None:
            text = f"{what}: {done:,} of {total:,} rows" if total > 1 else what
            show(Progress(finished=False, share=done / max(total, 1), text=text))

        yield report


@contextmanager
def _tasks(master: str) -> Iterator[RunTasks]:
    """Tasks on Spark, which is started with the first ones and runs until the command ends."""
    from loomlog.spark.archive import tasks_on

    sessions: list[SparkSession] = []

    def run(
        work: Callable[[Any], Any], tasks: Sequence[Any], finished: Callable[[int], None]
    ) -> list[Any]:
        if not sessions:
            sessions.append(start_spark("loom archive", master))
        return tasks_on(sessions[0])(work, tasks, finished)

    try:
        yield run
    finally:
        for session in sessions:
            session.stop()
