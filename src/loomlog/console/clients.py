"""Connected clients, one for each identity that asks. The least recently used gives way."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from loomlog.client.cluster import Cluster
from loomlog.errors import Busy

CLIENTS_MAX: Final = 64

Connect: TypeAlias = Callable[[str], Awaitable[Cluster]]  # with a token; empty: without


@dataclass(slots=True, eq=False)
class _Client:
    users: int = 0
    cluster: Cluster | None = None
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)


class Clients:
    """The clients of one process."""

    def __init__(self, connect: Connect, most: int = CLIENTS_MAX) -> None:
        self._connect = connect
        self._most = most
        self._clients: OrderedDict[str, _Client] = OrderedDict()  # by token

    @asynccontextmanager
    async def use(self, token: str) -> AsyncIterator[Cluster]:
        """Yield the client of a token, connected; raise Busy if too many others are in use."""
        client = self._clients.get(token)
        if client is None:
            await self._make_room()
            client = self._clients.setdefault(token, _Client())
        self._clients.move_to_end(token)
        client.users += 1
        try:
            async with client.connecting:
                if client.cluster is None:
                    client.cluster = await self._connect(token)
            yield client.cluster
        finally:
            client.users -= 1
            if client.cluster is None and not client.users and self._clients.get(token) is client:
                del self._clients[token]

    async def close(self) -> None:
        while self._clients:
            await _close(self._clients.popitem()[1])

    async def _make_room(self) -> None:
        while len(self._clients) >= self._most:
            idle = next((token for token, each in self._clients.items() if not each.users), None)
            if idle is None:
                raise Busy(f"{self._most} identities use this console at the moment: try again")
            await _close(self._clients.pop(idle))


async def _close(client: _Client) -> None:
    if client.cluster is not None:
        await client.cluster.close()
