"""`loom archive …`: run the archive job, and inspect archives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loomlog.cli.commands.backup import Made, print_left_out, reported
from loomlog.cli.console import changes
from loomlog.cli.console.command import connected_sync
from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import (
    CLUSTER,
    SPARK_MASTER,
    Cluster,
    Json,
    LogName,
    SparkMaster,
    Yes,
)
from loomlog.cli.console.output import console, new_table, plain, print_json, say, size
from loomlog.cli.processes.spark_session import start_spark
from loomlog.errors import Corrupt, InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loomlog.archive.record import ArchiveInfo
    from loomlog.client.backup.restore import RestoreOutcome
    from loomlog.spark.archive_job import ArchiveOutcome, RunTasks

app = typer.Typer(help="Move old entries of a log to Parquet files; readers see no difference.")


@app.command()
def run(
    log: LogName,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URI",
            show_default="where it is already",
            help="Directory or URI of the archive; must be the same for all readers.",
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default="the last", help="The last position to archive."
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Archive only older entries, by the writers' clocks: 12h, 7d."
        ),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Archive all but the last N entries.")
    ] = None,
    trim: Annotated[
        bool,
        typer.Option("--trim", help="Then trim the log, after checking every file against it."),
    ] = False,
    rows_per_file: Annotated[
        int, typer.Option(min=1, metavar="N", help="Entries in one file, at most.")
    ] = 1_000_000,
    spark_master: SparkMaster = SPARK_MASTER,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Archive a log. The next run completes an interrupted one."""
    from loomlog.spark import archive_job

    if sum(given is not None for given in (until, older_than, keep)) > 1:
        raise typer.BadParameter("give one of --until, --older-than and --keep")
    age_s = None if older_than is None else _seconds(older_than)
    with connected_sync(cluster) as client, reported() as report, _tasks(spark_master) as on:
        if age_s is not None:
            last = archive_job.older_than(client, log, age_s)
        else:
            last = until or max(0, client.log(log).tail() - (keep or 0))
        outcome = archive_job.run(
            client,
            cluster,
            log,
            to=to,
            until=last,
            rows_per_file=rows_per_file,
            trim=trim,
            run_tasks=on,
            report=report,
        )
    if as_json:
        print_json(asdict(outcome))
    else:
        _print_outcome(outcome)


@app.command()
def status(
    log: Annotated[str | None, typer.Argument(metavar="[LOG]", help="Only of this log.")] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show archives: location and range."""
    from loomlog.archive import record

    with connected_sync(cluster) as client:
        names = [log] if log else [info.name for info in client.logs()]
        registers = {} if log else client.registers(record.register_name(""))
        archives = {
            name: info
            for name in names
            if log or record.register_name(name) in registers
            if (info := client.log(name).archive()) is not None
        }
        heads = {name: client.log(name).head() for name in archives}
    if as_json:
        print_json([{"log": n, "head": heads[n]} | asdict(info) for n, info in archives.items()])
    elif archives:
        print_archives(archives)
        for name, info in archives.items():
            if info.through < heads[name] - 1:
                print(
                    f"{name}: positions {info.through + 1:,} to {heads[name] - 1:,} are trimmed "
                    "and not archived; after metadata was restored, "
                    f"`loom archive run {name}` finds what was archived since"
                )
    else:
        print("no archive yet: `loom archive run LOG --to DIR` makes one")


@app.command("list")
def list_files(log: LogName, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List the files of a log's archive."""
    from loomlog.archive.contents import Archive
    from loomlog.spark import archive_job

    with connected_sync(cluster) as client:
        files = list(Archive(archive_job.existing(client, log)).files())
    if as_json:
        print_json([asdict(file) for file in files])
        return
    table = new_table("file", "first", "last", "rows", "size")
    for file in files:
        counts = (f"{file.first:,}", f"{file.last:,}", f"{file.rows:,}", size(file.size_bytes))
        table.add_row(file.name, *counts)
    console().print(table)


@app.command()
def verify(
    log: LogName,
    spark_master: SparkMaster = SPARK_MASTER,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Read every file of the archive, and compare it with the log as far as the log goes back."""
    from loomlog.spark import archive_job

    with connected_sync(cluster) as client, reported() as report, _tasks(spark_master) as on:
        checked = archive_job.verify(client, cluster, log, run_tasks=on, report=report)
    problems = [check.problem for check in checked if check.problem]
    if as_json:
        print_json([{"file": c.file.name, "problem": c.problem} for c in checked])
    elif not problems:
        print(f"the archive of {log} is complete; files: {len(checked)}")
    if problems:
        raise Corrupt("; ".join(problems))


@app.command()
def forget(
    log: LogName, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Detach a log's archive: its files stay, but are no longer read as part of the log."""
    from loomlog.spark import archive_job

    changes.confirm(
        lambda: f"Forget the archive of {log}? Entries that are only there become unreadable.",
        yes=yes,
    )
    with connected_sync(cluster) as client:
        location = archive_job.forget(client, log).location
    text = f"{log} no longer has an archive; its files are still at {location}"
    say({"log": log, "location": location}, text, as_json=as_json)


@app.command()
def restore(
    source: Annotated[
        str,
        typer.Argument(metavar="DIR|URI", help="Directory of backups, or archive of one log."),
    ],
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LOG]…",
            help="Restore only this log of a backup. Repeatable.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option("--as", metavar="NAME", show_default="as it was", help="Name of the one log."),
    ] = "",
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URI",
            show_default="in the log",
            help="Restore entries as an archive in this directory, reachable by all readers.",
        ),
    ] = None,
    made: Made = "",
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default="as before, or 3", help="Copies of each entry."
        ),
    ] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Restore logs from a backup or an archive, with the positions of their entries.

    A complete backup also has registers and permissions."""
    from loomlog.archive.location import Location, uri_of
    from loomlog.client.backup import record, restore

    directory = Location(uri_of(source))
    backup = record.newest(directory, made) if made or record.backups(directory) else None
    if backup is not None:
        wanted = [s for s in restore.sources(directory, backup) if not logs or s.name in logs]
        for log in logs or ():
            backup.log(log)
    else:
        named = name or directory.uri.rpartition("/")[2].rpartition("-")[0]
        wanted = [restore.archived_source(directory, named, record.LogSettings.default())]
    if name and len(wanted) != 1:
        raise UsageError(
            f"--as renames one log, but {len(wanted)} would be restored: name the log to restore"
        )
    wanted = [s.adapted(name, replicas) for s in wanted]
    with connected_sync(cluster) as client, reported() as report:
        restored = restore.restore_logs(client, wanted, archive=archive, report=report)
        if backup is not None and not logs and not name:
            outcome = restore.restore_metadata(client, backup, restored)
        else:
            outcome = restore.RestoreOutcome(restored)
    if as_json:
        print_json(asdict(outcome))
    else:
        _print_restored(outcome)


def _print_restored(outcome: RestoreOutcome) -> None:
    shown = new_table("log", "first", "last", "entries", "in")
    for log in outcome.logs:
        counts = (f"{log.first:,}", f"{log.through:,}", f"{log.entries:,}")
        shown.add_row(plain(log.name), *counts, plain(log.archive or "the log"))
    console().print(shown)
    if outcome.registers or outcome.grants:
        print(f"registers: {outcome.registers}, permissions: {outcome.grants}")
    print_left_out(outcome.left_out)


def _seconds(text: str) -> float:
    """Parse "7d" to 604800.0."""
    from loomlog.client.arguments import duration_s

    try:
        return duration_s(text)
    except InvalidArgument as error:
        raise UsageError(f"--older-than: {error}") from error


def print_archives(archives: dict[str, ArchiveInfo]) -> None:
    shown = new_table("log", "archive", "first", "last", "files", "size")
    for log, info in archives.items():
        counts = (f"{info.first:,}", f"{info.through:,}", f"{info.files:,}", size(info.size_bytes))
        shown.add_row(plain(log), plain(info.location), *counts)
    console().print(shown)


def _print_outcome(outcome: ArchiveOutcome) -> None:
    print(
        f"archived {outcome.rows_written:,} entries of {outcome.log} in {outcome.files_written} "
        f"files; the archive at {outcome.location} has {outcome.first:,} to {outcome.through:,}"
    )
    if outcome.files_checked:
        print(
            f"{outcome.files_checked} files agree with the log, which now begins at "
            f"{outcome.head:,}"
        )


@contextmanager
def _tasks(master: str) -> Iterator[RunTasks]:
    """Run tasks on Spark, which starts with the first tasks and stops with the command."""
    from loomlog.spark.archive_tasks import tasks_on

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
