"""`loom`: the command line. Only names, options and help are here; each command's work is in a
module of its own, imported when the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loomlog import limits
from loomlog.cli import (
    archive_commands,
    bench_command,
    checkpoint_commands,
    failures,
    metadata_commands,
    node_commands,
    pipeline_commands,
    stream_commands,
)
from loomlog.cli.options import (
    CLUSTER,
    Cluster,
    HeartbeatTimeout,
    Json,
    LogName,
    Nodeset,
    ReplaceAfter,
    Retention,
    SyncRate,
    Yes,
)
from loomlog.cli.positions import read_position
from loomlog.types import SyncMode

app = typer.Typer(help="A distributed shared log.", add_completion=False)
log_app = typer.Typer(help="Make, list, describe, switch, trim and delete logs.")
app.add_typer(log_app, name="log")
app.add_typer(checkpoint_commands.app, name="checkpoint")
app.add_typer(archive_commands.app, name="archive")
app.add_typer(pipeline_commands.app, name="pipeline")
app.add_typer(node_commands.app, name="node")
app.add_typer(stream_commands.app, name="stream")
app.add_typer(metadata_commands.app, name="metadata")

Sync = Annotated[
    SyncMode,
    typer.Option(
        help="When data is forced to disk: before an append counts as written (always), now and "
        "then (interval), or when the kernel likes (none). Power loss may take the newest "
        "entries with the last two."
    ),
]


@app.callback(invoke_without_command=True)
def loom(context: typer.Context) -> None:
    """A distributed shared log: many writers, many storage nodes, one total order."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def up(
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=64, show_default="those in the data, or 3", help="Storage nodes."),
    ] = None,
    metadata: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=5,
            show_default="those in the data, or 1",
            help="Metadata repositories; 3 go on when one fails, and need etcd.",
        ),
    ] = None,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Where all data lives.")] = Path(
        "loom-data"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 7400,
    http_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, show_default="port + 80", help="For status and metrics."),
    ] = None,
    locations: Annotated[
        int,
        typer.Option(
            min=0,
            show_default="each is in one of its own",
            help="As if the nodes were in so many racks, in turn.",
        ),
    ] = 0,
    sync: Sync = SyncMode.ALWAYS,
    heartbeat_timeout: HeartbeatTimeout = limits.FAILURE_DETECTION_S,
    replace_after: ReplaceAfter = None,
    sync_rate: SyncRate = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line when ready.")] = False,
) -> None:
    """Run a whole cluster on this machine, until Ctrl-C."""
    from loomlog.cli import event_loop
    from loomlog.cli.local_metadata import metadata_found
    from loomlog.cli.local_processes import HTTP_PORT_DISTANCE, Plan, nodes_found
    from loomlog.cli.up import up

    if http_port is None:
        http_port = port + HTTP_PORT_DISTANCE if 0 < port <= 65535 - HTTP_PORT_DISTANCE else 0
    nodes = nodes or nodes_found(data) or 3
    plan = Plan(
        directory=data,
        nodes=nodes,
        metadata=metadata or metadata_found(data) or 1,
        port=port,
        http_port=http_port,
        sync=sync,
        heartbeat_timeout_s=heartbeat_timeout,
        replace_after_s=replace_after,
        sync_rate_mb_s=sync_rate,
        locations=locations,
    )
    event_loop.run(up(plan, as_json=as_json))


@app.command()
def append(
    log: LogName,
    key_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", show_default="no keys", help="Lines are KEY, this text, VALUE."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="At most so many lines at once.")] = 1000,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Append each line of standard input, in order."""
    from loomlog.cli import event_loop
    from loomlog.cli.append import append

    if key_separator == "":
        raise typer.BadParameter("must not be empty", param_hint="--key-separator")
    event_loop.run(append(cluster, log, batch=batch, key_separator=key_separator, as_json=as_json))


@app.command()
def tail(
    log: LogName,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            parser=read_position,
            metavar="N",
            show_default="the first",
            help="First position, as 4200 or e3n17.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new entries, until Ctrl-C.")
    ] = False,
    count_max: Annotated[
        int | None, typer.Option("--max", "-n", min=0, metavar="N", help="At most so many.")
    ] = None,
    positions: Annotated[
        bool, typer.Option("--positions", "-p", help="Begin each line with the position.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Go on behind this checkpoint, and move it on. After a crash the last lines may "
            "come again; none is missed.",
        ),
    ] = None,
    gaps: Annotated[
        bool,
        typer.Option(
            "--gaps",
            help="Tell of positions without entry, too (on stderr, or as JSON), and go on behind "
            "entries that were lost.",
        ),
    ] = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Print entries in order, one a line."""
    from loomlog.cli import event_loop
    from loomlog.cli import tail as printing

    if start is not None and checkpoint is not None:
        raise typer.BadParameter("give --from or --checkpoint, not both", param_hint="--from")
    show = printing.as_text_with_position if positions else printing.as_text
    show_gap = printing.gap_as_text
    if as_json:
        show, show_gap = printing.as_json, printing.gap_as_json
    event_loop.run(
        printing.tail(
            cluster,
            log,
            start=start,
            follow=follow,
            count_max=count_max,
            checkpoint=checkpoint,
            show=show,
            show_gap=show_gap if gaps else None,
        )
    )


@app.command()
def status(
    seconds: Annotated[
        float | None,
        typer.Argument(
            min=0.1, metavar="SECONDS", show_default="2", help="With --watch: how often."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again.")] = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show nodes, logs and streams."""
    from loomlog.cli import event_loop
    from loomlog.cli import status as showing

    if not watch and seconds is not None:
        raise typer.BadParameter("only with --watch", param_hint="SECONDS")
    if watch:
        event_loop.run(showing.watch(cluster, seconds or 2.0, as_json=as_json))
    else:
        event_loop.run(showing.status(cluster, as_json=as_json))


app.command()(bench_command.bench)


@app.command()
def version(as_json: Json = False) -> None:
    """Show the version."""
    from importlib.metadata import version as version_of

    from loomlog.cli.output import print_json

    number = version_of("loomlog")
    if as_json:
        print_json({"loomlog": number})
    else:
        print(f"loomlog {number}")


@log_app.command("create")
def log_create(
    log: LogName,
    streams: Annotated[
        int, typer.Option(min=1, help="More streams, more bandwidth; not of copyset.")
    ] = 1,
    replicas: Annotated[int, typer.Option(min=1, help="Nodes that hold each entry.")] = 3,
    nodeset: Nodeset = None,
    protocol: Annotated[str, typer.Option(help="ordered, chained or copyset.")] = "ordered",
    retention: Retention = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Make a log."""
    from loomlog.cli import event_loop, logs

    event_loop.run(
        logs.create(
            cluster,
            log,
            protocol=protocol,
            streams=streams,
            replicas=replicas,
            nodeset=nodeset,
            retention=retention,
            as_json=as_json,
        )
    )


@log_app.command("list")
def log_list(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List all logs."""
    from loomlog.cli import event_loop, logs

    event_loop.run(logs.list_all(cluster, as_json=as_json))


@log_app.command("describe")
def log_describe(log: LogName, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Show a log and its streams."""
    from loomlog.cli import event_loop, logs

    event_loop.run(logs.describe(cluster, log, as_json=as_json))


@log_app.command("switch")
def log_switch(
    log: LogName,
    protocol: Annotated[str | None, typer.Option(help="ordered, chained or copyset.")] = None,
    streams: Annotated[
        int | None, typer.Option(min=1, help="More streams, more bandwidth; not of copyset.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Nodes that hold each entry.")] = None,
    nodeset: Nodeset = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Run a log another way from now on, while it is used."""
    from loomlog.cli import event_loop, logs

    event_loop.run(
        logs.switch(
            cluster,
            log,
            protocol=protocol,
            streams=streams,
            replicas=replicas,
            nodeset=nodeset,
            as_json=as_json,
        )
    )


@log_app.command("retention")
def log_retention(
    log: LogName,
    retention: Annotated[
        str, typer.Argument(metavar="TIME|none", help="How long entries stay: 12h, 7d, or none.")
    ],
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Change how long entries stay; none: for ever."""
    from loomlog.cli import event_loop, logs

    wanted = None if retention == "none" else retention
    event_loop.run(logs.set_retention(cluster, log, wanted, as_json=as_json))


@log_app.command("find-time")
def log_find_time(
    log: LogName,
    moment: Annotated[
        str, typer.Argument(metavar="TIME", help="As 2026-11-16T03:00, in UTC unless it says so.")
    ],
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show the first position of a time, by the writers' clocks."""
    from loomlog.cli import event_loop, logs

    event_loop.run(logs.find_time(cluster, log, logs.moment(moment), as_json=as_json))


@log_app.command("trim")
def log_trim(
    log: LogName,
    position: Annotated[
        int,
        typer.Argument(
            parser=read_position,
            metavar="POSITION",
            help="The last one to drop, as 4200 or e3n17.",
        ),
    ],
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Drop all entries up to and with a position. Asks first on a terminal."""
    from loomlog.cli import confirm, event_loop, logs

    question = f"Drop all entries of {log} up to and with position {position}?"
    confirm.ask_at_terminal(question, yes=yes)
    event_loop.run(logs.trim(cluster, log, position, as_json=as_json))


@log_app.command("delete")
def log_delete(
    log: LogName,
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Delete a log and all its entries."""
    from loomlog.cli import confirm, event_loop, logs

    confirm.ask(lambda: f"Delete {log} and all its entries?", yes=yes)
    event_loop.run(logs.delete(cluster, log, as_json=as_json))


def main() -> None:
    failures.main(app, "loom")


if __name__ == "__main__":
    main()
