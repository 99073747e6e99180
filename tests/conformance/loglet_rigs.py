"""Loglets of every protocol, for one suite. A protocol is added by a rig in RIGS."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import loomlog
from loomlog.client.ordered_loglet import OrderedLoglet
from loomlog.client.segment_loglet import SegmentLoglet
from loomlog.core.loglet import Loglet
from loomlog.storage.memory_loglet import MemoryLoglet
from loomlog.testing import LocalCluster


class Rig(Protocol):
    def __init__(self, directory: Path) -> None: ...

    async def make(self) -> Loglet:
        """A new, empty one that starts at 1."""

    async def another_client(self) -> Loglet:
        """The same loglet as somebody else sees it, who learns nothing of what the first does."""

    async def close(self) -> None: ...


class MemoryRig:
    def __init__(self, directory: Path) -> None:
        self._loglet = MemoryLoglet()

    async def make(self) -> Loglet:
        return self._loglet

    async def another_client(self) -> Loglet:
        return self._loglet

    async def close(self) -> None:
        pass


class OrderedRig:
    """Two streams, two replicas each, on real servers."""

    def __init__(self, directory: Path) -> None:
        self._local = LocalCluster(nodes=2, directory=directory, sync="none")
        self._running = AsyncExitStack()

    async def make(self) -> Loglet:
        cluster = await self._running.enter_async_context(self._local)
        await cluster.create_log("loglet", streams=2, replicas=2)
        return await self.another_client()

    async def another_client(self) -> Loglet:
        # Who appends to a sealed log waits so long for a stream that runs.
        cluster = await loomlog.connect(self._local.address, append_timeout_s=1.0)
        await self._running.enter_async_context(cluster)
        return OrderedLoglet(cluster.log("loglet"), cluster)

    async def close(self) -> None:
        await self._running.aclose()


class ChainedRig:
    """Two chains of two replicas, on real servers."""

    def __init__(self, directory: Path) -> None:
        self._local = LocalCluster(nodes=2, directory=directory)
        self._running = AsyncExitStack()
        self._loglet = self._stream = 0

    async def make(self) -> Loglet:
        cluster = await self._running.enter_async_context(self._local)
        log = await cluster.create_log("loglet", protocol="chained", streams=2, replicas=2)
        [stream] = (await log.describe()).active_streams
        self._loglet, self._stream = stream.segment, stream.id
        return await self.another_client()

    async def another_client(self) -> Loglet:
        # Who appends to a sealed log waits so long for a stream that runs.
        cluster = await loomlog.connect(self._local.address, append_timeout_s=1.0)
        await self._running.enter_async_context(cluster)
        return SegmentLoglet(cluster.log("loglet"), cluster, self._loglet, self._stream)

    async def close(self) -> None:
        await self._running.aclose()


RIGS: dict[str, type[Rig]] = {"memory": MemoryRig, "ordered": OrderedRig, "chained": ChainedRig}
