"""`loom log …`: what the cluster holds, and how to change it."""

from __future__ import annotations

from dataclasses import asdict

from loomlog.cli.archives import print_archives
from loomlog.cli.changes import say
from loomlog.cli.connection import connected
from loomlog.cli.output import as_fields, print_json, print_logs, print_segments, print_streams


async def create(
    address: str, name: str, *, protocol: str, streams: int, replicas: int, as_json: bool
) -> None:
    async with connected(address) as cluster:
        log = await cluster.create_log(name, protocol=protocol, streams=streams, replicas=replicas)
        if as_json:
            print_json(as_fields(await log.describe()))
        else:
            print(f"created {name}: {protocol}, streams: {streams}, replicas of each: {replicas}")


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
        info, archive = await log.describe(), await log.archive()
    if as_json:
        print_json(as_fields(info) | {"archive": archive and asdict(archive)})
        return
    print_logs([info])
    print_segments(info)
    print_streams([info])
    if archive is not None:
        print_archives({name: archive})


async def switch(
    address: str,
    name: str,
    *,
    protocol: str | None,
    streams: int | None,
    replicas: int | None,
    as_json: bool,
) -> None:
    async with connected(address) as cluster:
        change = await cluster.switch_log(
            name, protocol=protocol, streams=streams, replicas=replicas
        )
    say(change, as_json=as_json)


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
