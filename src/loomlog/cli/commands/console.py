"""`loom console`: the HTTP API and the web console, until Ctrl-C."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import CLUSTER, Cluster
from loomlog.cli.processes.server_process import Listen, ServerOptions, serve
from loomlog.errors import LoomError
from loomlog.net.credentials import AUTHORITIES, VARIABLE

VARIABLES: Final = "LOOM_CONSOLE"
LISTEN: Final = "127.0.0.1:7490"
_PACKAGES: Final = ("starlette", "uvicorn", "jinja2")


def is_installed() -> bool:
    """Return whether the packages of the extra `console` are there."""
    return all(find_spec(name) is not None for name in _PACKAGES)


def console(
    listen: Listen = LISTEN,
    cluster: Cluster = CLUSTER,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="ADDR[,ADDR…]",
            show_default=False,
            help="HTTP addresses of servers, to show latencies from their metrics.",
        ),
    ] = "",
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="that of --tls",
            help="Certificate for HTTPS: a PEM file with its key.",
        ),
    ] = None,
    *,
    server: ServerOptions,
) -> None:
    """Serve the HTTP API and the web console of a cluster, until Ctrl-C.

    Visitors and API callers use their own tokens; without one they are anonymous."""
    if not is_installed():
        raise LoomError("packages are missing: pip install 'loomlog[console]'")
    from loomlog.client.cluster import parse_addresses
    from loomlog.console.server import ConsoleServer

    parse_addresses(cluster)
    server.check_exposed(listen)
    if os.environ.get(VARIABLE) and not server.tls:
        raise UsageError(f"{VARIABLE} is set, but a console needs --tls with its own certificate")
    for name in (
        "LOOM_TOKEN",
        "LOOM_TOKEN_FILE",
    ):  # callers must not get this process's permissions
        os.environ.pop(name, None)
    server.set_up("console")
    servers = parse_addresses(metrics) if metrics else []
    authorities, shown = _credentials(server.tls, certificate)
    served = ConsoleServer(cluster, listen, authorities, shown, servers)

    def ready() -> dict[str, object]:
        if sys.stderr.isatty():
            print(f"the console is at {served.url}", file=sys.stderr)
        return {"address": served.address, "url": served.url}

    serve(served, ready, lambda: served.failed)


def _credentials(tls: str, certificate: Path | None) -> tuple[Path | None, Path | None]:
    """Return the file with the cluster's authorities, and the certificate for HTTPS."""
    if not tls:
        if certificate is not None:
            raise UsageError("--certificate also needs --tls, for the connections to the cluster")
        return None, None
    place = Path(tls)
    if place.is_dir():
        if certificate is None:
            raise UsageError("--tls: name the file of a certificate, or give --certificate")
        return place / AUTHORITIES, certificate
    return place.with_name(AUTHORITIES), certificate or place
