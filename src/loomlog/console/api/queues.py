"""Work queues: take jobs, acknowledge them, give them back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from loomlog.client.queues.queue import Queue
from loomlog.client.queues.visits import JOBS_MAX
from loomlog.console.api.records import LOG
from loomlog.console.entries import entry_fields
from loomlog.console.route import NUMBER, NUMBERS, TEXT, Call, Route, in_body, in_path
from loomlog.limits import LEASE_TTL_S_MAX

NAME: Final = in_path("queue", "Name of the queue.")
RECEIPT: Final = in_body("receipt", "As it came with the jobs.", TEXT, required=True)
POSITIONS: Final = in_body("positions", "Of the jobs.", NUMBERS, required=True)
_SECONDS: Final = {"type": "number", "minimum": 1, "maximum": LEASE_TTL_S_MAX}


def _queue(call: Call, **options: Any) -> Queue:
    return call.cluster.log(call["log"]).queue(call["queue"], **options)


async def list_all(call: Call) -> dict[str, Any]:
    queues = await call.cluster.log(call["log"]).queues()
    return {"queues": [asdict(info) for info in queues.values()]}


async def describe(call: Call) -> dict[str, Any]:
    return asdict(await _queue(call).describe())


async def delete(call: Call) -> dict[str, Any]:
    await _queue(call).delete()
    return {"deleted": call["queue"]}


async def take(call: Call) -> dict[str, Any]:
    timeout_s, attempts_max = call["visibility_timeout_s"] or 30.0, call["attempts_max"] or 5
    queue = _queue(call, visibility_timeout_s=timeout_s, attempts_max=attempts_max)
    taken = await queue.visits.take(call["count"] or 1, call["member"] or "http")
    jobs = [entry_fields(job.entry) | {"attempts": job.attempts} for job in taken.jobs]
    return {"receipt": taken.receipt, "jobs": jobs}


async def ack(call: Call) -> dict[str, Any]:
    done = await _queue(call).visits.ack(call["receipt"], call["positions"])
    return {"acknowledged": done}


async def retry(call: Call) -> dict[str, Any]:
    await _queue(call).visits.retry(call["receipt"], call["positions"])
    return {"given_back": call["positions"]}


ROUTES: Final = (
    Route(
        "GET",
        "/v1/logs/{log}/queues",
        "List the work queues of a log.",
        list_all,
        (LOG,),
        command="loom queue list",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/queues/{queue}",
        "Show how far a work queue is, and its members.",
        describe,
        (LOG, NAME),
        command="loom queue describe",
    ),
    Route(
        "DELETE",
        "/v1/logs/{log}/queues/{queue}",
        "Delete a work queue that has no members.",
        delete,
        (LOG, NAME),
        command="loom queue delete",
    ),
    Route(
        "POST",
        "/v1/logs/{log}/queues/{queue}/take",
        "Take jobs; those that are not acknowledged in time are handed out again.",
        take,
        (
            LOG,
            NAME,
            in_body("count", "At most this many; 1 by default.", {**NUMBER, "maximum": JOBS_MAX}),
            in_body("visibility_timeout_s", "Seconds to acknowledge them; 30.", _SECONDS),
            in_body(
                "attempts_max",
                "After so many times an entry goes to the log LOG.dead-letters; 5.",
                {**NUMBER, "maximum": 1000},
            ),
            in_body("member", "What people see.", TEXT),
        ),
        answer="receipt, and jobs: entries with attempts; none if there are none now.",
    ),
    Route(
        "POST",
        "/v1/logs/{log}/queues/{queue}/ack",
        "Record that jobs are done.",
        ack,
        (LOG, NAME, RECEIPT, POSITIONS),
        answer="acknowledged: the positions of those that are done now.",
    ),
    Route(
        "POST",
        "/v1/logs/{log}/queues/{queue}/retry",
        "Give jobs back, to be taken again at once.",
        retry,
        (LOG, NAME, RECEIPT, POSITIONS),
    ),
)
