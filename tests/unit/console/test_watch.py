"""A watch looks at the cluster for all visitors of one identity."""

from __future__ import annotations

import asyncio
from typing import cast

from loomlog.client.cluster import Cluster
from loomlog.console.clients import Clients
from loomlog.console.watch import Watch
from loomlog.wire.events import EventInfo
from loomlog.wire.info import ClusterStatus


class FakeCluster:
    """A cluster in which two things have happened."""

    async def status(self) -> ClusterStatus:
        await asyncio.sleep(0)
        return ClusterStatus("c", "a:0", 1.0, 0, (), (), leader=1)

    async def events(self, since: float | None = None, *, after: int = 0) -> list[EventInfo]:
        await asyncio.sleep(0)
        return [EventInfo(n, 0.0, "info", "node 1", "is back") for n in (1, 2) if n > after]

    async def close(self) -> None:
        return


async def test_looks_that_overlap_show_every_event_once() -> None:
    async def connect(token: str) -> Cluster:
        return cast(Cluster, FakeCluster())

    clients = Clients(connect)
    watch = Watch(clients, "")
    await asyncio.gather(watch.now(), watch.now(), watch.now())
    assert [event.id for event in watch.events] == [1, 2]
    await watch.close()
    await clients.close()
