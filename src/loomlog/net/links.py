"""One connection to each address that somebody needs, made again when it was lost."""

from __future__ import annotations

import asyncio

from loomlog.net.connection import Codec, Connection, Handler
from loomlog.net.endpoints import connect


class Links:
    """All of them have one handler."""

    def __init__(self, codec: Codec, handler: Handler) -> None:
        self._codec = codec
        self._handler = handler
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    def get(self, address: str) -> Connection | None:
        """If there is one that works."""
        connection = self._connections.get(address)
        return None if connection is None or connection.closed else connection

    async def connect(self, address: str) -> Connection:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            connection = self.get(address)
            if connection is None:
                connection = await connect(address, self._codec, self._handler)
                self._connections[address] = connection
            return connection

    def forget(self, connection: Connection) -> str | None:
        """It was closed. Where it led to; None: another one has taken its place, or all end."""
        for address, known in self._connections.items():
            if known is connection:
                del self._connections[address]
                return address
        return None

    def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()
