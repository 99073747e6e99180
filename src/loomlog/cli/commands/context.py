"""`loom context …`: named clusters, so that commands need no address."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from loomlog.cli.console.contexts import Context, Contexts, contexts_file
from loomlog.cli.console.options import Json
from loomlog.cli.console.output import console, new_table, plain, print_json, say
from loomlog.net.address import split_address

app = typer.Typer(help="Named clusters, so that commands need no address.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List the contexts."""
    contexts = Contexts.load()
    if as_json:
        found = {name: asdict(each) for name, each in contexts.by_name.items()}
        print_json({"current": contexts.current, "contexts": found})
        return
    if not contexts.by_name:
        print("no contexts yet: create one with `loom context set NAME ADDR`")
        return
    table = new_table("", "context", "cluster", "tls", "token file")
    for name, each in sorted(contexts.by_name.items()):
        mark = "*" if name == contexts.current else ""
        table.add_row(mark, *map(plain, (name, each.cluster, each.tls, each.token_file)))
    console().print(table)


@app.command("set")
def set_to(
    name: Name,
    cluster: Annotated[
        str, typer.Argument(metavar="ADDR[,ADDR…]", help="Addresses of the metadata repositories.")
    ],
    tls: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE",
            exists=True,
            show_default="plain TCP",
            help="Certificate from `loom certs`.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, show_default="none", help="Has a token."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create or change a context. Commands use the first one at once."""
    for address in cluster.split(","):
        split_address(address)
    contexts = Contexts.load()
    paths = (str(path.resolve()) if path else "" for path in (tls, token_file))
    contexts.by_name[name] = Context(cluster, *paths)
    contexts.current = contexts.current or name
    contexts.save()
    next_ = "" if contexts.current == name else f"; next: loom context use {name}"
    fields = {"name": name, **asdict(contexts.by_name[name])}
    say(fields, f"context {name} is {cluster}{next_}", as_json=as_json)


@app.command()
def use(name: Name, as_json: Json = False) -> None:
    """Make this cluster the default of commands."""
    contexts = Contexts.load()
    found = contexts.get(name)
    contexts.current = name
    contexts.save()
    say({"current": name}, f"commands now use {name}: {found.cluster}", as_json=as_json)


@app.command()
def delete(name: Name, as_json: Json = False) -> None:
    """Delete a context, not its cluster."""
    contexts = Contexts.load()
    contexts.get(name)
    del contexts.by_name[name]
    contexts.current = "" if contexts.current == name else contexts.current
    contexts.save()
    say({"deleted": name}, f"deleted {name} from {contexts_file()}", as_json=as_json)
