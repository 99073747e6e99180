"""The metadata repositories of a cluster on this machine: one, or several that share a local etcd.

Several know each other by address, so those are chosen once and written down beside the data:
`metadata.json` in the directory of the cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from loomlog.errors import InvalidArgument, LoomError
from loomlog.net.address import split_address

HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.05
_ETCD_QUICK: Final = ("--heartbeat-interval", "50", "--election-timeout", "500")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Of several metadata repositories and of what they share."""

    members: tuple[str, ...]  # of vmr-1, vmr-2, …
    etcd: str
    etcd_peer: str

    @property
    def peers(self) -> str:
        """As `vmr start --peers` takes them."""
        return ",".join(f"{number}={address}" for number, address in enumerate(self.members, 1))


def metadata_found(directory: Path) -> int:
    """How many metadata repositories the data is of; 0: there is none yet."""
    if (found := _read(directory)) is not None:
        return len(found.members)
    return int((directory / "vmr-1" / "metadata.sqlite").exists())


def addresses_for(directory: Path, members: int, port: int) -> Addresses | None:
    """Where several are to listen, as before if there was a before; None: there is one, alone."""
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
    etcd_binary()
    chosen = _choose(members, port)
    _write(directory, chosen)
    return chosen


def etcd_binary() -> str:
    binary = shutil.which("etcd")
    if binary is None:
        raise LoomError(
            "several metadata repositories need etcd, and there is none here: install it "
            "(Debian, Ubuntu: apt-get install etcd-server)"
        )
    return binary


def etcd_command(directory: Path, addresses: Addresses) -> list[str]:
    """Ends with its parent, as the other servers do."""
    client, peer = f"http://{addresses.etcd}", f"http://{addresses.etcd_peer}"
    return [
        *(sys.executable, "-m", "loomlog.cli.run_with_parent", etcd_binary()),
        *("--name", "etcd-1", "--data-dir", str(directory / "etcd-1"), *_ETCD_QUICK),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"etcd-1={peer}"),
        *("--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn"),
    ]


def etcd_environment() -> dict[str, str]:
    """Settings of another etcd are not for this one."""
    return {name: text for name, text in os.environ.items() if not name.startswith("ETCD_")}


async def etcd_is_healthy(address: str) -> None:
    """Wait until it serves."""
    while not await _healthy(address):  # noqa: ASYNC110 - it does not tell
        await asyncio.sleep(_POLL_S)


async def _healthy(address: str) -> bool:
    try:
        reader, writer = await asyncio.open_connection(*split_address(address))
    except OSError:
        return False
    try:
        writer.write(f"GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        return b'"true"' in await reader.read()
    except OSError:
        return False
    finally:
        writer.close()


# ---- addresses


def _choose(members: int, port: int) -> Addresses:
    """With port 0 free ones; else that port and those after it."""
    with ExitStack() as taken:
        listeners = [
            taken.enter_context(socket.create_server((HOST, 0))) for _ in range(members + 2)
        ]
        free = [f"{HOST}:{listener.getsockname()[1]}" for listener in listeners]
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
