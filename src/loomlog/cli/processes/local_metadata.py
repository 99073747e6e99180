"""The metadata repositories of a cluster on this machine: one, or several that share a local etcd.

Several know each other by address, so the addresses are chosen once and stored next to the data, in
`metadata.json` in the directory of the cluster.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from loomlog.errors import InvalidArgument
from loomlog.net.address import split_address
from loomlog.testing import etcd

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of several metadata repositories and of their etcd."""

    members: tuple[str, ...]  # of vmr-1, vmr-2, …
    etcd: str
    etcd_peer: str

    @property
    def peers(self) -> str:
        """The members in the form of `vmr start --peers`."""
        return ",".join(f"{number}={address}" for number, address in enumerate(self.members, 1))


def metadata_found(directory: Path) -> int:
    """Return how many metadata repositories have data in the directory."""
    if (found := _read(directory)) is not None:
        return len(found.members)
    return int((directory / "vmr-1" / "metadata.sqlite").exists())


def addresses_for(directory: Path, members: int, port: int) -> Addresses | None:
    """Return the addresses of several, the same as in earlier runs; None for a single one."""
    found = _read(directory)
    known = metadata_found(directory)
    if known and known != members:
        raise InvalidArgument(
            f"{directory} holds the metadata of {known} vmr, not of {members}: give --metadata "
            f"{known}, another --data, or move it with `loom metadata export` and `import`"
        )
    if found is not None:
        _check_port(directory, found, port)
        return found
    if members == 1:
        return None
    etcd.require_etcd()
    chosen = _choose(members, port)
    _write(directory, chosen)
    return chosen


def etcd_command(directory: Path, addresses: Addresses, tls: Path | None) -> list[str]:
    """Return the command of an etcd that ends with its parent, like the other servers. `tls` is the
    file with its certificate."""
    scheme = "http" if tls is None else "https"
    client, peer = f"{scheme}://{addresses.etcd}", f"{scheme}://{addresses.etcd_peer}"
    with_parent = [sys.executable, "-m", "loomlog.cli.processes.server_process"]
    cluster = f"etcd-1={peer}"
    binary = etcd.require_etcd()
    command = etcd.member_command(binary, "etcd-1", directory, client, peer, cluster)
    return with_parent + command + ([] if tls is None else etcd.tls_options(tls))


# ---- addresses


def _choose(members: int, port: int) -> Addresses:
    """Choose free ports if `port` is 0; otherwise that port and the following ones."""
    with etcd.free_addresses(members + 2) as free:
        pass
    wanted = [f"{HOST}:{port + number}" for number in range(members)]
    return Addresses(tuple(wanted if port else free[2:]), free[0], free[1])


def _check_port(directory: Path, found: Addresses, port: int) -> None:
    _, known = split_address(found.members[0])
    if port not in (0, known):
        raise InvalidArgument(
            f"the metadata repositories of {directory} know each other at {found.peers}: "
            f"give --port {known}"
        )


def _file(directory: Path) -> Path:
    return directory / "metadata.json"


def _read(directory: Path) -> Addresses | None:
    try:
        fields = json.loads(_file(directory).read_text())
        return Addresses(tuple(fields["members"]), fields["etcd"], fields["etcd_peer"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise InvalidArgument(
            f"{_file(directory)} cannot be read: restore it, or give another --data"
        ) from None


def _write(directory: Path, addresses: Addresses) -> None:
    _file(directory).write_text(json.dumps(asdict(addresses), indent=2) + "\n")
