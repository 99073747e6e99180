"""TLS in a simulation: the peer of a connection is known by its host, as if by its certificate.

Nothing is encrypted, because nobody listens. But all checks of senders are in force, also
while epochs, primaries and leaders change: they must stop an impostor and nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

from loomlog.core.principal import Principal
from loomlog.net import endpoints
from loomlog.net.credentials import Credentials
from loomlog.net.listener import Listener
from loomlog.testing.sim.simulation import Simulation

CLUSTER_ID = "sim"

P = TypeVar("P", bound=asyncio.BaseProtocol)


class SimCredentials(Credentials):
    """Credentials without files."""

    def __init__(self) -> None:
        self._cluster = CLUSTER_ID
        self._revoked = frozenset()
        self.own = None
        self.generation = 0
        self.closing = set()

    @property
    def ends_s(self) -> int:
        return 0

    @property
    def has_expired(self) -> bool:
        return False

    def look(self) -> int:
        return self.generation

    def connecting(self) -> Any:
        return None


def certificate_of(host: str) -> Mapping[str, Any]:
    """Return the certificate that the processes of a host show."""
    kind, _, number = host.partition("-")
    if kind == "vsn":
        holder = Principal("node", number=int(number), cluster=CLUSTER_ID)
    elif kind == "vmr":
        holder = Principal("metadata", number=int(number or 1), cluster=CLUSTER_ID)
    else:
        holder = Principal("client", name=host, cluster=CLUSTER_ID)
    return {
        "subjectAltName": (("URI", holder.uri),),
        "serialNumber": "1",
        "notAfter": "Dec 31 23:59:59 9999 GMT",
    }


def place(sim: Simulation) -> str:
    """Return where a server finds its certificate; empty: there are none in this simulation."""
    return "/certs" if sim.network.certificate_of is certificate_of else ""


async def _connect(host: str, port: int, make: Callable[[], P], context: Any) -> P:
    _, protocol = await asyncio.get_running_loop().create_connection(make, host, port)
    return protocol


@contextmanager
def in_force(sim: Simulation) -> Iterator[None]:
    """Give every host a certificate."""
    sim.network.certificate_of = certificate_of
    with (
        patch.object(Credentials, "of_server", lambda *names: SimCredentials()),
        patch.object(Credentials, "chosen", lambda *path: SimCredentials()),
        patch.object(endpoints, "connect_tls", _connect),
        patch.object(endpoints, "Listener", lambda make, credentials: Listener(make, None)),
    ):
        yield
