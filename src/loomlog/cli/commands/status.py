"""`loom status`: the state of the cluster, once or repeatedly."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loomlog.cli.console.command import connected
from loomlog.cli.console.failures import describe
from loomlog.cli.console.options import CLUSTER, Cluster, Json
from loomlog.cli.console.output import (
    console,
    plain,
    print_json,
    status_view,
)
from loomlog.errors import Retryable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loomlog import ClusterStatus

Show = Callable[["ClusterStatus | Retryable"], None]


async def status(
    seconds: Annotated[
        float | None,
        typer.Argument(
            min=0.1, metavar="SECONDS", show_default="2", help="With --watch: how often."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again.")] = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show nodes, logs and streams."""
    if not watch and seconds is not None:
        raise typer.BadParameter("only with --watch", param_hint="SECONDS")
    if watch:
        await _watch(cluster, seconds or 2.0, as_json=as_json)
        return
    async with connected(cluster) as client:
        info = await client.status()
    if as_json:
        print_json(asdict(info))
    else:
        console().print(status_view(info))


async def _watch(address: str, every_s: float, *, as_json: bool) -> None:
    """Show the status until Ctrl-C, also while the metadata repository is away."""
    with _screen(as_json=as_json) as show:
        async with aclosing(_statuses(address, every_s)) as statuses:
            async for status in statuses:
                show(status)


async def _statuses(
    address: str, every_s: float
) -> AsyncGenerator[ClusterStatus | Retryable, None]:
    async with connected(address) as cluster:
        while True:
            try:
                yield await cluster.status()
            except Retryable as error:
                yield error
            await asyncio.sleep(every_s)


@contextmanager
def _screen(*, as_json: bool) -> Iterator[Show]:
    """Update the screen of a terminal; otherwise print one status after the other."""
    if as_json:
        yield lambda status: print_json(_fields(status))
        return
    out = console()
    if not sys.stdout.isatty():
        yield lambda status: out.print(_view(status))
        return
    from rich.live import Live

    with Live(console=out, screen=True, auto_refresh=False) as live:
        yield lambda status: live.update(_view(status), refresh=True)


def _fields(status: ClusterStatus | Retryable) -> dict[str, Any]:
    return {"error": describe(status)} if isinstance(status, Retryable) else asdict(status)


def _view(status: ClusterStatus | Retryable) -> Any:
    if isinstance(status, Retryable):
        return f"[red]{plain(describe(status))}[/]; trying again"
    return status_view(status)
