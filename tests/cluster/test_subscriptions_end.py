"""A node forgets a request of a connection when it ends."""

from __future__ import annotations

import asyncio

import pytest

from loomlog.testing import LocalCluster


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_subscriptions_that_ended_are_forgotten(protocol: str) -> None:
    local = LocalCluster(nodes=1)
    async with local as cluster:
        log = await cluster.create_log("events", protocol, replicas=1)
        await log.append(b"a")
        for _ in range(5):
            entries = log.subscribe()
            assert (await anext(entries)).value == b"a"
            await entries.aclose()
        async with asyncio.timeout(20):
            while open_requests(local) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


def open_requests(local: LocalCluster) -> int:
    return sum(connection.unanswered for connection in local.nodes[1]._server.connections)
