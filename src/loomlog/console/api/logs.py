"""Logs: list, create, describe, switch, trim, delete; checkpoints of their readers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from loomlog import protocol_names
from loomlog.client.cluster import Cluster
from loomlog.client.groups.group import GroupInfo
from loomlog.client.kv.checkpoints import CheckpointInfo
from loomlog.client.log import Log
from loomlog.console.api.pipelines import in_thread
from loomlog.console.api.records import LOG, first_position
from loomlog.console.entries import parse_moment
from loomlog.console.route import (
    COUNT,
    FLAG,
    NUMBER,
    NUMBER_OR_0,
    TEXT,
    Call,
    Parameter,
    Route,
    in_body,
    in_path,
)
from loomlog.errors import InvalidArgument, LoomError, NotFound
from loomlog.spark import archive_job
from loomlog.wire.info import LogInfo

NAME: Final = in_path("name", "Name of the checkpoint.")
GROUP: Final = in_path("group", "Name of the group.")
PROTOCOL: Final = in_body("protocol", "The protocol of the log.")
SETTINGS: Final = (
    PROTOCOL,
    in_body("streams", "Log streams: more give more bandwidth.", COUNT),
    in_body("replicas", "Copies of each entry.", COUNT),
    in_body("min_replicas", "Appends continue with so many while nodes are away.", COUNT),
    in_body("nodeset", "The number of nodes that hold the log, if any of them may.", COUNT),
    in_body("compression", "How clients compress batches: none, lz4 or zstd."),
)
RETENTION: Final = (
    in_body("retention", "Entries older than this may be deleted: 12h, 7d."),
    in_body("retention_bytes", "The newest entries of this size stay: 500M, 10G."),
)


async def list_all(call: Call) -> dict[str, Any]:
    logs = await call.cluster.logs()
    own = [log for log in logs if call["all"] or not is_of_system(log)]
    return {"logs": [asdict(log) for log in own]}


def is_of_system(log: LogInfo) -> bool:
    """Return whether a log was made by the system: for staged rows, or as its own."""
    return log.staging_for is not None or log.name.startswith("loomlog.")


async def create(call: Call) -> dict[str, Any]:
    log = await call.cluster.create_log(
        call["name"],
        call["protocol"] or protocol_names.DEFAULT,
        call["streams"] or 1,
        call["replicas"] or 3,
        min_replicas=call["min_replicas"],
        nodeset=call["nodeset"],
        retention=call["retention"],
        retention_bytes=call["retention_bytes"],
        compression=call["compression"] or "none",
    )
    return asdict(await log.describe())


async def describe(call: Call) -> dict[str, Any]:
    return asdict(await call.cluster.log(call["log"]).describe())


async def delete(call: Call) -> dict[str, Any]:
    await call.cluster.delete_log(call["log"])
    return {"deleted": call["log"]}


async def trim(call: Call) -> dict[str, Any]:
    log = call.cluster.log(call["log"])
    await log.trim(call["position"])
    return {"log": log.name, "head": await log.head()}


async def switch(call: Call) -> dict[str, Any]:
    settings = {each.name: call[each.name] for each in SETTINGS}
    if all(value is None for value in settings.values()):
        raise InvalidArgument(f"give one of {', '.join(settings)}: nothing would change")
    return asdict(await call.cluster.switch_log(call["log"], **settings))


async def set_retention(call: Call) -> dict[str, Any]:
    if not call.fields:
        names = ", ".join(each.name for each in RETENTION)
        raise InvalidArgument(f"give one of {names}, with null for what has no limit")
    info = await call.cluster.log(call["log"]).set_retention(
        call["retention"], retention_bytes=call["retention_bytes"]
    )
    return {
        "log": info.name,
        "retention_s": info.retention_s,
        "retention_bytes": info.retention_bytes,
    }


async def find_time(call: Call) -> dict[str, Any]:
    try:
        moment = parse_moment(call["time"])
    except ValueError:
        raise InvalidArgument(
            f"time must be a time such as 2026-11-16T03:00Z, not {call['time'][:100]!r}"
        ) from None
    log = call.cluster.log(call["log"])
    position = await log.find_time(moment)
    return {"position": position, "found": position <= await log.tail()}


async def scrub(call: Call) -> dict[str, Any]:
    return asdict(await call.cluster.scrub_log(call["log"], tell_only=call["tell_only"]))


async def archive(call: Call) -> dict[str, Any]:
    info = await call.cluster.log(call["log"]).archive()
    if info is None:
        raise NotFound(f"log {call['log']!r} has no archive: see `loom archive run`")
    return asdict(info)


async def forget_archive(call: Call) -> dict[str, Any]:
    name = call["log"]
    info = await in_thread(call, lambda cluster: archive_job.forget(cluster, name))
    return {"log": name, "location": info.location}


async def list_streams(call: Call) -> dict[str, Any]:
    info = await call.cluster.log(call["log"]).describe()
    return {"streams": [asdict(stream) for stream in info.streams]}


# ---- checkpoints


async def list_checkpoints(call: Call) -> dict[str, Any]:
    return {"checkpoints": await checkpoints_of(call.cluster.log(call["log"]))}


async def list_all_checkpoints(call: Call) -> dict[str, Any]:
    return {"checkpoints": await all_checkpoints(call.cluster)}


async def all_checkpoints(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the checkpoints of all logs that the caller may see, the furthest behind first."""
    found: list[dict[str, Any]] = []
    for log in await cluster.logs():
        if not is_of_system(log):
            try:
                found += await checkpoints_of(cluster.log(log.name))
            except NotFound:
                continue  # deleted meanwhile
    return sorted(found, key=lambda each: -(each["behind"] or 0))


async def checkpoints_of(log: Log) -> list[dict[str, Any]]:
    checkpoints = await log.checkpoints()
    tail = await _tail(log) if checkpoints else None
    return [_checkpoint(log.name, name, info, tail) for name, info in checkpoints.items()]


async def _tail(log: Log) -> int | None:
    try:
        return await log.tail()
    except LoomError:
        return None  # it cannot be found now


def _checkpoint(log: str, name: str, info: CheckpointInfo, tail: int | None) -> dict[str, Any]:
    return {
        "log": log,
        "name": name,
        "position": info.position,
        "changed": info.changed.isoformat(),
        "tail": tail,
        "behind": None if tail is None else max(0, tail - info.position),
    }


async def get_checkpoint(call: Call) -> dict[str, Any]:
    position = await call.cluster.log(call["log"]).checkpoint(call["name"]).get()
    if position is None:
        raise NotFound(f"log {call['log']!r} has no checkpoint {call['name']!r}")
    return {"log": call["log"], "name": call["name"], "position": position}


async def set_checkpoint(call: Call) -> dict[str, Any]:
    checkpoint = call.cluster.log(call["log"]).checkpoint(call["name"])
    position = await checkpoint.set(call["position"], back=bool(call["back"]))
    return {"log": call["log"], "name": call["name"], "position": position}


async def delete_checkpoint(call: Call) -> dict[str, Any]:
    await get_checkpoint(call)  # one that is not there is a mistake of the caller
    await call.cluster.log(call["log"]).checkpoint(call["name"]).delete()
    return {"deleted": call["name"]}


# ---- consumer groups


async def list_groups(call: Call) -> dict[str, Any]:
    groups = (await call.cluster.log(call["log"]).groups()).values()
    return {"groups": [group_fields(call["log"], group) for group in groups]}


def group_fields(log: str, group: GroupInfo) -> dict[str, Any]:
    return {"log": log, **asdict(group), "position": group.position, "behind": group.behind}


async def describe_group(call: Call) -> dict[str, Any]:
    group = await call.cluster.log(call["log"]).group(call["group"]).describe()
    return group_fields(call["log"], group)


async def reset_group(call: Call) -> dict[str, Any]:
    log = call.cluster.log(call["log"])
    start = await first_position(log, call["to"])
    return group_fields(log.name, await log.group(call["group"]).reset(start))


async def delete_group(call: Call) -> dict[str, Any]:
    await call.cluster.log(call["log"]).group(call["group"]).delete()
    return {"deleted": call["group"]}


ROUTES: Final = (
    Route(
        "GET",
        "/v1/logs",
        "List logs.",
        list_all,
        (Parameter("all", "Also staging logs and those of the system.", FLAG, default=False),),
        command="loom log list",
        answer="logs, with their segments and streams.",
    ),
    Route(
        "POST",
        "/v1/logs",
        "Create a log.",
        create,
        (in_body("name", "Name of the log.", required=True), *SETTINGS, *RETENTION),
        command="loom log create",
        answer="The log.",
    ),
    Route(
        "GET",
        "/v1/logs/{log}",
        "Describe a log.",
        describe,
        (LOG,),
        command="loom log describe",
        answer="The log, with its segments and streams.",
    ),
    Route(
        "DELETE",
        "/v1/logs/{log}",
        "Delete a log and all its entries.",
        delete,
        (LOG,),
        command="loom log delete",
    ),
    Route(
        "POST",
        "/v1/logs/{log}/trim",
        "Delete all entries up to and including a position.",
        trim,
        (LOG, in_body("position", "The last one to delete.", NUMBER, required=True)),
        command="loom log trim",
        answer="head: the first position that is left.",
    ),
    Route(
        "POST",
        "/v1/logs/{log}/switch",
        "Switch a log to other settings while it is in use.",
        switch,
        (LOG, *SETTINGS),
        command="loom log switch",
        answer="What was done, and what happens next.",
    ),
    Route(
        "PUT",
        "/v1/logs/{log}/retention",
        "Change how long and how many entries stay; what is left out, or null: forever, all.",
        set_retention,
        (LOG, *RETENTION),
        command="loom log retention",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/find-time",
        "Find the first position of a time, by the writers' clocks.",
        find_time,
        (LOG, Parameter("time", "As 2026-11-16T03:00Z.", TEXT, required=True)),
        command="loom log find-time",
        answer="position, and whether there is an entry (found).",
    ),
    Route(
        "POST",
        "/v1/logs/{log}/scrub",
        "Check all copies of a log, and repair what is corrupt or missing.",
        scrub,
        (LOG, in_body("tell_only", "Only report the progress.", FLAG)),
        command="loom log scrub",
        answer="What was done, and the progress on each node (scrubs).",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/streams",
        "List the log streams of a log.",
        list_streams,
        (LOG,),
        command="loom stream list",
    ),
    Route(
        "DELETE",
        "/v1/logs/{log}/archive",
        "End the archive of a log; its files stay.",
        forget_archive,
        (LOG,),
        command="loom archive forget",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/archive",
        "Describe the archive of a log.",
        archive,
        (LOG,),
        command="loom archive status",
    ),
    Route(
        "GET",
        "/v1/checkpoints",
        "List the checkpoints of all logs, the furthest behind first.",
        list_all_checkpoints,
        answer="checkpoints, with how many positions they are behind.",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/checkpoints",
        "List the checkpoints of a log's readers.",
        list_checkpoints,
        (LOG,),
        command="loom checkpoint list",
        answer="checkpoints, with how many positions they are behind.",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/checkpoints/{name}",
        "Get the last position that a reader has processed.",
        get_checkpoint,
        (LOG, NAME),
    ),
    Route(
        "PUT",
        "/v1/logs/{log}/checkpoints/{name}",
        "Advance a checkpoint; a lower position changes nothing, unless back is true.",
        set_checkpoint,
        (
            LOG,
            NAME,
            in_body("position", "The last one processed.", NUMBER_OR_0, required=True),
            in_body("back", "Allow a lower position.", FLAG),
        ),
        command="loom checkpoint set",
        answer="position: where the checkpoint is now.",
    ),
    Route(
        "DELETE",
        "/v1/logs/{log}/checkpoints/{name}",
        "Delete a checkpoint.",
        delete_checkpoint,
        (LOG, NAME),
        command="loom checkpoint delete",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/groups",
        "List the consumer groups of a log.",
        list_groups,
        (LOG,),
        command="loom group list",
        answer="groups, with their members, and the position of each shard.",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/groups/{group}",
        "Describe a consumer group.",
        describe_group,
        (LOG, GROUP),
        command="loom group describe",
    ),
    Route(
        "POST",
        "/v1/logs/{log}/groups/{group}/reset",
        "Let a group without members begin somewhere else.",
        reset_group,
        (LOG, GROUP, in_body("to", "As from of records.", required=True)),
        command="loom group reset",
    ),
    Route(
        "DELETE",
        "/v1/logs/{log}/groups/{group}",
        "Delete a group without members, with its positions.",
        delete_group,
        (LOG, GROUP),
        command="loom group delete",
    ),
)
