"""`loom`: the command line. Each command is in a module of `commands`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from loomlog.cli import commands
from loomlog.cli.console import contexts, failures
from loomlog.cli.console.lazy_commands import HELP_NAMES, LazyCommands, show_flags_without_types
from loomlog.cli.console.options import CLUSTER, CLUSTER_VARIABLE
from loomlog.net.credentials import VARIABLE

COMMANDS: Final = (  # in the order of the help
    *("up", "console", "append", "tail", "status", "events", "doctor", "maintenance", "rebalance"),
    *("bench", "version", "log", "checkpoint", "group", "queue", "archive", "backup", "pipeline"),
    *("node", "stream", "metadata", "acl", "token", "certs", "context"),
)


class Commands(TyperGroup):
    """The commands of `loom`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands(commands.__name__, COMMANDS)  # type: ignore[assignment]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        show_flags_without_types(self)  # now it has those for completion, too
        super().format_help(ctx, formatter)


app = typer.Typer(
    cls=Commands,
    help="A distributed shared log.",
    context_settings={"help_option_names": list(HELP_NAMES)},
)


@app.callback(invoke_without_command=True)
def loom(
    invocation: typer.Context,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDR",
            show_default=f"${CLUSTER_VARIABLE}, or {CLUSTER}",
            help="Address of the cluster's metadata repository; precedes any command.",
        ),
    ] = None,
    context_name: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            show_default=f"${contexts.VARIABLE}, or the one of `loom context use`",
            help="Use the cluster of this context.",
        ),
    ] = None,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="LOOM_TOKEN_FILE",
            metavar="FILE",
            show_default="LOOM_TOKEN",
            help="Authenticate with the token in this file.",
        ),
    ] = None,
    tls: Annotated[
        str,
        typer.Option(
            envvar=VARIABLE,
            metavar="DIR|FILE",
            show_default="plain TCP",
            help="Connect with TLS, using a certificate from `loom certs`.",
        ),
    ] = "",
) -> None:
    """A distributed shared log: many writers, many storage nodes, one total order."""
    if token_file is not None:
        _use_token(token_file)
    if tls:
        os.environ[VARIABLE] = tls  # also for the processes that a command starts
    if cluster is not None:
        os.environ[CLUSTER_VARIABLE] = cluster  # the default of the command's own --cluster
    elif invocation.invoked_subcommand != "context":
        _use(context_name)
    if show_version:
        from loomlog.cli.commands.version import version

        version()
    elif invocation.invoked_subcommand is None:
        typer.echo(invocation.get_help())


def _use(name: str | None) -> None:
    """Make a context the default of the command's own options. One that was not chosen by name
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
        _use_token(found.token_file)


def _use_token(file: str | Path) -> None:
    """Use the token in a file. It is never an argument, because other users can see arguments."""
    from loomlog.client.settings import read_token

    os.environ["LOOM_TOKEN"] = read_token(file)


def main() -> None:
    failures.main(app, "loom")


if __name__ == "__main__":
    main()
