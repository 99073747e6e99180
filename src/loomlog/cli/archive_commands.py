"""`loom archive …`: names, options and help; the work is in archives.py."""

from __future__ import annotations

from typing import Annotated

import typer

from loomlog.cli.options import (
    CLUSTER,
    SPARK_MASTER,
    Cluster,
    Json,
    LogName,
    SparkMaster,
    Yes,
)

app = typer.Typer(help="Move old entries of a log to Parquet files; readers see no difference.")


@app.command()
def run(
    log: LogName,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URI",
            show_default="where it is already",
            help="Where the archive is made; every reader must reach it under the same name.",
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
        typer.Option(metavar="TIME", help="Only what is older, by the writers' clocks: 12h, 7d."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="All but the last N entries.")
    ] = None,
    trim: Annotated[
        bool,
        typer.Option("--trim", help="Then check every file against the log, and trim the log."),
    ] = False,
    rows_per_file: Annotated[
        int, typer.Option(min=1, metavar="N", help="Entries in one file, at most.")
    ] = 1_000_000,
    spark_master: SparkMaster = SPARK_MASTER,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Archive a log; what was killed or failed is made good by the next run."""
    from loomlog.cli import archives

    if sum(given is not None for given in (until, older_than, keep)) > 1:
        raise typer.BadParameter("give one of --until, --older-than and --keep")
    wanted = archives.Extent(until=until, keep=keep, older_than_s=archives.seconds(older_than))
    archives.run(
        cluster,
        log,
        to=to,
        wanted=wanted,
        trim=trim,
        rows_per_file=rows_per_file,
        spark_master=spark_master,
        as_json=as_json,
    )


@app.command()
def status(
    log: Annotated[str | None, typer.Argument(metavar="[LOG]", help="Only of this log.")] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show where archives are and how far they reach."""
    from loomlog.cli import archives

    archives.status(cluster, log, as_json=as_json)


@app.command("list")
def list_files(log: LogName, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List the files of a log's archive."""
    from loomlog.cli import archives

    archives.list_files(cluster, log, as_json=as_json)


@app.command()
def verify(
    log: LogName,
    spark_master: SparkMaster = SPARK_MASTER,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Read every file of the archive, and compare it with the log as far as that goes back."""
    from loomlog.cli import archives

    archives.verify(cluster, log, spark_master=spark_master, as_json=as_json)


@app.command()
def forget(
    log: LogName, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """End a log's archive: its files stay, and nobody reads them as a part of the log any more."""
    from loomlog.cli import archives, confirm

    confirm.ask(
        lambda: f"Forget the archive of {log}? What is only there is lost to readers.", yes=yes
    )
    archives.forget(cluster, log, as_json=as_json)
