"""The contents of the pages of the web console: a function of each returns what it shows.

Tables are bounded, because open pages are rendered again every second: a page shows what needs
attention and what is busy, and finds the rest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.client.loglets.registry import FACTORIES
from loomlog.console import view
from loomlog.console.api import ROUTES
from loomlog.console.api.logs import all_checkpoints, checkpoints_of, group_fields, is_of_system
from loomlog.console.rates import NO_RATES, Rates
from loomlog.console.search import search
from loomlog.console.site import Connector
from loomlog.console.watch import Watch
from loomlog.core.permissions import AUDIT_LOG
from loomlog.errors import NotFound, PermissionDenied
from loomlog.spark.pipelines.status import statuses
from loomlog.types import StreamId
from loomlog.wire.info import ClusterStatus, LogInfo

AUDIT_SHOWN: Final = 50
EVENTS_SHOWN: Final = 12  # on the overview
LAGS_EVERY_S: Final = 3.0
LAGS_SHOWN: Final = 16  # streams whose nodes are asked
LOGS_IN_SIGHT: Final = 15  # on the overview
LOGS_SHOWN: Final = 200
NODES_SHOWN: Final = 15  # on the overview
PIPELINES_EVERY_S: Final = 3.0  # a look needs a connection of its own
SHARDS_SHOWN: Final = 32  # of a group


@dataclass(frozen=True, slots=True)
class Visit:
    """A request for a page."""

    request: Request
    cluster: Cluster
    watch: Watch
    connector: Connector
    token: str

    async def status(self) -> ClusterStatus:
        return (await self.watch.now()).status

    @property
    def rates(self) -> Rates:
        """The newest rates; all are 0 before the second look."""
        return self.watch.rates[-1] if self.watch.rates else NO_RATES

    def asked(self, name: str) -> str:
        return self.request.query_params.get(name, "").strip()


Load = Callable[[Visit], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path, and what its template shows."""

    path: str
    title: str
    template: str
    load: Load
    in_menu: bool = True


async def overview(visit: Visit) -> dict[str, Any]:
    status = await visit.status()
    return {
        "status": status,
        "health": view.health(status),
        "nodes": view.first_nodes(status.nodes, NODES_SHOWN),
        "logs": view.first_logs(_own(status.logs), visit.rates.logs, LOGS_IN_SIGHT),
        "logs_count": len(_own(status.logs)),
        "rates": visit.rates,
        "events": list(visit.watch.events)[: -EVENTS_SHOWN - 1 : -1],
    }


async def nodes(visit: Visit) -> dict[str, Any]:
    return {"status": await visit.status(), "rates": visit.rates}


async def logs(visit: Visit) -> dict[str, Any]:
    found = await visit.cluster.logs()
    shown = found if visit.asked("all") == "1" else _own(found)
    hidden = len(found) - len(shown)
    wanted = visit.asked("q")
    matching = [log for log in shown if wanted in log.name]
    return {
        "logs": view.first_logs(matching, visit.rates.logs, LOGS_SHOWN),
        "matching": len(matching),
        "q": wanted,
        "hidden": hidden,
        "has_filter": len(shown) > LOGS_IN_SIGHT or wanted,
        "rates": visit.rates.logs,
        "protocols": tuple(FACTORIES),
    }


def _own(logs: tuple[LogInfo, ...] | list[LogInfo]) -> list[LogInfo]:
    return [log for log in logs if not is_of_system(log)]


async def log(visit: Visit) -> dict[str, Any]:
    name = visit.request.path_params["log"]
    handle = visit.cluster.log(name)
    info = await handle.describe()
    return {
        "log": info,
        "checkpoints": await checkpoints_of(handle),
        "groups": await _groups(handle),
        "archive": await handle.archive(),
        "rate": visit.rates.logs.get(name, 0.0),
        "lags": await visit.watch.kept(
            f"lags of {name}", partial(_lags, visit, info), LAGS_EVERY_S
        ),
        "stream_state": lambda stream: view.stream_state(info, stream),
        "position": lambda number: view.position(info, number),
        "protocols": tuple(FACTORIES),
    }


async def _lags(visit: Visit, log: LogInfo) -> dict[StreamId, view.Lag]:
    """Return how far the replicas of streams are behind, for those whose nodes answer."""
    asked = [stream.id for stream in log.active_streams][:LAGS_SHOWN]
    answers = await asyncio.gather(
        *(visit.cluster.describe_stream(stream) for stream in asked), return_exceptions=True
    )
    return {
        stream: lag
        for stream, answer in zip(asked, answers, strict=True)
        if not isinstance(answer, BaseException) and (lag := view.lag(answer.replicas)) is not None
    }


async def entries(visit: Visit) -> dict[str, Any]:
    """Return the entries of a log that the visitor searches."""
    handle = visit.cluster.log(visit.request.path_params["log"])
    return await search(handle, {name: visit.asked(name) for name in ("from", "key", "count")})


async def readers(visit: Visit) -> dict[str, Any]:
    found = {info.name: info for info in _own(await visit.cluster.logs())}
    try:
        known = {info.name: info for info in (await visit.status()).logs}
    except PermissionDenied:
        known = {}
    logs = [visit.cluster.log(name) for name in found]
    grouped = [log for log in logs if log.name not in known or known[log.name].groups]
    queued = [log for log in logs if log.name not in known or known[log.name].queues]
    groups = [each for log in grouped for each in await _groups(log)]
    return {
        "checkpoints": await all_checkpoints(visit.cluster),
        "groups": [{**each, "slowest": view.slowest_shards(each, SHARDS_SHOWN)} for each in groups],
        "queues": [(log.name, each) for log in queued for each in (await log.queues()).values()],
        "shards_shown": SHARDS_SHOWN,
        "position": lambda log, number: view.position(found.get(log), number),
    }


async def _groups(log: Log) -> list[dict[str, Any]]:
    return [group_fields(log.name, group) for group in (await log.groups()).values()]


async def pipelines(visit: Visit) -> dict[str, Any]:
    def look() -> list[Any]:
        with visit.connector.connect_sync(visit.token) as cluster:
            return list(statuses(cluster))

    load = partial(asyncio.to_thread, look)
    return {"pipelines": await visit.watch.kept("pipelines", load, PIPELINES_EVERY_S)}


async def work(visit: Visit) -> dict[str, Any]:
    status = await visit.status()
    streams = [(log, stream) for log in status.logs for stream in log.streams]
    return {
        "status": status,
        "conditions": [each for each in status.conditions if each.severity == "work"],
        "copies": [(log, stream) for log, stream in streams if stream.joining is not None],
        "switches": [log for log in status.logs if log.switching],
        "drained": [node for node in status.nodes if node.draining],
    }


async def timeline(visit: Visit) -> dict[str, Any]:
    await visit.status()
    wanted = visit.asked("q")
    return {
        "events": [e for e in reversed(visit.watch.events) if wanted in f"{e.subject} {e.text}"],
        "q": wanted,
        "audit": await _audit(visit.cluster),
    }


async def _audit(cluster: Cluster) -> list[dict[str, Any]]:
    """Return what operators did last, as far as the visitor may know."""
    log = cluster.log(AUDIT_LOG)
    try:
        start = await log.find_last(AUDIT_SHOWN)
        tail = await log.tail()
        if start > tail:
            return []
        rows = [json.loads(entry.value) async for entry in log.subscribe(start, tail)]
    except (NotFound, PermissionDenied, ValueError):
        return []
    return rows[::-1]


async def api(_: Visit) -> dict[str, Any]:
    tags = dict.fromkeys(route.tag for route in ROUTES)
    return {"routes": {tag: [route for route in ROUTES if route.tag == tag] for tag in tags}}


PAGES: Final = (
    Page("/", "Overview", "overview.html", overview),
    Page("/nodes", "Nodes", "nodes.html", nodes),
    Page("/logs", "Logs", "logs.html", logs),
    Page("/logs/{log}", "Log", "log.html", log, in_menu=False),
    Page("/readers", "Readers", "readers.html", readers),
    Page("/pipelines", "Pipelines", "pipelines.html", pipelines),
    Page("/work", "Work", "work.html", work),
    Page("/timeline", "Timeline", "timeline.html", timeline),
    Page("/api", "API", "api.html", api),
)
