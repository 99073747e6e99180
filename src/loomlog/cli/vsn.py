"""`vsn`: a storage node as a process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loomlog import limits
from loomlog.cli.console import failures
from loomlog.cli.console.command import command
from loomlog.cli.console.options import parse_identity_limits, parse_volume_limits
from loomlog.cli.processes.audit_writer import Audited
from loomlog.cli.processes.server_process import Listen, ServerOptions, keep_private, serve
from loomlog.net.credentials import server_file
from loomlog.types import SyncMode

if TYPE_CHECKING:
    import asyncio

    from loomlog.node import StorageNode

app = typer.Typer(
    help="A storage node of a loomlog cluster.", add_completion=False, rich_markup_mode=None
)


Location = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        show_default="one of its own",
        help="What fails together with it, e.g. rack=a: replicas are spread over locations.",
    ),
]
Sync = Annotated[
    SyncMode,
    typer.Option(
        help="When data is forced to disk. always: before it counts as written. "
        "interval: every 0.2 s, none: when the kernel decides; power loss may take the newest. "
        "Chained and copyset logs: always."
    ),
]
VolumeLimits = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR=SIZE",
        show_default="none",
        help="Most that this node may store on a volume: DIR=100G, or DIR=80% of its file "
        "system. Shortly before, it takes no appends. Repeatable.",
    ),
]
ScrubRate = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="MB/s",
        help="How fast it reads all that it stores, again and again, to find and repair "
        "damage; 0: not at all.",
    ),
]


@app.callback()
def vsn() -> None:
    """A storage node of a loomlog cluster."""


@command(app, variables="LOOM_VSN")
def start(
    cluster_id: Annotated[str, typer.Option(help="The cluster that this node belongs to.")],
    storage_node_id: Annotated[
        int, typer.Option(min=1, max=limits.NODE_ID_MAX, help="This node's number in it.")
    ],
    volumes: Annotated[
        list[str],
        typer.Option(metavar="DIR", help="Where data lives: an existing directory. Repeatable."),
    ],
    mr: Annotated[str, typer.Option(metavar="ADDR[,ADDR]", help="The metadata repository (vmr).")],
    listen: Listen,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="ADDR", show_default="listen", help="The address that others connect to."
        ),
    ] = None,
    location: Location = "",
    sync: Sync = SyncMode.ALWAYS,
    volume_limit: VolumeLimits = None,
    scrub_rate: ScrubRate = limits.SCRUB_RATE_MB_PER_S,
    http: Annotated[
        str,
        typer.Option(metavar="ADDR|none", help="Address of /healthz, /readyz and /metrics."),
    ] = "none",
    error_if_exists: Annotated[
        bool, typer.Option("--error-if-exists", help="Refuse to start on data that is there.")
    ] = False,
    *,
    server: ServerOptions,
) -> None:
    """Start a storage node; stop it with SIGTERM."""
    from loomlog.config import NodeSettings, StorageSettings
    from loomlog.node import StorageNode

    server.check_exposed(listen, *([http] if http != "none" else []))
    server.set_up(f"vsn-{storage_node_id}")
    metadata = tuple(address.strip() for address in mr.split(","))
    keep_private(found for volume in volumes for found in Path(volume).glob("cid=*"))
    node = StorageNode(
        NodeSettings(
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
    )
    tls = str(server_file(server.tls, "node", storage_node_id)) if server.tls else ""
    name = f"vsn-{storage_node_id}"
    audited = Audited(_Registered(node), name, node.audit, lambda: metadata, tls)
    serve(
        audited,
        lambda: {"address": node.address, "http": node.http_address},
        lambda: node.failed,
    )


class _Registered:
    """A storage node that counts as started when the metadata repository knows it."""

    def __init__(self, node: StorageNode) -> None:
        self._node = node

    async def start(self) -> None:
        await self._node.start()
        self._node.held_back.add_done_callback(self._say_held_back)
        try:
            await self._node.registered()
        except BaseException:
            await self._node.stop()
            raise

    async def stop(self) -> None:
        await self._node.hand_over()
        await self._node.stop()

    def _say_held_back(self, why: asyncio.Future[str]) -> None:
        """Notify the parent process, which otherwise waits for the ready line."""
        if not why.cancelled():
            line = {"ready": False, "pid": os.getpid(), "address": self._node.address}
            print(json.dumps({**line, "held_back": why.result()}), flush=True)


def main() -> None:
    failures.main(app, "vsn")


if __name__ == "__main__":
    main()
