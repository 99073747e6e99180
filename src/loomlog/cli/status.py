"""`loom status`: the cluster at one moment, or again and again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

from loomlog.cli.connection import connected
from loomlog.cli.failures import describe
from loomlog.cli.output import as_fields, console, plain, print_json, print_status, status_view
from loomlog.errors import Retryable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loomlog import ClusterStatus

Show = Callable[["ClusterStatus | Retryable"], None]


async def status(address: str, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        found = await cluster.status()
    if as_json:
        print_json(as_fields(found))
    else:
        print_status(found)


async def watch(address: str, every_s: float, *, as_json: bool) -> None:
    """Until Ctrl-C, also while the metadata repository is away."""
    with _screen(as_json=as_json) as show:
        async with aclosing(_statuses(address, every_s)) as statuses:
            async for found in statuses:
                show(found)


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
    """A screen that changes on a terminal; else one status below the other."""
    if as_json:
        yield lambda found: print_json(_fields(found))
        return
    out = console()
    if not sys.stdout.isatty():
        yield lambda found: out.print(_view(found))
        return
    from rich.live import Live

    with Live(console=out, screen=True, auto_refresh=False) as live:
        yield lambda found: live.update(_view(found), refresh=True)


def _fields(found: ClusterStatus | Retryable) -> dict[str, Any]:
    return {"error": describe(found)} if isinstance(found, Retryable) else as_fields(found)


def _view(found: ClusterStatus | Retryable) -> Any:
    if isinstance(found, Retryable):
        return f"[red]{plain(describe(found))}[/]; trying again"
    return status_view(found)
