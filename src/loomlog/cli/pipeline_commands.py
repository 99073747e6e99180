"""`loom pipeline …`: names, options and help; the work is in pipelines.py."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from loomlog.cli.options import CLUSTER, SPARK_MASTER, Cluster, Json, SparkMaster, Yes

app = typer.Typer(help="Run pipelines: logs in, a table or a log out, each record exactly once.")
letters_app = typer.Typer(help="Records that pipelines could not process.")
app.add_typer(letters_app, name="dead-letters")

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A definition: Python (.py) or SQL in TOML (.toml).")
]
PipelineName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]
Which = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Which one, if FILE defines several.")
]
Site = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default="the host's name",
        help="One site is active, others stand by; one of the same name is replaced at once.",
    ),
]
MetricsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Keep figures there, in the text format of Prometheus."),
]


@app.command()
def run(
    file: File,
    name: Which = None,
    once: Annotated[
        bool, typer.Option("--once", help="Only what is in the sources now, then end.")
    ] = False,
    site: Site = None,
    spark_master: SparkMaster = SPARK_MASTER,
    metrics_file: MetricsFile = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Run a pipeline until Ctrl-C; it goes on where any run of it ended."""
    from loomlog.cli import pipelines

    how = pipelines.Run(cluster, site, spark_master, metrics_file, as_json)
    pipelines.run(how, file, name, once=once)


@app.command("list")
def list_all(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List all pipelines that ever ran here."""
    from loomlog.cli import pipelines

    pipelines.status(cluster, None, None, as_json=as_json)


@app.command()
def status(
    name: PipelineName,
    metrics_file: MetricsFile = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show a pipeline: who runs it, how far it is, how far behind."""
    from loomlog.cli import pipelines

    pipelines.status(cluster, name, metrics_file, as_json=as_json)


@app.command()
def pause(name: PipelineName, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Begin no new unit until it is resumed, whoever runs it."""
    from loomlog.cli import pipelines

    pipelines.pause(cluster, name, wanted=True, as_json=as_json)


@app.command()
def resume(name: PipelineName, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Go on after a pause."""
    from loomlog.cli import pipelines

    pipelines.pause(cluster, name, wanted=False, as_json=as_json)


@app.command()
def reset(
    name: PipelineName,
    to: Annotated[
        str, typer.Option(metavar="POSITION", help="earliest, latest or the first to process.")
    ] = "earliest",
    same_output: Annotated[
        bool,
        typer.Option(
            "--same-output",
            help="Go on writing where it writes now, not into a new version of the output.",
        ),
    ] = False,
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Begin anew at another position, without state."""
    from loomlog.cli import confirm, pipelines

    confirm.ask(lambda: f"Reset {name} to {to}? Its state is given up.", yes=yes)
    pipelines.reset(cluster, name, to, same_output=same_output, as_json=as_json)


@app.command()
def backfill(
    file: File,
    first: Annotated[
        int | None, typer.Option("--from", min=1, metavar="N", help="First position.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", min=1, metavar="N", help="Last position.")
    ] = None,
    from_time: Annotated[
        datetime | None, typer.Option(metavar="TIME", help="Only records at or after it (UTC).")
    ] = None,
    to_time: Annotated[
        datetime | None, typer.Option(metavar="TIME", help="Only records before it (UTC).")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="Go on with the backfill into this version."),
    ] = None,
    name: Which = None,
    site: Site = None,
    spark_master: SparkMaster = SPARK_MASTER,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Process a part of the sources again, into a new version of the output."""
    from loomlog.cli import pipelines

    if version is not None and any(v is not None for v in (first, last, from_time, to_time)):
        raise typer.BadParameter("the backfill has its extent already", param_hint="--version")
    how = pipelines.Run(cluster, site, spark_master, None, as_json)
    extent = (first, last, from_time, to_time)
    pipelines.backfill(how, file, name, extent, version)


@letters_app.command("list")
def list_letters(
    name: PipelineName,
    count_max: Annotated[
        int, typer.Option("--max", "-n", min=1, metavar="N", help="The newest N of them.")
    ] = 100,
    log: Annotated[
        str | None,
        typer.Option(metavar="LOG", show_default="that of the pipeline", help="Where they are."),
    ] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show records that a pipeline could not process, and why."""
    from loomlog.cli import pipelines

    pipelines.list_letters(cluster, name, log, count_max, as_json=as_json)


@letters_app.command("replay")
def replay_letters(
    file: File,
    name: Which = None,
    site: Site = None,
    spark_master: SparkMaster = SPARK_MASTER,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Process dead letters again, with the pipeline as it is now."""
    from loomlog.cli import pipelines

    pipelines.replay(pipelines.Run(cluster, site, spark_master, None, as_json), file, name)
