"""Shared connections by address, reconnected on demand."""

from __future__ import annotations

import asyncio
from typing import Generic

from loomlog.net.connection import Codec, Connection, F, Handler
from loomlog.net.endpoints import connect


class Links(Generic[F]):
    """One connection per address; all share one handler."""

    def __init__(self, codec: Codec[F], handler: Handler[F]) -> None:
        self._codec = codec
        self._handler = handler
        self._connections: dict[str, Connection[F]] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    def get(self, address: str) -> Connection[F] | None:
        """Return the open connection to an address, if any."""
        connection = self._connections.get(address)
        return None if connection is None or connection.closed else connection

    async def connect(self, address: str) -> Connection[F]:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            connection = self.get(address)
            if connection is None:
                connection = await connect(address, self._codec, self._handler)
                self._connections[address] = connection
            return connection

    def forget(self, connection: Connection[F]) -> str | None:
        """Remove a closed connection; return its address, or None if it was already replaced."""
        for address, known in self._connections.items():
            if known is connection:
                del self._connections[address]
                return address
        return None

    def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()
