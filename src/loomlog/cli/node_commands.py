"""`loom node …`: names, options and help; the work is in nodes.py."""

from __future__ import annotations

from typing import Annotated

import typer

from loomlog.cli.invocation import Invocation, waitable
from loomlog.cli.options import CLUSTER, Cluster, Json, Node, Yes

app = typer.Typer(help="List, drain, remove and clean up storage nodes.")


@app.command("list")
def list_nodes(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List all storage nodes."""
    from loomlog.cli import event_loop, nodes

    event_loop.run(nodes.list_all(cluster, as_json=as_json))


@app.command()
@waitable
def drain(how: Invocation, node: Node, yes: Yes = False) -> None:
    """Move everything away from a node and give it nothing new."""
    from loomlog.cli import confirm, event_loop, nodes

    confirm.ask(lambda: event_loop.run(nodes.drain_question(how.address, node)), yes=yes)
    event_loop.run(nodes.drain(how, node))


@app.command()
def undrain(node: Node, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Use a drained node again."""
    from loomlog.cli import event_loop, nodes

    event_loop.run(nodes.undrain(cluster, node, as_json=as_json))


@app.command()
def remove(
    node: Node,
    force: Annotated[
        bool, typer.Option("--force", help="Also a dead node that is not empty: it is lost.")
    ] = False,
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Forget a node that is empty."""
    from loomlog.cli import confirm, event_loop, nodes

    confirm.ask(lambda: event_loop.run(nodes.remove_question(cluster, node, force=force)), yes=yes)
    event_loop.run(nodes.remove(cluster, node, force=force, as_json=as_json))


@app.command()
def cleanup(
    node: Node, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Delete a node's data of streams that are not (any more) its own."""
    from loomlog.cli import confirm, event_loop, nodes

    confirm.ask(lambda: event_loop.run(nodes.cleanup_question(cluster, node)), yes=yes)
    event_loop.run(nodes.cleanup(cluster, node, as_json=as_json))
