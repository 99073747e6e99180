"""`loom up`: a whole cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from loomlog.cli.console.options import RepairOptions
from loomlog.cli.processes.server_process import PRIVATE_UMASK, first, on_stop_signals
from loomlog.errors import LoomError
from loomlog.types import SyncMode

if TYPE_CHECKING:
    from loomlog.cli.processes.local_processes import Child, ClusterPlan, LocalProcesses

HTTP_PORT_DISTANCE: Final = 80  # 7400 and 7480
CONSOLE_PORT_DISTANCE: Final = 90

Sync = Annotated[
    SyncMode,
    typer.Option(
        help="When data is forced to disk: before an append counts as written (always), "
        "every 0.2 s (interval), or when the kernel decides (none). With the last two, a "
        "power loss may lose the newest entries."
    ),
]


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the servers; those of HTTP and the console are derived from the first one."""

    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 7400
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, show_default="port + 80", help="Port for status and metrics."
        ),
    ] = None
    console: Annotated[
        bool | None,
        typer.Option(
            "--console/--no-console",
            show_default="if installed",
            help="Also start the HTTP API and the web console.",
        ),
    ] = None
    console_port: Annotated[
        int | None, typer.Option(min=0, max=65535, show_default="port + 90", help="For those.")
    ] = None

    def of_http(self) -> int:
        """Return the first port for status and metrics."""
        if self.http_port is not None:
            return self.http_port
        return _beside(self.port, HTTP_PORT_DISTANCE)

    def of_console(self) -> int | None:
        """Return the port of the console; None if there is to be none."""
        from loomlog.cli.commands.console import is_installed

        if not (is_installed() if self.console is None else self.console):
            return None
        if self.console_port is not None:
            return self.console_port
        return _beside(self.port, CONSOLE_PORT_DISTANCE)


async def up(
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=64, show_default="those in the data, or 3", help="Storage nodes."),
    ] = None,
    metadata: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=5,
            show_default="those in the data, or 1",
            help="Metadata repositories; 3 survive the loss of one, and need etcd.",
        ),
    ] = None,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Directory of all data.")] = Path(
        "loom-data"
    ),
    *,
    ports: Ports,
    locations: Annotated[
        int,
        typer.Option(
            min=0,
            show_default="each is in one of its own",
            help="Spread the nodes over this many racks.",
        ),
    ] = 0,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="Use TLS for all connections; certificates are created in DIR/certs."
        ),
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Restart processes that die.")] = False,
    sync: Sync = SyncMode.ALWAYS,
    repair: RepairOptions,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line when ready.")
    ] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C."""
    from loomlog.cli.processes.local_metadata import metadata_found
    from loomlog.cli.processes.local_processes import ClusterPlan, nodes_found

    plan = ClusterPlan(
        directory=data,
        nodes=nodes or nodes_found(data) or 3,
        metadata=metadata or metadata_found(data) or 1,
        port=ports.port,
        http_port=ports.of_http(),
        sync=sync,
        heartbeat_timeout_s=repair.heartbeat_timeout,
        replace_after_s=repair.replace_after,
        rebuild_after_s=repair.rebuild_after,
        rebuild_rate_mb_s=repair.rebuild_rate,
        sync_rate_mb_s=repair.sync_rate,
        locations=locations,
        secure=secure,
        console_port=ports.of_console(),
    )
    await _run(plan, restart=restart, as_json=as_json)


def _beside(port: int, distance: int) -> int:
    """Return a port at a distance from another, or 0 (a free one) if that is impossible."""
    return port + distance if 0 < port <= 65535 - distance else 0


async def _run(plan: ClusterPlan, *, restart: bool, as_json: bool) -> None:
    """Start the cluster, announce it, and run until SIGINT or SIGTERM."""
    from loomlog.cli.processes.local_processes import LocalProcesses

    os.umask(PRIVATE_UMASK)  # for logs, and what etcd makes
    stop_asked = asyncio.Event()
    on_stop_signals(stop_asked.set)
    processes = LocalProcesses(plan)
    starting = asyncio.ensure_future(processes.start())
    if not await first(starting, stop_asked):
        return
    try:
        _announce(processes, plan, as_json=as_json)
        _say_held_back(processes)
        watching = asyncio.ensure_future(
            processes.keep_running(_say_died, _say_started)
            if restart
            else processes.watch(_say_died)
        )
        if await first(watching, stop_asked):
            raise LoomError(f"no server is left; their logs are in {plan.directory / 'logs'}")
        if not as_json:
            print("stopping …", file=sys.stderr)
    finally:
        await processes.stop()


def _say_died(child: Child, code: int) -> None:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    print(f"loom: {child.name} (pid {child.pid}) {how}; see {child.log_file}", file=sys.stderr)


def _say_started(child: Child | LoomError) -> None:
    words = str(child) if isinstance(child, LoomError) else f"{child.name} (pid {child.pid}) is up"
    print(f"loom: {words}", file=sys.stderr)


def _say_held_back(processes: LocalProcesses) -> None:
    for child in processes.children:
        if child.held_back:
            print(f"loom: {child.name} waits: {child.held_back}", file=sys.stderr)


def _announce(processes: LocalProcesses, plan: ClusterPlan, *, as_json: bool) -> None:
    if as_json:
        line = {"mr": processes.address, "http": processes.http, "pids": processes.pids}
        tls = {"tls": processes.tls} if processes.tls else {}
        console = {"console": processes.console.http} if processes.console else {}
        where = {"metrics": processes.metrics}
        print(json.dumps({**line, **tls, **console, **where}), flush=True)
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    facts = Table.grid(padding=(0, 2))
    facts.add_row("cluster", processes.address)
    scheme = "https" if processes.tls else "http"
    if processes.console:
        facts.add_row("console", processes.console.http)
    facts.add_row("status", f"{scheme}://{processes.http}/status")
    ports = ", ".join(address.rpartition(":")[2] for address in processes.metrics.values())
    facts.add_row("metrics", f"ports {ports}")
    facts.add_row("servers", " ".join(f"{name}:{pid}" for name, pid in processes.pids.items()))
    facts.add_row("sync", plan.sync)
    facts.add_row("data", str(plan.directory))
    facts.add_row("", "")
    facts.add_row("try", f"export LOOM_CLUSTER={processes.address}")
    if processes.tls:
        facts.add_row("", f"export LOOM_TLS={Path(processes.tls).resolve()}")
    for command in ("loom log create hello", "echo world | loom append hello", "loom tail hello"):
        facts.add_row("", command)
    Console().print(Panel(facts, title="loomlog is up", subtitle="Ctrl-C stops it", expand=False))
