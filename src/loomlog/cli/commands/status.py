"""`loom status`: the state of the cluster, once or repeatedly."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, contextmanager
from dataclasses import asdict, replace
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loomlog.cli.console.command import connected
from loomlog.cli.console.failures import describe
from loomlog.cli.console.options import CLUSTER, Cluster, Json
from loomlog.cli.console.output import console, plain, print_json
from loomlog.cli.console.status_view import Rates, log_view, status_view
from loomlog.errors import NotFound, Retryable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loomlog import ClusterStatus

Show = Callable[["ClusterStatus | Retryable"], None]


async def status(
    seconds: Annotated[
        float | None,
        typer.Argument(
            min=0.1, metavar="SECONDS", show_default="2", help="Interval of --watch, in seconds."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update continuously, with entries per second.")
    ] = False,
    log: Annotated[
        str | None, typer.Option(metavar="LOG", show_default="all", help="Show this log only.")
    ] = None,
    all_logs: Annotated[
        bool, typer.Option("--all", help="Also show internal logs and healthy streams.")
    ] = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show problems, nodes and logs."""
    if not watch and seconds is not None:
        raise typer.BadParameter("only with --watch", param_hint="SECONDS")
    view = _View(log, all_logs=all_logs, watches=watch)
    if watch:
        await _watch(cluster, seconds or 2.0, view, as_json=as_json)
        return
    async with connected(cluster) as client:
        info = view.filtered(await client.status())
    if as_json:
        print_json(asdict(info))
    else:
        console().print(view.of(info))


class _View:
    """Selects the parts of a status to show."""

    def __init__(self, log: str | None, *, all_logs: bool, watches: bool) -> None:
        self._log = log
        self._all = all_logs
        self._rates = Rates() if watches else None

    def filtered(self, status: ClusterStatus) -> ClusterStatus:
        """Return the status with only the selected logs."""
        if self._log is None:
            return status
        logs = tuple(log for log in status.logs if log.name == self._log)
        if not logs:
            raise NotFound(f"there is no log {self._log!r}: `loom log list` shows them")
        about = tuple(each for each in status.conditions if each.log == self._log)
        return replace(status, logs=logs, conditions=about)

    def fields(self, status: ClusterStatus | Retryable) -> dict[str, Any]:
        if isinstance(status, Retryable):
            return {"error": describe(status)}
        return asdict(self.filtered(status))

    def of(self, status: ClusterStatus | Retryable) -> Any:
        if isinstance(status, Retryable):
            return f"[red]{plain(describe(status))}[/]; trying again"
        rates = None if self._rates is None else self._rates.update(status.logs, monotonic())
        if self._log is not None:
            return log_view(self.filtered(status), self._log, rates)
        return status_view(status, all_logs=self._all, rates=rates)


async def _watch(address: str, every_s: float, view: _View, *, as_json: bool) -> None:
    """Show the status until Ctrl-C, also while the metadata repository is away."""
    with _screen(view, as_json=as_json) as show:
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
def _screen(view: _View, *, as_json: bool) -> Iterator[Show]:
    """Update the screen of a terminal; otherwise print one status after the other."""
    if as_json:
        yield lambda status: print_json(view.fields(status))
        return
    out = console()
    if not sys.stdout.isatty():
        yield lambda status: out.print(view.of(status))
        return
    from rich.live import Live

    with Live(console=out, screen=True, auto_refresh=False) as live:
        yield lambda status: live.update(view.of(status), refresh=True)
