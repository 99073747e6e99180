"""`loom`: the command line. Each command is in a module of `commands`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from loomlog.cli.commands import (
    acl,
    append,
    archive,
    bench,
    certs,
    checkpoint,
    console,
    context,
    doctor,
    group,
    log,
    maintenance,
    metadata,
    node,
    pipeline,
    rebalance,
    status,
    stream,
    tail,
    token,
    up,
)
from loomlog.cli.console import contexts, failures
from loomlog.cli.console.command import command
from loomlog.cli.console.options import CLUSTER, CLUSTER_VARIABLE, Json
from loomlog.cli.console.output import say
from loomlog.net.credentials import VARIABLE

app = typer.Typer(
    help="A distributed shared log.", context_settings={"help_option_names": ["-h", "--help"]}
)
app.add_typer(log.app, name="log")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(group.app, name="group")
app.add_typer(archive.app, name="archive")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(node.app, name="node")
app.add_typer(stream.app, name="stream")
app.add_typer(metadata.app, name="metadata")
app.add_typer(acl.app, name="acl")
app.add_typer(token.app, name="token")
app.add_typer(certs.app, name="certs")
app.add_typer(context.app, name="context")


@app.callback(invoke_without_command=True)
def loom(
    invocation: typer.Context,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDR",
            show_default=f"${CLUSTER_VARIABLE}, or {CLUSTER}",
            help="The metadata repository of the cluster, for any command.",
        ),
    ] = None,
    context_name: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            show_default=f"${contexts.VARIABLE}, or as `loom context use` says",
            help="The cluster of this name.",
        ),
    ] = None,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="LOOM_TOKEN_FILE",
            metavar="FILE",
            show_default="LOOM_TOKEN",
            help="Present the token in this file.",
        ),
    ] = None,
    tls: Annotated[
        str,
        typer.Option(
            envvar=VARIABLE,
            metavar="DIR|FILE",
            show_default="plain TCP",
            help="Connect with TLS, with a certificate that `loom certs` made.",
        ),
    ] = "",
) -> None:
    """A distributed shared log: many writers, many storage nodes, one total order."""
    if token_file is not None:  # never an argument: those are seen by others
        from loomlog.client.settings import read_token

        os.environ["LOOM_TOKEN"] = read_token(token_file).strip()
    if tls:
        os.environ[VARIABLE] = tls  # also for the processes that a command starts
    if cluster is not None:
        os.environ[CLUSTER_VARIABLE] = cluster  # the default of the command's own --cluster
    elif invocation.invoked_subcommand != "context":
        _use(context_name)
    if show_version:
        version()
    elif invocation.invoked_subcommand is None:
        typer.echo(invocation.get_help())


def _use(name: str | None) -> None:
    """Make a context the default of the command's own options. One that is not asked for by name
    counts less than LOOM_CLUSTER."""
    if name is None and contexts.VARIABLE not in os.environ and CLUSTER_VARIABLE in os.environ:
        return
    found = contexts.chosen(name)
    if found is None:
        return
    os.environ[CLUSTER_VARIABLE] = found.cluster
    if found.tls:
        os.environ.setdefault(VARIABLE, found.tls)
    if found.token_file and "LOOM_TOKEN" not in os.environ:
        os.environ["LOOM_TOKEN"] = Path(found.token_file).read_text().strip()


for work in (
    up.up,
    console.console,
    append.append,
    tail.tail,
    status.status,
    doctor.doctor,
    maintenance.maintenance,
    rebalance.rebalance,
    bench.bench,
):
    command(app)(work)


@app.command()
def version(as_json: Json = False) -> None:
    """Show the version."""
    from importlib.metadata import version as version_of

    number = version_of("loomlog")
    say({"loomlog": number}, f"loomlog {number}", as_json=as_json)


def main() -> None:
    failures.main(app, "loom")


if __name__ == "__main__":
    main()
