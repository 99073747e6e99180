"""Pipelines: look at them, pause, resume and reset them. They run elsewhere, on Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from starlette.responses import Response

from loomlog.client.blocking import BlockingCluster
from loomlog.config import parse_number
from loomlog.console.entries import bytes_field
from loomlog.console.route import FLAG, NUMBER, TEXT, Call, Parameter, Route, in_body, in_path
from loomlog.errors import InvalidArgument, shown
from loomlog.metrics import CONTENT_TYPE, page
from loomlog.spark.pipelines import store
from loomlog.spark.pipelines.letter_reader import dead_letters
from loomlog.spark.pipelines.status import as_fields, metrics_of, statuses

T = TypeVar("T")

NAME: Final = in_path("pipeline", "Name of the pipeline.")
LETTERS: Final = {**NUMBER, "maximum": 1000}


async def in_thread(call: Call, work: Callable[[BlockingCluster], T]) -> T:
    """Do work that needs the blocking client, with the caller's token, in a thread."""
    connect: Callable[[str], BlockingCluster] = call.request.app.state.connector.connect_sync

    def run() -> T:
        with connect(call.request.state.token) as cluster:
            return work(cluster)

    return await asyncio.to_thread(run)


async def list_all(call: Call) -> dict[str, Any]:
    found = await in_thread(call, statuses)
    return {"pipelines": [as_fields(each) for each in found]}


async def metrics(call: Call) -> Response:
    content = await page(metrics_of(await in_thread(call, statuses)))
    return Response(content, headers={"Content-Type": CONTENT_TYPE})


async def describe(call: Call) -> dict[str, Any]:
    [found] = await in_thread(call, partial(statuses, name=call["pipeline"]))
    return as_fields(found)


async def pause(call: Call) -> dict[str, Any]:
    return await _pause(call, wanted=True)


async def resume(call: Call) -> dict[str, Any]:
    return await _pause(call, wanted=False)


async def _pause(call: Call, *, wanted: bool) -> dict[str, Any]:
    name = call["pipeline"]
    progress = await in_thread(call, lambda cluster: store.pause(cluster, name, wanted=wanted))
    return {"pipeline": name, "paused": progress.paused}


async def reset(call: Call) -> dict[str, Any]:
    name, to = call["pipeline"], call["to"] or "earliest"
    start = parse_number(to) or to
    if start not in ("earliest", "latest") and not isinstance(start, int):
        raise InvalidArgument(
            f"to must be earliest, latest or a position from 1 on, not {shown(to)}"
        )
    same = bool(call["same_output"])
    progress = await in_thread(
        call, lambda cluster: store.reset(cluster, name, start, same_output=same)
    )
    return {
        "pipeline": name,
        "positions": dict(progress.positions),
        "version": progress.version,
    }


async def list_letters(call: Call) -> dict[str, Any]:
    read = partial(dead_letters, pipeline=call["pipeline"], count_max=call["limit"])
    found = await in_thread(call, lambda cluster: list(read(cluster)))
    return {"dead_letters": [each | bytes_field("value", each.pop("value")) for each in found]}


ROUTES: Final = (
    Route("GET", "/v1/pipelines", "List pipelines.", list_all, command="loom pipeline list"),
    Route(
        "GET",
        "/metrics",
        "Return metrics of all pipelines, for Prometheus.",
        metrics,
        answer="Metrics in the text format.",
        answer_type="text/plain",
    ),
    Route(
        "GET",
        "/v1/pipelines/{pipeline}",
        "Show the site, the progress and the lag of a pipeline.",
        describe,
        (NAME,),
        command="loom pipeline status",
    ),
    Route(
        "GET",
        "/v1/pipelines/{pipeline}/dead-letters",
        "Show records that a pipeline could not process, and why.",
        list_letters,
        (NAME, Parameter("limit", "The newest so many.", LETTERS, default=100)),
        command="loom pipeline dead-letters list",
    ),
    Route(
        "POST",
        "/v1/pipelines/{pipeline}/pause",
        "Start no new unit until the pipeline is resumed.",
        pause,
        (NAME,),
        command="loom pipeline pause",
    ),
    Route(
        "POST",
        "/v1/pipelines/{pipeline}/resume",
        "Continue after a pause.",
        resume,
        (NAME,),
        command="loom pipeline resume",
    ),
    Route(
        "POST",
        "/v1/pipelines/{pipeline}/reset",
        "Restart a pipeline at another position, without state.",
        reset,
        (
            NAME,
            in_body("to", "earliest, latest or the first position to process.", TEXT),
            in_body("same_output", "Keep writing to the current version of the output.", FLAG),
        ),
        command="loom pipeline reset",
    ),
)
