"""`loom certs …`: the certificates of a cluster, in one directory."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loomlog import limits
from loomlog.cli.console.changes import confirm
from loomlog.cli.console.options import Json, Yes
from loomlog.cli.console.output import console, new_table, plain, print_json, say
from loomlog.core.principal import Kind, Principal
from loomlog.errors import NotFound
from loomlog.net.credentials import REVOKED

if TYPE_CHECKING:
    from loomlog.net.certificates import Certificate

app = typer.Typer(help="Certificates of servers and clients.")

CERTS: Final = Path("certs")
_NOTICE_DAYS: Final = 30.0

Directory = Annotated[
    Path,
    typer.Option(
        "--dir", envvar="LOOM_CERTS", metavar="DIR", help="Directory of the certificate authority."
    ),
]
Hosts = Annotated[
    list[str],
    typer.Option(
        "--host",
        metavar="HOST",
        help="Host name or IP address that others use for the server. Repeatable.",
    ),
]
Days = Annotated[float, typer.Option(metavar="N", help="Validity of the certificate.")]
File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="File such as certs/node-3.pem, or its name in the directory."
    ),
]
Number = Annotated[
    int, typer.Argument(metavar="N", min=1, max=limits.NODE_ID_MAX, help="Number of the server.")
]


@app.command("init")
def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", envvar="LOOM_CERTS", help="Where to make them.")
    ] = CERTS,
    cluster_id: Annotated[str, typer.Option(help="Id of the cluster.")] = "local",
    days: Days = 3650,
    as_json: Json = False,
) -> None:
    """Create the certificate authority of a cluster."""
    from loomlog.net.certificates import AUTHORITY_KEY, create_authority

    file = create_authority(directory, cluster_id, days)
    key = directory / AUTHORITY_KEY
    say(
        {"cluster_id": cluster_id, "file": str(file), "key": str(key)},
        f"distribute {file} to all servers and clients; keep {key} secret, servers do not need it",
        as_json=as_json,
    )


@app.command("node")
def node(
    number: Number,
    host: Hosts,
    directory: Directory = CERTS,
    days: Days = 365,
    as_json: Json = False,
) -> None:
    """Create the certificate of a storage node."""
    _create(directory, "node", number=number, hosts=host, days=days, as_json=as_json)


@app.command("metadata")
def metadata(
    number: Number,
    host: Hosts,
    directory: Directory = CERTS,
    days: Days = 365,
    as_json: Json = False,
) -> None:
    """Create the certificate of a metadata repository."""
    _create(directory, "metadata", number=number, hosts=host, days=days, as_json=as_json)


@app.command("client")
def client(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the client.")],
    operator: Annotated[
        bool,
        typer.Option(
            "--operator", help="Create an operator's certificate, which has all permissions."
        ),
    ] = False,
    directory: Directory = CERTS,
    days: Days = 365,
    as_json: Json = False,
) -> None:
    """Create the certificate of a user or a program."""
    kind: Kind = "operator" if operator else "client"
    _create(directory, kind, name=name, days=days, as_json=as_json)


def _create(
    directory: Path,
    kind: Kind,
    *,
    name: str = "",
    number: int = 0,
    hosts: list[str] | None = None,
    days: float,
    as_json: bool,
) -> None:
    from loomlog.net.certificates import cluster_of, create_certificate

    holder = Principal(kind, name=name, number=number, cluster=cluster_of(directory))
    file = create_certificate(directory, holder, hosts or [], days)
    fields = {"holder": holder.uri, "file": str(file)}
    say(fields, f"{file} has the key and the certificate of {holder}", as_json=as_json)


@app.command("list")
def list_all(directory: Directory = CERTS, as_json: Json = False) -> None:
    """List authorities and certificates, and when they expire."""
    from loomlog.net.certificates import list_certificates

    found = list_certificates(directory)
    if as_json:
        print_json([_fields(each) for each in found])
        return
    table = new_table("file", "holder", "hosts", "expires", "")
    for each in found:
        holder = "authority" if each.principal.kind == "anonymous" else str(each.principal)
        cells = (each.file.name, holder, " ".join(each.hosts), f"{each.ends_at:%Y-%m-%d}")
        table.add_row(*map(plain, cells), _remaining(each))
    console().print(table)


@app.command("show")
def show(file: File, directory: Directory = CERTS, as_json: Json = False) -> None:
    """Show a certificate."""
    from loomlog.net.certificates import read_certificate

    fields = _fields(read_certificate(_found(file, directory)))
    if as_json:
        print_json(fields)
        return
    for name, value in fields.items():
        print(f"{name:12} {' '.join(value) if isinstance(value, list) else value}")


@app.command("renew")
def renew(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", show_default="all", help="Which.")
    ] = None,
    directory: Directory = CERTS,
    days: Days = 365,
    as_json: Json = False,
) -> None:
    """Create new keys and certificates for the same holders and hosts.

    The newest authority signs them. Servers use new files without a restart."""
    from loomlog.net.certificates import list_certificates, renew_certificate

    found = {
        each.file.name: each
        for each in list_certificates(directory)
        if each.principal.kind != "anonymous"
    }
    names = [Path(file).name for file in files or found]
    if unknown := [name for name in names if name not in found]:
        raise NotFound(f"{directory} has no {unknown[0]}: `loom certs list` shows the files")
    renewed = [str(renew_certificate(directory, found[name], days)) for name in names]
    say({"files": renewed}, f"renewed {', '.join(names) or 'nothing'}", as_json=as_json)


@app.command("revoke")
def revoke(
    file: File,
    directory: Directory = CERTS,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Revoke a certificate.

    Distribute the file `revoked`, next to ca.pem, to all servers. They then also close open
    connections with that certificate."""
    from loomlog.net.certificates import read_certificate, revoke_certificate

    file = _found(file, directory)
    holder = read_certificate(file).principal
    confirm(lambda: f"Revoke this certificate of {holder}?", yes=yes)
    revoke_certificate(directory, file)
    text = f"servers with the new {directory / REVOKED} refuse this certificate of {holder}"
    say({"file": str(file), "holder": holder.uri}, text, as_json=as_json)


@app.command("rotate")
def rotate(directory: Directory = CERTS, days: Days = 3650, as_json: Json = False) -> None:
    """Create a new authority; the old one stays trusted.

    Distribute the new ca.pem, run `loom certs renew`, distribute the renewed certificates, and run
    `loom certs retire`."""
    from loomlog.net.certificates import rotate_authority

    file = rotate_authority(directory, days)
    text = f"{file} now also has the new authority; distribute it, then run `loom certs renew`"
    say({"file": str(file)}, text, as_json=as_json)


@app.command("retire")
def retire(directory: Directory = CERTS, as_json: Json = False) -> None:
    """Trust only the newest authority."""
    from loomlog.net.certificates import retire_authorities

    count = retire_authorities(directory)
    text = f"servers and clients with the new ca.pem no longer trust {count} older authorities"
    say({"retired": count}, text, as_json=as_json)


def _found(file: Path, directory: Path) -> Path:
    """Return the path of a file, which may be named as in `loom certs list`."""
    listed = directory / file.name
    return listed if file == Path(file.name) and not file.exists() and listed.exists() else file


def _fields(certificate: Certificate) -> dict[str, Any]:
    holder = certificate.principal
    return {
        "file": str(certificate.file),
        "holder": "authority" if holder.kind == "anonymous" else holder.uri,
        "hosts": list(certificate.hosts),
        "begins": certificate.begins_at.isoformat(),
        "expires": certificate.ends_at.isoformat(),
        "days_left": round(certificate.days_left(datetime.now(UTC)), 1),
        "fingerprint": certificate.fingerprint,
    }


def _remaining(certificate: Certificate) -> str:
    left = certificate.days_left(datetime.now(UTC))
    if left < 0:
        return "[red]expired[/]"
    return f"[yellow]in {left:.0f} days[/]" if left < _NOTICE_DAYS else f"in {left:,.0f} days"
