"""`vsn`: a storage node as a process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from loomlog import limits
from loomlog.cli.console import failures
from loomlog.cli.console.changes import confirm
from loomlog.cli.console.command import command
from loomlog.cli.console.options import Json, Yes, parse_identity_limits, parse_volume_limits
from loomlog.cli.console.output import size
from loomlog.cli.processes.audit_writer import Audited
from loomlog.cli.processes.server_process import Advertise, Listen, ServerOptions, serve
from loomlog.net.credentials import server_file
from loomlog.storage.disk import RealFiles
from loomlog.storage.identity import node_directories
from loomlog.storage.set_aside import find_all
from loomlog.types import SyncMode

app = typer.Typer(
    help="A storage node of a loomlog cluster.", add_completion=False, rich_markup_mode=None
)


Location = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        show_default="one of its own",
        help="Failure domain of the node, e.g. rack=a; replicas are spread over locations.",
    ),
]
Sync = Annotated[
    SyncMode,
    typer.Option(
        help="When data is forced to disk. always: before it counts as written; "
        "interval: every 0.2 s; none: when the kernel decides. With the last two, a power loss "
        "may lose the newest entries. Chained and copyset logs are always synced."
    ),
]
VolumeLimits = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR=SIZE",
        show_default="none",
        help="Limit for the data of this node on a volume: DIR=100G, or DIR=80% of its file "
        "system. Shortly before the limit, the volume accepts no appends. Repeatable.",
    ),
]
ScrubRate = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="MB/s",
        help="Rate at which stored data is read in the background, to find and repair "
        "damage; 0: never.",
    ),
]


@app.callback()
def vsn() -> None:
    """A storage node of a loomlog cluster."""


@command(app, variables="LOOM_VSN")
def start(
    cluster_id: Annotated[str, typer.Option(help="Id of the cluster.")],
    storage_node_id: Annotated[
        int, typer.Option(min=1, max=limits.NODE_ID_MAX, help="Number of this node in the cluster.")
    ],
    volumes: Annotated[
        list[str],
        typer.Option(metavar="DIR", help="Directory for data; must exist. Repeatable."),
    ],
    mr: Annotated[
        str, typer.Option(metavar="ADDR[,ADDR]", help="Address of the metadata repository (vmr).")
    ],
    listen: Listen,
    advertise: Advertise = None,
    location: Location = "",
    sync: Sync = SyncMode.ALWAYS,
    volume_limit: VolumeLimits = None,
    scrub_rate: ScrubRate = limits.SCRUB_RATE_MB_PER_S,
    http: Annotated[
        str,
        typer.Option(metavar="ADDR|none", help="Address of /healthz, /readyz and /metrics."),
    ] = "none",
    error_if_exists: Annotated[
        bool, typer.Option("--error-if-exists", help="Refuse to start if there is data.")
    ] = False,
    *,
    server: ServerOptions,
) -> None:
    """Start a storage node; stop it with SIGTERM."""
    from loomlog.cli.processes.served_node import ServedNode
    from loomlog.config import NodeSettings, StorageSettings

    server.check_exposed(listen, *([http] if http != "none" else []))
    server.set_up(f"vsn-{storage_node_id}")
    metadata = tuple(address.strip() for address in mr.split(","))
    settings = NodeSettings(
        node_id=storage_node_id,
        cluster_id=cluster_id,
        volumes=tuple(volumes),
        metadata=metadata,
        listen=listen,
        advertise=advertise,
        location=location,
        error_if_exists=error_if_exists,
        scrub_bytes_per_s=int(scrub_rate * 1e6),
        volume_limits=parse_volume_limits(volume_limit or [], volumes),
        storage=StorageSettings(sync=sync),
        tls=server.tls,
        identity_limits=parse_identity_limits(server.identity_limit or []),
        http=None if http == "none" else http,
    )
    tls = str(server_file(server.tls, "node", storage_node_id)) if server.tls else ""
    served = ServedNode(settings)
    name = f"vsn-{storage_node_id}"
    audited = Audited(served, name, served.node.audit, lambda: metadata, tls)
    serve(
        audited,
        lambda: {"address": served.node.address, "http": served.node.http_address},
        lambda: served.failed,
    )


@command(app)
def damaged(
    volumes: Annotated[list[str], typer.Option(metavar="DIR", help="As of `vsn start`.")],
    delete: Annotated[bool, typer.Option("--delete", help="Delete it for good.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """List damaged data that storage nodes set aside on volumes of this machine, with its size."""
    found = {path: space for volume in volumes for path, space in _set_aside(volume)}
    if as_json:
        print(json.dumps([{"path": path, "bytes": space} for path, space in found.items()]))
    else:
        print("\n".join(f"{path}  {size(space)}" for path, space in found.items()) or "nothing")
    if not delete or not found:
        return
    question = (
        f"Delete these {len(found)} files and directories ({size(sum(found.values()))})? "
        "If a log has problems (`loom status`), it may be the last copy of entries."
    )
    confirm(lambda: question, yes=yes)
    for path in map(Path, found):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _set_aside(volume: str) -> Iterator[tuple[str, int]]:
    files = RealFiles()
    for directory in node_directories(files, volume)[0]:
        for path in find_all(files, directory):
            yield path, files.used(path) if Path(path).is_dir() else Path(path).stat().st_size


def main() -> None:
    failures.main(app, "vsn")


if __name__ == "__main__":
    main()
