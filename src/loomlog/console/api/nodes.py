"""The cluster: its status, its storage nodes and its metadata repositories."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from loomlog.client.arguments import DURATION_UNITS, ago
from loomlog.client.cluster import Cluster
from loomlog.client.diagnosis import addresses_of, ask, diagnose
from loomlog.client.operator_results import Change
from loomlog.console.entries import parse_moment
from loomlog.console.route import (
    FLAG,
    NUMBER,
    NUMBER_OR_0,
    NUMBERS,
    Call,
    Parameter,
    Route,
    in_body,
    in_path,
)
from loomlog.errors import Busy, InvalidArgument, LoomError, NotFound, Retryable
from loomlog.types import NodeId
from loomlog.wire.info import NodeInfo

MOVES_AT_ONCE: Final = 4  # as `loom rebalance`

NODE: Final = in_path("node", "Number of the storage node.", NUMBER)
MEMBER: Final = in_path("member", "Number of the metadata repository.", NUMBER)
VOLUME: Final = in_body("volume", "Only this volume of the node.")


async def status(call: Call) -> dict[str, Any]:
    return asdict(await call.cluster.status())


async def events(call: Call) -> dict[str, Any]:
    since = None if call["since"] is None else _since(call["since"])
    return {"events": [asdict(e) for e in await call.cluster.events(since, after=call["after"])]}


def _since(text: str) -> datetime:
    if text[-1:] in DURATION_UNITS:
        return ago(text)
    try:
        return parse_moment(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is no time: write 2026-11-16T03:00, or 1h for an hour ago"
        ) from None


async def doctor(call: Call) -> dict[str, Any]:
    found = await call.cluster.status()
    tls: str = call.request.app.state.connector.tls
    answers = await ask(list(addresses_of(found)), tls=tls, token=call.request.state.token)
    findings = diagnose(found, answers)
    return {"findings": [asdict(each) for each in findings]}


async def list_all(call: Call) -> dict[str, Any]:
    return {"nodes": [asdict(node) for node in (await call.cluster.status()).nodes]}


async def describe(call: Call) -> dict[str, Any]:
    return asdict(await _node(call.cluster, call["node"]))


async def _node(cluster: Cluster, number: NodeId) -> NodeInfo:
    for node in (await cluster.status()).nodes:
        if node.id == number:
            return node
    raise NotFound(f"there is no node {number}")


async def check(call: Call) -> dict[str, Any]:
    outage = await call.cluster.check_nodes(*(call["nodes"] or ()), location=call["location"])
    return asdict(outage) | {"stops": outage.stops}


async def drain(call: Call) -> dict[str, Any]:
    node, volume = call["node"], call["volume"]
    cluster = call.cluster
    return _said(await (cluster.drain_volume(node, volume) if volume else cluster.drain_node(node)))


async def undrain(call: Call) -> dict[str, Any]:
    node, volume = call["node"], call["volume"]
    cluster = call.cluster
    return _said(
        await (cluster.undrain_volume(node, volume) if volume else cluster.undrain_node(node))
    )


async def remove(call: Call) -> dict[str, Any]:
    return _said(await call.cluster.remove_node(call["node"], call["force"]))


async def replace(call: Call) -> dict[str, Any]:
    return _said(await call.cluster.replace_node(call["node"]))


async def cleanup(call: Call) -> dict[str, Any]:
    return _said(await call.cluster.cleanup_node(call["node"]))


async def mark_unrecoverable(call: Call) -> dict[str, Any]:
    return _said(await call.cluster.mark_unrecoverable(call["node"]))


async def restart(call: Call) -> dict[str, Any]:
    return _said(await call.cluster.restart_node(call["node"], call["within_s"]))


def _said(change: Change) -> dict[str, Any]:
    return asdict(change)


async def rebuilds(call: Call) -> dict[str, Any]:
    return {"rebuilds": [asdict(each) for each in (await call.cluster.status()).rebuilds]}


# ---- load


async def plan_rebalance(call: Call) -> dict[str, Any]:
    return asdict(await call.cluster.plan_rebalance())


async def rebalance(call: Call) -> dict[str, Any]:
    """Begin the first moves of a plan, as many as may be under way at once."""
    plan = await call.cluster.plan_rebalance()
    begun: list[dict[str, Any]] = []
    skipped: list[str] = []
    for renewal in plan.renewals:
        try:
            await call.cluster.renew_stream(renewal.stream)
            begun.append(asdict(renewal))
        except LoomError as error:
            skipped.append(f"stream {renewal.stream} of {renewal.log}: {error}")
    moving = 0
    for move in plan.moves:
        if moving >= MOVES_AT_ONCE:
            break
        try:
            await call.cluster.move_stream(move.stream, move.from_node, move.to_node, move.part)
        except (Busy, Retryable):
            continue  # another replica of it is moved first
        except LoomError as error:
            skipped.append(f"stream {move.stream} of {move.log}: {error}")
        else:
            begun.append(asdict(move))
            moving += 1
    return {"begun": begun, "left": len(plan.moves) - moving, "skipped": skipped}


# ---- metadata repositories


async def list_metadata(call: Call) -> dict[str, Any]:
    return {"members": [asdict(each) for each in (await call.cluster.status()).members]}


async def add_metadata(call: Call) -> dict[str, Any]:
    return _said(await call.cluster.add_metadata(call["member"], call["address"]))


async def remove_metadata(call: Call) -> dict[str, Any]:
    return _said(await call.cluster.remove_metadata(call["member"]))


_DONE: Final = "What was done, and what happens next."

ROUTES: Final = (
    Route(
        "GET",
        "/v1/status",
        "The whole cluster: conditions, nodes, logs, metadata repositories.",
        status,
        command="loom status",
        answer="The status; without conditions, every acknowledged entry has all its copies.",
    ),
    Route(
        "GET",
        "/v1/events",
        "What happened in the cluster: nodes, epochs, seals, switches, conditions, actions.",
        events,
        (
            Parameter("since", "Only from this time on, as 2026-11-16T03:00Z, or 1h (ago)."),
            Parameter("after", "Only after the event with this id.", NUMBER_OR_0, default=0),
        ),
        command="loom events",
        answer="events, oldest first; to follow, ask again after the last id.",
    ),
    Route(
        "GET",
        "/v1/doctor",
        "Check servers, disks, clocks, versions and metadata from here.",
        doctor,
        command="loom doctor",
        answer="findings: ok, warning or problem, with what to do.",
    ),
    Route("GET", "/v1/nodes", "List storage nodes.", list_all, command="loom node list"),
    Route(
        "GET",
        "/v1/nodes/check",
        "Say what stopping nodes would cost; without any, what those cost that are away now.",
        check,
        (
            Parameter("nodes", "Their numbers, as 1,2.", NUMBERS),
            Parameter("location", "All nodes of a location, e.g. rack=a.", default=""),
        ),
        command="loom node check",
        answer="The logs that would be affected, and whether anything stops.",
    ),
    Route("GET", "/v1/nodes/{node}", "Describe a storage node.", describe, (NODE,)),
    Route(
        "POST",
        "/v1/nodes/{node}/drain",
        "Move everything away from a node, or from one of its volumes.",
        drain,
        (NODE, VOLUME),
        command="loom node drain",
        answer=_DONE,
    ),
    Route(
        "POST",
        "/v1/nodes/{node}/undrain",
        "Use a drained node, or a volume of it, again.",
        undrain,
        (NODE, VOLUME),
        command="loom node undrain",
        answer=_DONE,
    ),
    Route(
        "DELETE",
        "/v1/nodes/{node}",
        "Forget a node that is empty.",
        remove,
        (
            NODE,
            Parameter(
                "force", "Also a dead node that is not empty: it is lost.", FLAG, default=False
            ),
        ),
        command="loom node remove",
        answer=_DONE,
    ),
    Route(
        "POST",
        "/v1/nodes/{node}/replace",
        "Let an empty node take the number of one whose data is lost.",
        replace,
        (NODE,),
        command="loom node replace",
        answer=_DONE,
    ),
    Route(
        "POST",
        "/v1/nodes/{node}/cleanup",
        "Delete a node's data of streams that it is not a replica of.",
        cleanup,
        (NODE,),
        command="loom node cleanup",
        answer=_DONE,
    ),
    Route(
        "POST",
        "/v1/nodes/{node}/mark-unrecoverable",
        "Give up the data of a node that is away: entries without another copy are lost.",
        mark_unrecoverable,
        (NODE,),
        command="loom node mark-unrecoverable",
        answer=_DONE,
    ),
    Route(
        "POST",
        "/v1/nodes/{node}/restart",
        "Let a node hand over what it sequences, and do not replace it while it is restarted.",
        restart,
        (
            NODE,
            in_body(
                "within_s",
                "How long that may take; 0: it is not restarted after all.",
                {"type": "number", "minimum": 0, "maximum": 86_400},
                required=True,
            ),
        ),
        answer=_DONE,
    ),
    Route(
        "GET",
        "/v1/rebuilds",
        "Show how far copies are rebuilt that nodes lost, or that are drained.",
        rebuilds,
        command="loom node rebuild-status",
    ),
    Route(
        "GET",
        "/v1/rebalance",
        "Plan moves that spread the load evenly over the nodes.",
        plan_rebalance,
        command="loom rebalance --dry-run",
        answer="The plan; nothing is changed.",
    ),
    Route(
        "POST",
        "/v1/rebalance",
        "Plan, and begin the first moves. Repeat it when they are done, until none is left.",
        rebalance,
        answer="Moves that have begun, how many are left, and why others were skipped.",
    ),
    Route(
        "GET",
        "/v1/metadata",
        "List metadata repositories.",
        list_metadata,
        command="loom metadata list",
    ),
    Route(
        "PUT",
        "/v1/metadata/{member}",
        "Add a metadata repository that already runs.",
        add_metadata,
        (MEMBER, in_body("address", "Where it listens.", required=True)),
        command="loom metadata add",
        answer=_DONE,
    ),
    Route(
        "DELETE",
        "/v1/metadata/{member}",
        "Remove a metadata repository; stop its process afterwards.",
        remove_metadata,
        (MEMBER,),
        command="loom metadata remove",
        answer=_DONE,
    ),
)
