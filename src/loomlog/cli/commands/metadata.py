"""`loom metadata …`: the metadata repositories of a cluster; export and import of its metadata."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loomlog.cli.commands import rebuild
from loomlog.cli.console import changes
from loomlog.cli.console.command import command, connected_sync
from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import (
    CLUSTER,
    Cluster,
    Etcd,
    EtcdAccess,
    Json,
    Peers,
    Yes,
    parse_peers,
)
from loomlog.cli.console.output import console, member_table, print_json, say
from loomlog.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from loomlog import ClusterStatus
    from loomlog.metadata.offline.transfer import Dump

app = typer.Typer(help="Metadata repositories: list, add, remove; move and restore metadata.")

Member = Annotated[
    int, typer.Argument(metavar="N", min=1, help="Number of the metadata repository.")
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The exported metadata.")]


# ---- a running cluster


@app.command("list")
def list_all(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List all metadata repositories."""
    with connected_sync(cluster) as client:
        status = client.status()
    if as_json:
        members = [asdict(member) for member in status.members]
        print_json({"leader_epoch": status.leader_epoch, "members": members})
    else:
        console().print(member_table(status))


@app.command()
def add(
    member: Member,
    address: Annotated[
        str, typer.Argument(metavar="ADDR", help="Address at which it already runs.")
    ],
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Add a running vmr to the metadata repositories."""
    with connected_sync(cluster) as client:
        changes.say(client.add_metadata(member, address), as_json=as_json)


@app.command()
def remove(
    member: Member, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Remove a metadata repository."""
    with connected_sync(cluster) as client:
        changes.confirm(lambda: _remove_question(client.status(), member), yes=yes)
        changes.say(client.remove_metadata(member), as_json=as_json)


def _remove_question(status: ClusterStatus, member: int) -> str | None:
    """Return a question if the next failure would stop the cluster."""
    if all(each.id != member for each in status.members):
        raise NotFound(f"there is no metadata repository {member}: `loom metadata list` shows them")
    left = len(status.members) - 1
    if left > 2:
        return None
    return f"With {left} metadata repositories left the cluster stops when one fails. Continue?"


# ---- a stopped cluster


@command(app, "export")
async def export_metadata(
    file: File,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="DIR",
            help="Directory of a stopped vmr; with --etcd, those of a majority of all vmr.",
        ),
    ],
    etcd: Etcd = "",
    *,
    access: EtcdAccess,
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="Leave out damaged registers and leases."),
    ] = False,
    without_token_keys: Annotated[
        bool,
        typer.Option(
            "--without-token-keys",
            help="Leave out the keys that sign tokens, which invalidates all tokens.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Export all metadata of a cluster, including secrets, to a file. Its vmr must be stopped."""
    settings = access.settings(etcd) if etcd else None
    if file.exists():
        raise AlreadyExists(f"{file} exists: give another name")
    if settings is not None:
        from loomlog.metadata.offline import replicated

        dump = await replicated.export(settings, data, skip_damaged=skip_damaged)
    elif len(data) == 1:
        from loomlog.metadata.offline import embedded

        dump = await embedded.export(data[0], skip_damaged=skip_damaged)
    else:
        raise UsageError("several --data need --etcd; without it, give one --data")
    if without_token_keys:
        dump = dump.without_token_keys()
    _write(file, dump.encode())
    secrets = f"; keep it secret: it has {dump.secrets}"
    _say(dump, f"is in {file}{secrets}", as_json=as_json)


@command(app, "import")
async def import_metadata(
    file: File,
    data: Annotated[
        str, typer.Option(metavar="DIR", show_default=False, help="New directory, for one vmr.")
    ] = "",
    etcd: Etcd = "",
    peers: Peers = "",
    *,
    access: EtcdAccess,
    as_json: Json = False,
) -> None:
    """Import exported metadata, for one vmr (--data) or several (--etcd, --peers)."""
    if bool(data) == bool(etcd) or bool(peers) != bool(etcd):
        raise UsageError("give --data for one vmr, or --etcd and --peers for several")
    if data:
        from loomlog.metadata.offline import embedded

        dump = _read(file)
        await embedded.fill(data, dump)
        start = f"vmr start --cluster-id {dump.cluster_id} --data {data}"
        _say(dump, f"is in {data}; start it with `{start}`", as_json=as_json)
        return
    from loomlog.metadata.offline import replicated

    settings, members = access.settings(etcd), parse_peers(peers)
    dump = _read(file)
    await replicated.fill(settings, dump, members)
    several = f"{len(members)} vmr" if len(members) > 1 else "vmr"
    _say(dump, f"is in etcd; start the {several}, each with an empty --data", as_json=as_json)


command(app)(rebuild.catch_up)
command(app)(rebuild.rebuild)


def _read(file: Path) -> Dump:
    from loomlog.metadata.offline.transfer import Dump

    return Dump.decode(file.read_bytes(), str(file))


def _write(file: Path, content: bytes) -> None:
    """Write the file atomically and durably. It holds secrets, so only its owner may read it."""
    unfinished = file.with_name(f"{file.name}.part")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(fd)
    unfinished.rename(file)


def _say(dump: Dump, where: str, *, as_json: bool) -> None:
    logs = sum(key.startswith("log/") for key in dump.items)
    fields = {
        "cluster_id": dump.cluster_id,
        "entries": len(dump.items),
        "logs": logs,
        "rounds": len(dump.rounds),
        "leader_epoch": dump.epoch,
        "left_out": dump.left_out,
    }
    damaged = [f"{key} is damaged and was left out" for key in dump.left_out]
    summary = f"metadata of cluster {dump.cluster_id} ({logs} logs) {where}"
    say(fields, "\n".join([*damaged, summary]), as_json=as_json)
