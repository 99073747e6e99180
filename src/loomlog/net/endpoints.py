"""Making connections: to a server, and as a server."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from loomlog import limits
from loomlog.errors import InvalidArgument, LoomError, Timeout, Unavailable
from loomlog.net.address import join_address, split_address
from loomlog.net.connection import Codec, Connection, Handler


async def connect(
    address: str,
    codec: Codec,
    handler: Handler,
    timeout_s: float = limits.CONNECT_TIMEOUT_S,
) -> Connection:
    """Connect and greet. Raises Unavailable, Timeout or VersionMismatch."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(codec, handler), host, port
            )
            connection.peer = address
            await asyncio.shield(connection.greeted)
        greeted, connection = connection, None
        return greeted
    except TimeoutError:
        error: LoomError = Timeout(f"{address} did not answer within {timeout_s:g} s")
    except OSError as cause:
        error = Unavailable(f"cannot reach {address}: {cause.strerror or cause}")
    finally:
        if connection is not None:  # even if greeted: who asked for it does not get it
            connection.abort(Unavailable(f"the connection to {address} was given up"))
    raise error


def _greeted(connection: Connection) -> bool:
    greeted = connection.greeted
    return greeted.done() and not greeted.cancelled() and greeted.exception() is None


class Server:
    """Listens; every connection made to it belongs to it until it is lost."""

    def __init__(self, codec: Codec, handler: Handler) -> None:
        self._codec = codec
        self._handler = handler
        self._connections: dict[Connection, None] = {}  # in the order in which they came
        self._server: Any = None
        self.address = ""
        self.frame_received = handler.frame_received  # of who belongs to this: passed on

    async def start(self, address: str) -> None:
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port)
        except OSError as error:
            raise InvalidArgument(
                f"cannot listen on {address}: {error.strerror or error}; "
                "choose another address or stop what uses it"
            ) from error
        bound = self._server.sockets[0].getsockname()
        self.address = join_address(bound[0], bound[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        self._connections.clear()

    def disconnect(self, roles: Collection[str]) -> None:
        """Close the connections of peers in these roles, and of those that did not greet yet."""
        for connection in list(self._connections):
            if not _greeted(connection) or connection.greeted.result() in roles:
                connection.close()

    def _accept(self) -> Connection:
        connection = Connection(self._codec, self)
        self._connections[connection] = None
        return connection

    # Handler: forget connections that are gone

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self._connections.pop(connection, None)
        self._handler.connection_closed(connection, error)
