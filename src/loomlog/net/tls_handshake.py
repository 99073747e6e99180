"""TLS handshakes that can be cancelled at any time without leaking a socket.

asyncio leaks a connection whose handshake is cancelled in the first iteration of the loop. So the
socket is owned here until the handshake is done. Once asyncio has it, it is only shut down here,
and asyncio closes it: otherwise asyncio might use its descriptor after another file got the number.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)

TLS_SHUTDOWN_S: Final = 2.0  # a peer that does not confirm the end of TLS is cut off


async def accept_tls(
    accepted: socket.socket, make: Callable[[], P], context: ssl.SSLContext, timeout_s: float
) -> None:
    """Shake hands with a peer that has connected; `make` returns the protocol of the connection."""
    with _owned(accepted, make) as begin:
        await asyncio.get_running_loop().connect_accepted_socket(
            begin,
            accepted,
            ssl=context,
            ssl_handshake_timeout=timeout_s,
            ssl_shutdown_timeout=TLS_SHUTDOWN_S,
        )


async def connect_tls(host: str, port: int, make: Callable[[], P], context: ssl.SSLContext) -> P:
    """Connect and shake hands; return the protocol of the connection, which `make` made."""
    connected = await _connect(host, port)
    with _owned(connected, make) as begin:
        _, protocol = await asyncio.get_running_loop().create_connection(
            begin,
            sock=connected,
            ssl=context,
            server_hostname=host,
            ssl_shutdown_timeout=TLS_SHUTDOWN_S,
        )
        return protocol


async def _connect(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to the first address of the host that answers."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in dict.fromkeys(found):
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            await loop.sock_connect(connecting, address)
        except BaseException as error:
            connecting.close()
            if not isinstance(error, OSError):
                raise
            failure = failure or error
        else:
            return connecting
    raise failure or OSError(f"{host} has no address")


@contextmanager
def _owned(owned: socket.socket, make: Callable[[], P]) -> Iterator[Callable[[], P]]:
    """Own a socket in the block, which gets the function to call when asyncio takes it over."""
    is_taken = False

    def begin() -> P:
        nonlocal is_taken
        is_taken = True
        return make()

    try:
        yield begin
    except BaseException as error:
        if not is_taken:
            owned.close()
        elif isinstance(error, asyncio.CancelledError):
            with suppress(OSError):  # it is closed already
                owned.shutdown(socket.SHUT_RDWR)
        raise
