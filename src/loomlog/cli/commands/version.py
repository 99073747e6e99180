"""`loom version`."""

from __future__ import annotations

from loomlog.cli.console.options import Json
from loomlog.cli.console.output import say


def version(as_json: Json = False) -> None:
    """Show the version."""
    from importlib.metadata import version as version_of

    number = version_of("loomlog")
    say({"loomlog": number}, f"loomlog {number}", as_json=as_json)
