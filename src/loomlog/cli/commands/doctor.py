"""`loom doctor`: all checks of a cluster and of this machine."""

from __future__ import annotations

from dataclasses import asdict

import typer

from loomlog.cli.console.command import connected
from loomlog.cli.console.options import CLUSTER, Cluster, Json
from loomlog.cli.console.output import console, new_table, plain, print_json

_COLORS = {"ok": "green", "warning": "yellow", "problem": "red"}


async def doctor(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Check servers, disks, clocks, versions and metadata, and say what to fix.

    Checks run from this machine, at the servers' advertised addresses. The exit code is 1 if there
    is a problem."""
    from loomlog.client.diagnosis import PROBLEM, addresses_of, ask, diagnose

    async with connected(cluster) as client:
        status = await client.status()
    found = diagnose(status, await ask(list(addresses_of(status))))
    if as_json:
        print_json({"cluster_id": status.cluster_id, "findings": [asdict(each) for each in found]})
    else:
        table = new_table("", "check", "what", "found", "what to do")
        for each in found:
            result = f"[{_COLORS[each.result]}]{each.result}[/]"
            cells = map(plain, (each.check, each.subject, each.text, each.help))
            table.add_row(result, *cells)
        console().print(table)
    if any(each.result == PROBLEM for each in found):
        raise typer.Exit(1)
