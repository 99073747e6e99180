"""`loom log …`: what the cluster holds, and how to change it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from loomlog.cli.archives import print_archives
from loomlog.cli.changes import say
from loomlog.cli.connection import connected
from loomlog.cli.failures import UsageError
from loomlog.cli.output import (
    as_fields,
    print_epochs,
    print_json,
    print_logs,
    print_segments,
    print_streams,
)
from loomlog.errors import Unavailable

if TYPE_CHECKING:
    from loomlog import Cluster, LogInfo


async def create(
    address: str,
    name: str,
    *,
    protocol: str,
    streams: int,
    replicas: int,
    nodeset: int | None,
    retention: str | None,
    as_json: bool,
) -> None:
    async with connected(address) as cluster:
        log = await cluster.create_log(
            name, protocol, streams, replicas, nodeset=nodeset, retention=retention
        )
        if as_json:
            print_json(as_fields(await log.describe()))
            return
    kept = f", entries stay for {retention}" if retention else ""
    lies = f", on any of {nodeset} nodes" if nodeset else ""
    print(
        f"created {name}: {protocol}, streams: {streams}, replicas of each: {replicas}{lies}{kept}"
    )


async def list_all(address: str, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        logs = await cluster.logs()
    if as_json:
        print_json([as_fields(info) for info in logs])
    elif logs:
        print_logs(logs)
    else:
        print("no logs yet: make one with `loom log create NAME`")


async def describe(address: str, name: str, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        log = cluster.log(name)
        info, archive = await _as_far_as_known(cluster, name), await log.archive()
    if as_json:
        print_json(as_fields(info) | {"archive": archive and asdict(archive)})
        return
    print_logs([info])
    print_segments(info)
    print_streams([info])
    print_epochs(info)
    if archive is not None:
        print_archives({name: archive})


async def _as_far_as_known(cluster: Cluster, name: str) -> LogInfo:
    """Where a log ends cannot always be found out: what is the matter with it is shown even so."""
    try:
        return await cluster.log(name).describe()
    except Unavailable as error:
        for info in await cluster.logs():
            if info.name == name:
                print(f"it may end further on than is shown: {error}", file=sys.stderr)
                return info
        raise


async def switch(
    address: str,
    name: str,
    *,
    protocol: str | None,
    streams: int | None,
    replicas: int | None,
    nodeset: int | None,
    as_json: bool,
) -> None:
    async with connected(address) as cluster:
        change = await cluster.switch_log(
            name, protocol=protocol, streams=streams, replicas=replicas, nodeset=nodeset
        )
    say(change, as_json=as_json)


async def set_retention(address: str, name: str, retention: str | None, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        info = await cluster.log(name).set_retention(retention)
    if as_json:
        print_json({"log": name, "retention_s": info.retention_s})
    elif retention:
        print(f"entries of {name} stay for {retention} from now on")
    else:
        print(f"entries of {name} stay for ever from now on")


async def find_time(address: str, name: str, moment: datetime, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        log = cluster.log(name)
        position = await log.find_time(moment)
        found = position <= await log.tail()
    if as_json:
        print_json({"log": name, "time": moment.isoformat(), "position": position, "found": found})
    elif found:
        print(f"{moment.isoformat()} begins in {name} at {position}")
    else:
        print(f"{name} has nothing from {moment.isoformat()} on: it would begin at {position}")


async def trim(address: str, name: str, position: int, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        log = cluster.log(name)
        await log.trim(position)
        head = await log.head()
    if as_json:
        print_json({"log": name, "head": head})
    else:
        print(f"trimmed {name}: its first entry is now at {head}")


async def delete(address: str, name: str, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        await cluster.delete_log(name)
    if as_json:
        print_json({"deleted": name})
    else:
        print(f"deleted {name}")


def moment(text: str) -> datetime:
    """As ISO 8601 has it; in UTC unless it says so."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time: write it as 2026-11-16T03:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
