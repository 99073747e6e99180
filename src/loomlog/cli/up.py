"""`loom up`: a whole cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import sys

from loomlog.cli.local_processes import Child, LocalProcesses, Plan
from loomlog.cli.stop_signals import first, on_stop_signals
from loomlog.errors import LoomError


async def up(plan: Plan, *, as_json: bool) -> None:
    """Start it, say so, stay; SIGINT and SIGTERM stop it."""
    stop_asked = asyncio.Event()
    on_stop_signals(stop_asked.set)
    processes = LocalProcesses(plan)
    starting = asyncio.ensure_future(processes.start())
    if not await first(starting, stop_asked):
        return
    try:
        _announce(processes, plan, as_json=as_json)
        watching = asyncio.ensure_future(processes.watch(_say_died))
        if await first(watching, stop_asked):
            raise LoomError(f"no server is left; their logs are in {plan.directory / 'logs'}")
        if not as_json:
            print("stopping …", file=sys.stderr)
    finally:
        await processes.stop()


def _say_died(child: Child, code: int) -> None:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    print(f"loom: {child.name} (pid {child.pid}) {how}; see {child.log_file}", file=sys.stderr)


def _announce(processes: LocalProcesses, plan: Plan, *, as_json: bool) -> None:
    if as_json:
        line = {"mr": processes.address, "http": processes.http, "pids": processes.pids}
        print(json.dumps(line), flush=True)
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    facts = Table.grid(padding=(0, 2))
    facts.add_row("cluster", processes.address)
    facts.add_row("status", f"http://{processes.http}/status")
    facts.add_row("servers", " ".join(f"{name}:{pid}" for name, pid in processes.pids.items()))
    facts.add_row("sync", plan.sync)
    facts.add_row("data", str(plan.directory))
    facts.add_row("", "")
    facts.add_row("try", f"export LOOM_CLUSTER={processes.address}")
    facts.add_row("", "loom log create hello && echo world | loom append hello && loom tail hello")
    console = Console()
    console.print(Panel(facts, title="loomlog is up", subtitle="Ctrl-C stops it", expand=False))
