"""One segment of a log on real servers, of any protocol that is registered, for one suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import memory_protocol

import loomlog
from loomlog.client.cluster import Cluster
from loomlog.client.loglets.contract import Fixed, FollowOptions
from loomlog.client.loglets.times import TimeQuery
from loomlog.client.subscribe.numbering import ByPosition
from loomlog.client.subscribe.part import Part
from loomlog.client.subscribe.pieces import Piece
from loomlog.columns import encode
from loomlog.errors import NotYetWritten, Retryable
from loomlog.limits import MIB
from loomlog.testing import LocalCluster
from loomlog.types import Buffer, Entry, Glsn, LogId
from loomlog.wire import loomlog_pb2 as pb


class Shape(NamedTuple):
    """The settings of a log of one protocol."""

    nodes: int
    streams: int


SHAPES: Final[dict[str, Shape]] = {
    "ordered": Shape(nodes=2, streams=2),
    "chained": Shape(nodes=2, streams=2),
    "copyset": Shape(nodes=3, streams=1),
    memory_protocol.NAME: Shape(nodes=2, streams=1),
}
"""The protocols that the suite runs on."""

REPLICAS: Final = 2
NAME: Final = "loglet"


class Tail(NamedTuple):
    position: Glsn
    sealed: bool


class Segment:
    """The first segment of the log as one client has it. What follows it is not its business."""

    def __init__(self, cluster: Cluster, protocol: str, segment: LogId) -> None:
        self._cluster = cluster
        self._segment = segment
        self._log = cluster.log(NAME)
        self._parts = self._log._parts
        self._loglets = self._parts.loglets
        self._appends = count()
        self.loglet = self._loglets.of(protocol)

    async def append(self, values: Sequence[Buffer], expected: Glsn | None = None) -> Glsn:
        """Raise Sealed if nothing was appended here, now or later."""
        stream = await self._stream()
        appended = await self._log.append_many(values, stream=stream, expected_tail=expected)
        return appended[0].position

    async def append_once(self, value: bytes, timeout_s: float) -> None:
        """Append without trying again."""
        await self._log.append(value, timeout_s=timeout_s, fail_fast=True)

    async def append_at(self, timestamp_us: int, values: Sequence[bytes]) -> Glsn:
        import pyarrow as pa

        times = pa.array([timestamp_us] * len(values), pa.timestamp("us", "UTC"))
        batch = pa.record_batch({"value": pa.array(values, pa.binary()), "timestamp": times})
        return (await self._log.append_arrow(batch, stream=await self._stream()))[0].position

    async def read(self, position: Glsn) -> Entry:
        entry = await self._log.read(position)
        if entry.stream not in [s.log_stream_id for s in self._of(await self._fetch()).streams]:
            raise NotYetWritten(f"position {position} is of another segment")
        return entry

    async def tail(self) -> Tail:
        described = await self._loglets.fetch_with_tail()
        segment = self._of(described).segment
        return Tail(segment.end, True) if segment.HasField("end") else Tail(described.tail, False)

    async def seal(self) -> Glsn:
        while not (segment := self._of(await self._fetch()).segment).HasField("end"):
            await self._cluster.switch_log(NAME, protocol="ordered", replicas=1)
        return segment.end

    async def trim(self, position: Glsn) -> None:
        await self._log.trim(position)

    @asynccontextmanager
    async def follow(self, first: Glsn, last: Glsn | None) -> AsyncIterator[Part]:
        options = FollowOptions(ByPosition(self._loglets), MIB)
        part = self.loglet.follow(options, await self._fetch(), first, last)
        try:
            yield part
        finally:
            part.close()

    async def entries(self, first: Glsn, last: Glsn) -> dict[Glsn, bytes]:
        """Return what a follower is given."""
        found: dict[Glsn, bytes] = {}
        if first > last:
            return found
        async with self.follow(first, last) as part, asyncio.timeout(30):
            while (piece := await part.next()) is not None:
                assert isinstance(piece, Piece)
                for entry in piece.entries():
                    assert entry.position > max(found, default=0)
                    found[entry.position] = entry.value
        return found

    async def find_time(self, timestamp_us: int) -> Glsn | None:
        described = await self._loglets.fetch_with_tail()
        streams, segment = self._of(described)
        first = max(segment.start, described.head)
        last = segment.end if segment.HasField("end") else described.tail
        query = TimeQuery(timestamp_us, first, last, self._log._parts._rows_from)
        async with asyncio.timeout(30):
            while True:
                with suppress(Retryable):  # a replica that lags does not know all of it yet
                    return await self.loglet.find_time(streams, query)
                await asyncio.sleep(0.005)

    async def reserve(self, rows: int) -> Fixed:
        tail = (await self._loglets.fetch_with_tail()).tail
        return await self.loglet.reserve(await self._stream(), tail, rows)

    async def append_fixed(self, fixed: Fixed, values: Sequence[bytes]) -> Glsn:
        batch = encode(values, timestamps_us=1, producer_id=7, sequence=1)
        return await self.loglet.append_fixed(fixed, batch, _confirm)

    async def _stream(self) -> int:
        streams = self._of(await self._parts.cached.cached()).streams
        return streams[next(self._appends) % len(streams)].log_stream_id

    async def _fetch(self) -> pb.Log:
        return await self._parts.cached.fetch()

    def _of(self, log: pb.Log) -> _Described:
        streams = [s for s in log.streams if s.loglet_id == self._segment]
        return _Described(streams, next(s for s in log.segments if s.loglet_id == self._segment))


class _Described(NamedTuple):
    streams: list[pb.LogStream]
    segment: pb.Segment


async def _confirm() -> None:
    pass


class LogletRig:
    """A cluster with a log of one protocol."""

    def __init__(self, protocol: str, directory: Path) -> None:
        self._protocol = protocol
        self._shape = SHAPES[protocol]
        self._local = LocalCluster(nodes=self._shape.nodes, directory=directory, sync="none")
        self._running = AsyncExitStack()
        self._segment: LogId = 0
        self.keeps_nothing_on_nodes = protocol == memory_protocol.NAME

    async def make(self) -> Segment:
        """Return a new, empty segment that starts at 1."""
        cluster = await self._running.enter_async_context(self._local)
        log = await cluster.create_log(NAME, self._protocol, self._shape.streams, REPLICAS)
        self._segment = (await log.describe()).segments[0].id
        return await self.another_client()

    async def another_client(self) -> Segment:
        """Return the same segment for a client that learns nothing of what the first does."""
        # An append to a log that does not run waits this long.
        cluster = await loomlog.connect(self._local.address, append_timeout_s=5.0)
        await self._running.enter_async_context(cluster)
        return Segment(cluster, self._protocol, self._segment)

    async def make_next(self) -> Segment:
        """Return a later segment of the same protocol, for a client that has no other."""
        async with await loomlog.connect(self._local.address) as cluster:
            await cluster.switch_log(NAME, protocol="ordered", replicas=1)
            await cluster.switch_log(NAME, protocol=self._protocol, replicas=REPLICAS)
            last = (await cluster.log(NAME).describe()).segments[-1]
        self._segment = last.id
        return await self.another_client()

    async def fail_over(self) -> None:
        """Lose the coordinator with everything that it has not stored, and start another."""
        await self._local.stop_metadata()
        await self._local.start_metadata()

    async def leave_one_node(self) -> None:
        """Stop all nodes but the first: too few for an append."""
        for node in range(2, self._shape.nodes + 1):
            await self._local.stop_node(node)

    async def close(self) -> None:
        await self._running.aclose()
