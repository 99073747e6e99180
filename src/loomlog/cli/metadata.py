"""`loom metadata …`: the metadata repositories of a cluster, and its metadata as a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from loomlog.cli import changes
from loomlog.cli.connection import connected
from loomlog.cli.failures import UsageError
from loomlog.cli.output import console, member_table, print_json
from loomlog.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from loomlog.config import EtcdSettings
    from loomlog.metadata.transfer import Dump


# ---- a cluster that runs


async def list_all(address: str, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        status = await cluster.status()
    if as_json:
        members = [asdict(member) for member in status.members]
        print_json({"leader_epoch": status.leader_epoch, "members": members})
    else:
        console().print(member_table(status))


async def add(address: str, member: int, where: str, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        changes.say(await cluster.add_metadata(member, where), as_json=as_json)


async def remove(address: str, member: int, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        changes.say(await cluster.remove_metadata(member), as_json=as_json)


async def remove_question(address: str, member: int) -> str | None:
    """Only what makes the next failure a standstill is worth a question."""
    async with connected(address) as cluster:
        members = (await cluster.status()).members
    if all(known.id != member for known in members):
        raise NotFound(f"there is no metadata repository {member}: `loom metadata list` shows them")
    left = len(members) - 1
    if left > 2:
        return None
    return f"With {left} metadata repositories left the cluster stops when one fails. Go on?"


# ---- a cluster that is stopped


async def export(
    file: Path, directories: Sequence[str], settings: EtcdSettings | None, *, as_json: bool
) -> None:
    _check_new(file)
    if settings is not None:
        from loomlog.metadata import replicated

        dump = await replicated.export(settings, directories)
    else:
        from loomlog.metadata import embedded

        if len(directories) != 1:
            raise UsageError("one --data is exported; several belong to one --etcd, give it, too")
        dump = await embedded.export(directories[0])
    _write(file, dump.encode())
    _say(dump, f"is in {file}", as_json=as_json)


async def import_alone(file: Path, directory: str, *, as_json: bool) -> None:
    from loomlog.metadata import embedded

    dump = _read(file)
    await embedded.fill(directory, dump)
    start = f"vmr start --cluster-id {dump.cluster_id} --data {directory}"
    _say(dump, f"is in {directory}; start it with `{start}`", as_json=as_json)


async def import_several(
    file: Path, settings: EtcdSettings, peers: Mapping[int, str], *, as_json: bool
) -> None:
    from loomlog.metadata import replicated

    dump = _read(file)
    await replicated.fill(settings, dump, peers)
    several = f"{len(peers)} vmr" if len(peers) > 1 else "vmr"
    _say(dump, f"is in etcd; start the {several}, each with an empty --data", as_json=as_json)


def _check_new(file: Path) -> None:
    if file.exists():
        raise AlreadyExists(f"{file} exists: give another name")


def _read(file: Path) -> Dump:
    from loomlog.metadata.transfer import Dump

    return Dump.decode(file.read_bytes(), str(file))


def _write(file: Path, content: bytes) -> None:
    """Whole and durable, or not at all. It holds the cluster's secrets: for its owner alone."""
    unfinished = file.with_name(f"{file.name}.part")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(fd)
    unfinished.rename(file)


def _say(dump: Dump, where: str, *, as_json: bool) -> None:
    logs = sum(key.startswith("log/") for key in dump.items)
    if as_json:
        print_json(
            {
                "cluster_id": dump.cluster_id,
                "entries": len(dump.items),
                "logs": logs,
                "rounds": len(dump.rounds),
                "leader_epoch": dump.epoch,
            }
        )
    else:
        print(f"metadata of cluster {dump.cluster_id} ({logs} logs) {where}")
