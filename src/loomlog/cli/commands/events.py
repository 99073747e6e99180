"""`loom events`: the cluster's timeline, past and current."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loomlog.cli.console.command import connected
from loomlog.cli.console.options import CLUSTER, Cluster, Json, parse_moment
from loomlog.cli.console.output import print_json
from loomlog.errors import Retryable

if TYPE_CHECKING:
    from loomlog.wire.events import EventInfo

LAST: Final = 20  # events, without --since
LOOK_S: Final = 1.0


async def events(
    since: Annotated[
        Any,
        typer.Option(
            parser=parse_moment, metavar="TIME", help="Begin at this time: 1h (ago), 2026-11-16."
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "-n", "--count", min=0, metavar="N", show_default="20", help="The last N events."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until Ctrl-C.")] = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show the timeline: nodes, epochs, seals, switches, conditions, operators' actions."""
    async with connected(cluster) as client:
        found = await client.events(since)
        last = found[-1].id if found else 0
        if count is None:
            count = LAST if since is None else len(found)
        _show(found[-count:] if count else [], as_json=as_json)
        while follow:
            await asyncio.sleep(LOOK_S)
            try:
                found = await client.events(since, after=last)
            except Retryable:
                continue  # no leader: there will be an event about that
            last = found[-1].id if found else last
            _show(found, as_json=as_json)
        if not found and not as_json:
            print("nothing has happened" + (" since then" if since else " yet"))


def _show(found: list[EventInfo], *, as_json: bool) -> None:
    for event in found:
        if as_json:
            print_json(asdict(event))
        else:
            moment = datetime.fromtimestamp(event.time_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            print(f"{moment}  {event.severity:7}  {event.subject}: {event.text}", flush=True)
