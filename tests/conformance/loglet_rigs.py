"""Loglets of every protocol, for one suite. A protocol is added by a rig in RIGS."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Protocol

import loomlog
from loomlog.client.ordered_loglet import OrderedLoglet
from loomlog.client.segment_loglet import SegmentLoglet
from loomlog.core.copyset.lsn import epoch_of, make, offset_of
from loomlog.core.loglet import Loglet, Tail
from loomlog.storage.memory_loglet import MemoryLoglet
from loomlog.testing import LocalCluster
from loomlog.types import Buffer, Entry, Glsn


class Rig(Protocol):
    def __init__(self, directory: Path) -> None: ...

    async def make(self) -> Loglet:
        """A new, empty one that starts at 1."""

    async def another_client(self) -> Loglet:
        """The same loglet as somebody else sees it, who learns nothing of what the first does."""

    async def fail_over(self) -> None:
        """Who coordinates it is gone with all that was not stored, and another one takes over."""

    async def close(self) -> None: ...


class MemoryRig:
    def __init__(self, directory: Path) -> None:
        self._loglet = MemoryLoglet()

    async def make(self) -> Loglet:
        return self._loglet

    async def another_client(self) -> Loglet:
        return self._loglet

    async def fail_over(self) -> None:
        pass

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

    async def fail_over(self) -> None:
        await self._local.stop_metadata()
        await self._local.start_metadata()

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

    async def fail_over(self) -> None:
        await self._local.stop_metadata()
        await self._local.start_metadata()

    async def close(self) -> None:
        await self._running.aclose()


class CopysetRig:
    """Two copies of each record, on any of three real servers."""

    def __init__(self, directory: Path) -> None:
        self._local = LocalCluster(nodes=3, directory=directory)
        self._running = AsyncExitStack()
        self._loglet = self._stream = 0

    async def make(self) -> Loglet:
        cluster = await self._running.enter_async_context(self._local)
        log = await cluster.create_log("loglet", protocol="copyset", replicas=2)
        [stream] = (await log.describe()).active_streams
        self._loglet, self._stream = stream.segment, stream.id
        return await self.another_client()

    async def another_client(self) -> Loglet:
        # Who appends to a sealed log waits so long for a stream that runs.
        cluster = await loomlog.connect(self._local.address, append_timeout_s=1.0)
        await self._running.enter_async_context(cluster)
        log = cluster.log("loglet")
        return NarrowEpochs(SegmentLoglet(log, cluster, self._loglet, self._stream))

    async def fail_over(self) -> None:
        await self._local.stop_metadata()
        await self._local.start_metadata()

    async def close(self) -> None:
        await self._running.aclose()


class NarrowEpochs:
    """A copyset loglet whose epochs have room for fewer records: so the suite can walk from one end
    of it to the other. What it is asked and answers is the loglet's own, but for the numbers."""

    def __init__(self, loglet: SegmentLoglet) -> None:
        self._loglet = loglet

    async def append(self, values: Sequence[Buffer]) -> Glsn:
        return _narrow(await self._loglet.append(values))

    async def read(self, position: Glsn) -> Entry:
        entry = await self._loglet.read(_wide(position))
        return entry._replace(position=_narrow(entry.position))

    async def tail(self) -> Tail:
        tail = await self._loglet.tail()
        return Tail(_narrow(tail.position), tail.sealed)

    async def trim(self, position: Glsn) -> None:
        await self._loglet.trim(_wide(position))

    async def seal(self) -> Glsn:
        return _narrow(await self._loglet.seal())


_FIRST_EPOCH: Final = 1
_EPOCH_RECORDS: Final = 1 << 14


def _narrow(lsn: Glsn) -> Glsn:
    """The first epoch begins at 1, the others at multiples of what an epoch has room for."""
    assert lsn == 0 or offset_of(lsn) < _EPOCH_RECORDS
    return (epoch_of(lsn) - _FIRST_EPOCH) * _EPOCH_RECORDS + offset_of(lsn) if lsn else 0


def _wide(position: Glsn) -> Glsn:
    if position <= 0:
        return position
    return make(_FIRST_EPOCH + position // _EPOCH_RECORDS, position % _EPOCH_RECORDS)


RIGS: dict[str, type[Rig]] = {
    "memory": MemoryRig,
    "ordered": OrderedRig,
    "chained": ChainedRig,
    "copyset": CopysetRig,
}
