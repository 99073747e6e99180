"""`loom`: the command line. Each command is in a module of `commands`."""

from __future__ import annotations

import typer

from loomlog.cli.commands import (
    append,
    archive,
    bench,
    checkpoint,
    doctor,
    log,
    maintenance,
    metadata,
    node,
    pipeline,
    rebalance,
    status,
    stream,
    tail,
    up,
)
from loomlog.cli.console import failures
from loomlog.cli.console.command import command
from loomlog.cli.console.options import Json
from loomlog.cli.console.output import say

app = typer.Typer(help="A distributed shared log.", add_completion=False)
app.add_typer(log.app, name="log")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(archive.app, name="archive")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(node.app, name="node")
app.add_typer(stream.app, name="stream")
app.add_typer(metadata.app, name="metadata")


@app.callback(invoke_without_command=True)
def loom(context: typer.Context) -> None:
    """A distributed shared log: many writers, many storage nodes, one total order."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for work in (
    up.up,
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
