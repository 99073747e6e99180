"""`loom console`: the HTTP API and the web console, until Ctrl-C."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import CLUSTER, Cluster
from loomlog.cli.processes.server_process import Listen, ServerOptions, serve
from loomlog.client.cluster import parse_addresses
from loomlog.errors import LoomError
from loomlog.net.credentials import VARIABLE

LISTEN: Final = "127.0.0.1:7490"
CERTIFICATE: Final = "client-console.pem"
_PACKAGES: Final = ("starlette", "uvicorn", "jinja2", "uplot")


def is_installed() -> bool:
    """Return whether the packages of the extra `console` are there."""
    return all(find_spec(name) is not None for name in _PACKAGES)


def console(
    listen: Listen = LISTEN,
    cluster: Cluster = CLUSTER,
    *,
    server: ServerOptions,
) -> None:
    """Serve the HTTP API and the web console of a cluster, until Ctrl-C.

    Callers and visitors act with their own tokens, and without one as anonymous."""
    if not is_installed():
        raise LoomError("packages are missing: pip install 'loomlog[console]'")
    from loomlog.console.server import ConsoleServer

    parse_addresses(cluster)
    server.check_exposed(listen)
    if os.environ.get(VARIABLE) and not server.tls:
        raise UsageError(f"{VARIABLE} is set, but a console needs --tls with its own certificate")
    for name in ("LOOM_TOKEN", "LOOM_TOKEN_FILE"):  # our rights are not those of callers
        os.environ.pop(name, None)
    server.set_up("console")
    place = Path(server.tls)
    tls = str(place / CERTIFICATE if place.is_dir() else place) if server.tls else ""
    served = ConsoleServer(cluster, listen, tls)

    def ready() -> dict[str, object]:
        if sys.stderr.isatty():
            print(f"the console is at {served.url}", file=sys.stderr)
        return {"address": served.address, "url": served.url}

    serve(served, ready, lambda: served.failed)
