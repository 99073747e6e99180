"""`vmr`: a metadata repository as a process."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loomlog import limits
from loomlog.cli.console import failures
from loomlog.cli.console.command import command
from loomlog.cli.console.options import (
    Etcd,
    EtcdAccess,
    Peers,
    RepairOptions,
    parse_identity_limits,
    parse_peers,
)
from loomlog.cli.processes.audit_writer import Audited, own_addresses
from loomlog.cli.processes.server_process import (
    Advertise,
    Listen,
    ServerOptions,
    keep_private,
    serve,
)
from loomlog.net.address import is_loopback, split_address
from loomlog.net.credentials import server_file

if TYPE_CHECKING:
    from loomlog.metadata import MetadataRepository

app = typer.Typer(
    help="The metadata repository of a loomlog cluster.",
    add_completion=False,
    rich_markup_mode=None,
)


class StoreKind(StrEnum):
    """The kinds of metadata stores."""

    SQLITE = "sqlite"
    ETCD = "etcd"


@app.callback()
def vmr() -> None:
    """The metadata repository of a loomlog cluster."""


@command(app, variables="LOOM_VMR")
def start(
    cluster_id: Annotated[str, typer.Option(help="Id of the cluster.")],
    data: Annotated[str, typer.Option(metavar="DIR", help="Directory of the metadata.")],
    listen: Listen = "127.0.0.1:7400",
    advertise: Advertise = None,
    http: Annotated[
        str,
        typer.Option(metavar="ADDR|none", help="Address of /healthz, /readyz, /status, /metrics."),
    ] = "127.0.0.1:7480",
    store: Annotated[
        StoreKind, typer.Option(help="Metadata store: sqlite for a single vmr, etcd for several.")
    ] = StoreKind.SQLITE,
    member_id: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of this vmr in --peers.")
    ] = 1,
    peers: Peers = "",
    etcd: Etcd = "",
    *,
    access: EtcdAccess,
    leader_timeout: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="S", help="Longest silence of a leader before another vmr takes over."
        ),
    ] = limits.LEADER_SILENCE_S,
    repair: RepairOptions,
    retention_interval: Annotated[
        float,
        typer.Option(min=0.01, metavar="S", help="How often retention runs."),
    ] = limits.RETENTION_INTERVAL_S,
    server: ServerOptions,
) -> None:
    """Start a metadata repository; stop it with SIGTERM."""
    from loomlog.config import MetadataSettings
    from loomlog.metadata import MetadataRepository

    _check(store, etcd, peers)
    members = _peers(peers, member_id)
    _check_advertised(advertise, members.get(member_id))
    server.check_exposed(listen, *([http] if http != "none" else []))
    if etcd and not access.etcd_ca and not server.insecure:
        _check_etcd(etcd)
    server.set_up(f"vmr-{member_id}")
    keep_private(Path(data).glob("*"))
    repository = MetadataRepository(
        MetadataSettings(
            cluster_id=cluster_id,
            directory=data,
            listen=listen,
            advertise=advertise,
            http=None if http == "none" else http,
            failure_detection_s=repair.heartbeat_timeout,
            heartbeat_s=min(limits.HEARTBEAT_S, repair.heartbeat_timeout / 3),
            replace_after_s=repair.replace_after,
            rebuild_after_s=repair.rebuild_after,
            rebuild_bytes_per_s=int(repair.rebuild_rate * 1e6),
            sync_bytes_per_s=int(repair.sync_rate * 1e6),
            retention_interval_s=retention_interval,
            member_id=member_id,
            peers=members,
            leader_silence_s=leader_timeout,
            etcd=access.settings(etcd) if etcd else None,
            tls=server.tls,
            identity_limits=parse_identity_limits(server.identity_limit or []),
        )
    )
    _serve(repository, f"vmr-{member_id}", list(members.values()), _certificate(server, member_id))


def _certificate(server: ServerOptions, member_id: int) -> str:
    return str(server_file(server.tls, "metadata", member_id)) if server.tls else ""


def _serve(repository: MetadataRepository, name: str, members: list[str], tls: str) -> None:
    """Serve until a signal. Audit entries are sent to the leader, which may be this server."""
    audited = Audited(
        repository,
        name,
        repository.audit,
        lambda: members or own_addresses(repository.address, tls),
        tls,
    )
    serve(
        audited,
        lambda: {"address": repository.address, "http": repository.http_address},
        lambda: repository.failed,
    )


def _check(store: StoreKind, etcd: str, peers: str) -> None:
    if store is StoreKind.ETCD and not (etcd and peers):
        raise failures.UsageError("--store etcd also needs --etcd and --peers")
    if store is StoreKind.SQLITE and (etcd or peers):
        raise failures.UsageError("--etcd and --peers are for --store etcd: give that, too")


def _check_etcd(etcd: str) -> None:
    for address in filter(None, etcd.split(",")):
        if not is_loopback(address):
            raise failures.UsageError(
                f"etcd at {address} would be used without TLS: give --etcd-ca, or --insecure"
            )


def _peers(text: str, member_id: int) -> dict[int, str]:
    peers = parse_peers(text) if text else {}
    if peers and member_id not in peers:
        raise failures.UsageError(f"--member-id {member_id} is not among --peers")
    return peers


def _check_advertised(advertise: str | None, peer: str | None) -> None:
    if advertise is None:
        return
    split_address(advertise)
    if peer not in (None, advertise):
        raise failures.UsageError(f"--advertise is {advertise}, and --peers says {peer}")


def main() -> None:
    failures.main(app, "vmr")


if __name__ == "__main__":
    main()
