"""Segments of the `ordered` protocol: streams that get entries while their segment is active.

All ordered segments of a log share its commit rounds: positions go on where they were. So sealing a
segment needs no storage node: from the moment its streams are closed no round gives them anything,
and when the round under way is durable the tail is what it says. The replicas are sealed
afterwards, by the reconcile loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.segments import Segment, Successor
from loomlog.errors import Timeout
from loomlog.metadata.admin import Admin
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.placing import Placing
from loomlog.metadata.reconcile import Reconciler
from loomlog.metadata.records import LogRecord, StreamRecord
from loomlog.types import Glsn, LogId, ReplicaState, StreamId

MAKE_TIMEOUT_S: Final = 3.0  # twice at most: less than what a client waits for the answer
BEGIN_WAIT_S: Final = 2.0  # for the first streams to run; then they run when they can


class OrderedSegments:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        reconciler: Reconciler,
        admin: Admin,
        placing: Placing,
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._reconciler = reconciler
        self._admin = admin
        self._placing = placing

    async def make(self, log: LogRecord, successor: Successor) -> None:
        """Streams that are sealed on all their replicas: running is one step from there."""
        settings = successor.settings
        await _in_time(self._placing.registered(settings.replicas))
        made = self._streams(log, successor.loglet)
        for nodes in self._placing.place(max(settings.streams - len(made), 0), settings.replicas):
            current = self._catalog.log(log.name)
            made.append(await self._admin.make_stream(current, nodes, successor.loglet))
        await _in_time(self._all_whole([record.stream_id for record in made]))

    async def _all_whole(self, streams: list[StreamId]) -> None:
        for stream_id in streams:
            self._reconciler.wake(stream_id)
        for stream_id in streams:
            await self._reconciler.until(stream_id, _is_whole)

    def chain_changed(self, log: LogRecord) -> None:
        for stream_id in log.streams:
            self._reconciler.wishes_changed(stream_id)

    async def why_not_sealed(self, segment: Segment) -> str:
        """Rounds end whatever nodes are there."""
        return ""

    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        rounds = self._committer.logs[log.log_id]
        await self._committer.settled(rounds)
        return max(rounds.high_watermark, segment.start - 1)

    async def begin(self, log: LogRecord, segment: Segment) -> None:
        self._committer.logs[log.log_id].begin_at(segment.start)
        streams = [record.stream_id for record in self._streams(log, segment.loglet)]
        await self._admin.run(streams, BEGIN_WAIT_S)

    async def discard(self, log: LogRecord, loglet: LogId) -> None:
        for record in self._streams(log, loglet):
            await self._admin.take_back_stream(log.name, record)

    def _streams(self, log: LogRecord, loglet: LogId) -> list[StreamRecord]:
        """As they are now: a trim may have taken some away."""
        current = self._catalog.log(log.name)
        streams = (self._catalog.streams[stream_id] for stream_id in current.streams)
        return [stream for stream in streams if stream.segment == loglet]


async def _in_time(waiting: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(MAKE_TIMEOUT_S):
            await waiting
    except TimeoutError:
        raise Timeout(
            f"its new streams were not ready within {MAKE_TIMEOUT_S:g} s: look at `loom status` "
            "and try again"
        ) from None


def _is_whole(stream: StreamRounds) -> bool:
    """Every replica is there and sealed."""
    reports = [stream.reports.get(node) for node in stream.replicas]
    return all(
        report is not None and report.epoch == stream.epoch and report.state is ReplicaState.SEALED
        for report in reports
    )
