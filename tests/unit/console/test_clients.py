"""One connected client for each identity, and not too many."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from loomlog.client.cluster import Cluster
from loomlog.console.clients import Clients
from loomlog.errors import Busy, Unavailable


class FakeCluster:
    """A client that notes when it is closed."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class Connections:
    """Connects, and remembers to whom."""

    def __init__(self) -> None:
        self.made: list[FakeCluster] = []
        self.refuses = False

    async def connect(self, token: str) -> Cluster:
        await asyncio.sleep(0)
        if self.refuses:
            raise Unavailable("nobody there")
        self.made.append(FakeCluster(token))
        return cast(Cluster, self.made[-1])


async def test_an_identity_has_one_client() -> None:
    connections = Connections()
    clients = Clients(connections.connect)

    async def use() -> Cluster:
        async with clients.use("a") as cluster:
            return cluster

    first, second = await asyncio.gather(use(), use())
    assert first is second
    async with clients.use("b") as other:
        assert other is not first
    await clients.close()
    assert [each.closed for each in connections.made] == [True, True]


async def test_the_least_recently_used_gives_way_unless_in_use() -> None:
    connections = Connections()
    clients = Clients(connections.connect, most=2)
    async with clients.use("a"):
        async with clients.use("b"):
            with pytest.raises(Busy):
                async with clients.use("c"):
                    pytest.fail("there is no room")
        async with clients.use("c"):
            pass
    assert [each.token for each in connections.made if each.closed] == ["b"]
    await clients.close()


async def test_a_failed_connection_takes_no_room() -> None:
    connections = Connections()
    clients = Clients(connections.connect, most=1)
    connections.refuses = True
    for token in ("a", "b"):
        with pytest.raises(Unavailable):
            async with clients.use(token):
                pytest.fail("there is no connection")
    connections.refuses = False
    async with clients.use("c"):
        pass
    await clients.close()
