"""`loom backup …`: back up a running cluster. `loom archive restore` restores a backup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loomlog.cli.console.changes import WaitProgress, bar
from loomlog.cli.console.command import connected_sync
from loomlog.cli.console.options import CLUSTER, Cluster, Json
from loomlog.cli.console.output import console, new_table, plain, print_json, size

if TYPE_CHECKING:
    from loomlog.client.backup.backup import Report
    from loomlog.client.backup.record import Backup

app = typer.Typer(help="Back up a running cluster; `loom archive restore` restores it.")

Directory = Annotated[str, typer.Argument(metavar="DIR|URI", help="Directory of the backups.")]
Made = Annotated[
    str,
    typer.Option(
        "--made",
        metavar="TIME",
        show_default="the newest",
        help="Time of the backup, as shown by `loom backup list`.",
    ),
]


@app.command()
def run(
    directory: Directory,
    logs: Annotated[
        list[str] | None,
        typer.Option(
            "--log", metavar="LOG", show_default="all", help="Back up only this log. Repeatable."
        ),
    ] = None,
    rows_per_file: Annotated[
        int, typer.Option(min=1, metavar="N", help="Entries in one file, at most.")
    ] = 1_000_000,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Back up logs, registers and permissions, incrementally."""
    from loomlog.client.backup import backup

    with connected_sync(cluster) as client, reported() as report:
        outcome = backup.make(
            client, directory, only=logs or (), rows_per_file=rows_per_file, report=report
        )
    made = outcome.backup
    if as_json:
        fields = {"files_written": outcome.files_written, "rows_written": outcome.rows_written}
        print_json(summary(made) | fields | {"location": outcome.location})
        return
    _print_logs(made)
    print(
        f"wrote {outcome.rows_written:,} entries, files: {outcome.files_written}, to "
        f"{outcome.location}, and read them back"
    )
    print_left_out(made.left_out)


@app.command("list")
def list_all(directory: Directory, as_json: Json = False) -> None:
    """List the backups in a directory."""
    from loomlog.archive.location import Location, uri_of
    from loomlog.client.backup.record import backups

    found = backups(Location(uri_of(directory)))
    if as_json:
        print_json([summary(backup) for backup in found])
        return
    if not found:
        print(f"there is no backup in {directory}: `loom backup run` makes one")
        return
    table = new_table("made", "logs", "files", "size")
    for backup in found:
        counts = (f"{len(backup.logs):,}", f"{sum(log.files for log in backup.logs):,}")
        table.add_row(backup.made, *counts, size(sum(log.size_bytes for log in backup.logs)))
    console().print(table)


@app.command()
def verify(directory: Directory, made: Made = "", as_json: Json = False) -> None:
    """Read every file of a backup and compare it with its checksums."""
    from loomlog.archive.location import Location, uri_of
    from loomlog.client.backup import backup
    from loomlog.client.backup.record import newest

    location = Location(uri_of(directory))
    chosen = newest(location, made)
    with reported() as report:
        files = backup.verify(location, chosen, report)
    if as_json:
        print_json({"made": chosen.made, "files": files})
    else:
        print(f"the backup of {chosen.made} is complete; files: {files}")


def summary(backup: Backup) -> dict[str, Any]:
    """Return a backup without the values of its registers, which may be secrets."""
    logs = [
        {"log": log.name, "first": log.first, "through": log.through, "size_bytes": log.size_bytes}
        for log in backup.logs
    ]
    return {
        "made": backup.made,
        "logs": logs,
        "registers": len(backup.registers),
        "grants": len(backup.grants),
        "left_out": backup.left_out,
    }


def print_left_out(lines: list[str] | tuple[str, ...]) -> None:
    for line in lines:
        print(f"not included: {plain(line)}")


def _print_logs(backup: Backup) -> None:
    table = new_table("log", "first", "last", "files", "size")
    for log in backup.logs:
        counts = (f"{log.first:,}", f"{log.through:,}", f"{log.files:,}", size(log.size_bytes))
        table.add_row(plain(log.name), *counts)
    console().print(table)


@contextmanager
def reported() -> Iterator[Report]:
    """Show a progress bar on stderr if that is a terminal."""
    with bar() as show:

        def report(what: str, done: int, total: int) -> None:
            text = f"{what}: {done:,} of {total:,}" if total > 1 else what
            show(WaitProgress(finished=False, share=done / max(total, 1), text=text))

        yield report
