"""Log streams: seal, move, scrub."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final

from loomlog.client.cluster import Cluster
from loomlog.client.operator_results import Change
from loomlog.console.api.records import LOG
from loomlog.console.route import (
    FLAG,
    NUMBER,
    NUMBER_OR_0,
    NUMBERS,
    Call,
    Handler,
    Parameter,
    Route,
    in_body,
    in_path,
)

STREAM: Final = in_path("stream", "Number of the log stream.", NUMBER)
_DONE: Final = "What was done, and what happens next."


async def describe(call: Call) -> dict[str, Any]:
    return asdict(await call.cluster.describe_stream(call["stream"]))


async def add(call: Call) -> dict[str, Any]:
    return asdict(await call.cluster.add_stream(call["log"], call["nodes"] or ()))


def _change(
    name: str,
    summary: str,
    change: Callable[[Cluster, Call], Awaitable[Change]],
    *parameters: Parameter,
    command: str = "",
) -> Route:
    """Return the route of a change to one stream."""

    async def handle(call: Call) -> dict[str, Any]:
        return asdict(await change(call.cluster, call))

    handle.__name__ = name.replace("-", "_")
    handler: Handler = handle
    path = f"/v1/streams/{{stream}}/{name}"
    return Route(
        "POST",
        path,
        summary,
        handler,
        (STREAM, *parameters),
        command=command or f"loom stream {name}",
        answer=_DONE,
    )


def _node(name: str, text: str, *, required: bool = True) -> Parameter:
    return in_body(name, text, NUMBER, required=required)


async def remove(call: Call) -> dict[str, Any]:
    change = call.cluster.remove_stream(call["stream"], call["nodes"] or (), call["part"])
    return asdict(await change)


ROUTES: Final = (
    Route(
        "POST",
        "/v1/logs/{log}/streams",
        "Add a stream to a log, or a part or nodes to its stream: see `loom stream add`.",
        add,
        (LOG, in_body("nodes", "Where its replicas are, the primary first.", NUMBERS)),
        command="loom stream add",
        answer="stream: its number.",
    ),
    Route(
        "GET",
        "/v1/streams/{stream}",
        "Describe a stream and each of its replicas, with their disks.",
        describe,
        (STREAM,),
        command="loom stream describe",
    ),
    Route(
        "DELETE",
        "/v1/streams/{stream}",
        "Let a stream, a part or nodes of it take no more appends; its entries stay readable.",
        remove,
        (
            STREAM,
            Parameter(
                "nodes",
                "That store no new entries of a stream that may be on any, as 4,5.",
                NUMBERS,
            ),
            Parameter("part", "Of a stream that has several: the one that goes.", NUMBER_OR_0),
        ),
        command="loom stream remove",
        answer=_DONE,
    ),
    _change(
        "seal",
        "Stop appends to a stream until it is unsealed; it stays readable.",
        lambda cluster, call: cluster.seal_stream(call["stream"]),
    ),
    _change(
        "unseal",
        "Allow appends to a sealed stream again.",
        lambda cluster, call: cluster.unseal_stream(call["stream"]),
    ),
    _change(
        "move",
        "Move a replica to another node.",
        lambda cluster, call: cluster.move_stream(
            call["stream"], call["from_node"], call["to_node"], call["part"] or 0
        ),
        _node("from_node", "The node that has it."),
        _node("to_node", "The node that gets it; without: the best one.", required=False),
        in_body("part", "Of a stream that has several.", NUMBER_OR_0),
    ),
    _change(
        "renew",
        "Store new entries on the nodes that are best now.",
        lambda cluster, call: cluster.renew_stream(call["stream"]),
        command="loom rebalance",
    ),
    _change(
        "primary",
        "Choose the node that appends go to first.",
        lambda cluster, call: cluster.set_primary(call["stream"], call["node"], call["part"] or 0),
        _node("node", "The node; without: any may be, which takes a choice back.", required=False),
        in_body("part", "Of a stream that has several.", NUMBER_OR_0),
    ),
    _change(
        "sync",
        "Copy what a replica lacks from another.",
        lambda cluster, call: cluster.sync_replica(
            call["stream"], call["from_node"], call["to_node"], call["part"] or 0
        ),
        _node("from_node", "The node that has it."),
        _node("to_node", "The node that lacks it."),
        in_body("part", "Of a stream that has several.", NUMBER_OR_0),
    ),
    _change(
        "unregister",
        "Remove a replica from the stream; its data stays on the node's disk.",
        lambda cluster, call: cluster.unregister_replica(call["stream"], call["node"]),
        _node("node", "The node."),
    ),
    _change(
        "add-replica",
        "Add a replica.",
        lambda cluster, call: cluster.add_replica(call["stream"], call["node"]),
        _node("node", "The node that gets it; without: the best one.", required=False),
    ),
    _change(
        "scrub",
        "Check all copies of a stream, and repair what is corrupt or missing.",
        lambda cluster, call: cluster.scrub_stream(
            call["stream"], tell_only=bool(call["tell_only"])
        ),
        in_body("tell_only", "Only report the progress.", FLAG),
    ),
)
