"""The certificates of a cluster that `loom up --secure` runs on this machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from loomlog.cli.processes.local_metadata import HOST
from loomlog.core.principal import Principal
from loomlog.net.credentials import AUTHORITIES

_DIRECTORY: Final = "certs"
_HOSTS: Final = (HOST, "localhost", "::1")
_RENEWED_DAYS: Final = 30.0  # a certificate that expires sooner is renewed at startup


def is_secure(directory: Path) -> bool:
    """Return whether a cluster with TLS was run there before."""
    return (directory / _DIRECTORY / AUTHORITIES).exists()


def operator_file(directory: Path) -> Path:
    return directory / _DIRECTORY / "operator-admin.pem"


def metadata_file(directory: Path, number: int) -> Path:
    return directory / _DIRECTORY / f"metadata-{number}.pem"


def make_certificates(directory: Path, cluster: str, metadata: int, nodes: int) -> None:
    """Create missing certificates, and renew those that expire soon."""
    from loomlog.net.certificates import (
        create_authority,
        create_certificate,
        list_certificates,
        renew_certificate,
    )

    place = directory / _DIRECTORY
    if not is_secure(directory):
        create_authority(place, cluster)
    found = list_certificates(place)
    holders = [Principal("metadata", number=n, cluster=cluster) for n in range(1, metadata + 1)]
    holders += [Principal("node", number=n, cluster=cluster) for n in range(1, nodes + 1)]
    holders.append(Principal("operator", name="admin", cluster=cluster))
    there = {each.principal for each in found}
    for holder in holders:
        if holder not in there:
            create_certificate(place, holder, () if holder.kind == "operator" else _HOSTS)
    for each in found:
        if each.principal in holders and each.days_left(datetime.now(UTC)) < _RENEWED_DAYS:
            renew_certificate(place, each)
