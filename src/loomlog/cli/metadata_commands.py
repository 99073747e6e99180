"""`loom metadata …`: names, options and help; the work is in metadata.py and rebuilding.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loomlog.cli.etcd_options import (
    ETCD_PREFIX,
    Etcd,
    EtcdCa,
    EtcdCert,
    EtcdKey,
    EtcdPrefix,
    EtcdUser,
    Peers,
)
from loomlog.cli.options import CLUSTER, Cluster, Json, Yes

app = typer.Typer(help="Metadata repositories: list, add, remove; move and rescue metadata.")

Member = Annotated[
    int, typer.Argument(metavar="N", min=1, help="Number of the metadata repository.")
]
File = Annotated[Path, typer.Argument(metavar="FILE")]


@app.command("list")
def list_members(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List all metadata repositories."""
    from loomlog.cli import event_loop, metadata

    event_loop.run(metadata.list_all(cluster, as_json=as_json))


@app.command()
def add(
    member: Member,
    address: Annotated[str, typer.Argument(metavar="ADDR", help="Where it runs already.")],
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Make a vmr that runs one of the metadata repositories."""
    from loomlog.cli import event_loop, metadata

    event_loop.run(metadata.add(cluster, member, address, as_json=as_json))


@app.command()
def remove(
    member: Member, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Have one metadata repository less."""
    from loomlog.cli import confirm, event_loop, metadata

    confirm.ask(lambda: event_loop.run(metadata.remove_question(cluster, member)), yes=yes)
    event_loop.run(metadata.remove(cluster, member, as_json=as_json))


@app.command("export")
def export_metadata(
    file: File,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="DIR",
            help="Of a vmr that is stopped; with --etcd those of a majority of all vmr.",
        ),
    ],
    etcd: Etcd = "",
    etcd_prefix: EtcdPrefix = ETCD_PREFIX,
    etcd_user: EtcdUser = "",
    etcd_ca: EtcdCa = "",
    etcd_cert: EtcdCert = "",
    etcd_key: EtcdKey = "",
    as_json: Json = False,
) -> None:
    """Write all metadata of a cluster into a file. Its vmr must be stopped."""
    from loomlog.cli import event_loop, metadata
    from loomlog.cli.etcd_options import etcd_settings

    settings = None
    if etcd:
        settings = etcd_settings(etcd, etcd_prefix, etcd_user, etcd_ca, etcd_cert, etcd_key)
    event_loop.run(metadata.export(file, data, settings, as_json=as_json))


@app.command("import")
def import_metadata(
    file: File,
    data: Annotated[
        str, typer.Option(metavar="DIR", show_default=False, help="For one vmr: a new directory.")
    ] = "",
    etcd: Etcd = "",
    peers: Peers = "",
    etcd_prefix: EtcdPrefix = ETCD_PREFIX,
    etcd_user: EtcdUser = "",
    etcd_ca: EtcdCa = "",
    etcd_cert: EtcdCert = "",
    etcd_key: EtcdKey = "",
    as_json: Json = False,
) -> None:
    """Make metadata from such a file: for one vmr (--data), or for several (--etcd, --peers)."""
    from loomlog.cli import event_loop, metadata
    from loomlog.cli.etcd_options import etcd_settings, parse_peers
    from loomlog.cli.failures import UsageError

    if bool(data) == bool(etcd) or bool(peers) != bool(etcd):
        raise UsageError("give --data for one vmr, or --etcd and --peers for several")
    if data:
        event_loop.run(metadata.import_alone(file, data, as_json=as_json))
        return
    settings = etcd_settings(etcd, etcd_prefix, etcd_user, etcd_ca, etcd_cert, etcd_key)
    event_loop.run(metadata.import_several(file, settings, parse_peers(peers), as_json=as_json))


@app.command()
def rebuild(
    data: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="Of the vmr that lost its rounds, if it is alone.",
        ),
    ] = "",
    listen: Annotated[
        str, typer.Option(metavar="ADDR", help="Where the vmr was: nodes come there.")
    ] = CLUSTER,
    without: Annotated[
        list[int] | None,
        typer.Option(
            metavar="NODE", min=1, help="A storage node that is lost for good; repeatable."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="How long to wait for the nodes.")
    ] = 60.0,
    etcd: Etcd = "",
    etcd_prefix: EtcdPrefix = ETCD_PREFIX,
    etcd_user: EtcdUser = "",
    etcd_ca: EtcdCa = "",
    etcd_cert: EtcdCert = "",
    etcd_key: EtcdKey = "",
    as_json: Json = False,
) -> None:
    """Last resort, all round logs are lost: restore positions from the storage nodes.

    Nothing is guessed: it prints what cannot be known, and changes nothing unless all is certain.
    """
    from loomlog.cli import event_loop, rebuilding
    from loomlog.cli.etcd_options import etcd_settings
    from loomlog.cli.failures import UsageError

    if bool(data) == bool(etcd):
        raise UsageError("give --data for one vmr, or --etcd for several")
    how = rebuilding.How(listen, tuple(without or ()), timeout, as_json)
    if data:
        event_loop.run(rebuilding.alone(data, how))
        return
    settings = etcd_settings(etcd, etcd_prefix, etcd_user, etcd_ca, etcd_cert, etcd_key)
    event_loop.run(rebuilding.several(settings, how))
