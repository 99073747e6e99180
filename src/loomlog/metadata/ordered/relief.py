"""Give a log a new, empty stream when none of its streams runs after nodes or disks failed.

Filling a spare takes longer the more data a stream has. An empty stream takes appends at once, and
the order of a log allows streams to come and go. The others are repaired meanwhile and run again. A
stream that lost data stays sealed, so that readers learn of the loss.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from loomlog.core.ordered.repair import concerns_all, stands_still
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.errors import LoomError
from loomlog.metadata.background import Background, RetryLoop, StepResult
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.status import Losses
from loomlog.metadata.ordered.streams import OrderedStreams
from loomlog.types import NodeId

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 0.25  # little data is copied sooner than that


class Relief:
    """Adds a stream to each log that has none running."""

    def __init__(
        self, committer: Committer, streams: OrderedStreams, background: Background
    ) -> None:
        self._catalog, self._nodes = committer.catalog, committer.nodes
        self._committer = committer
        self._streams = streams
        self._losses = Losses(committer)
        self._one_at_a_time = asyncio.Lock()
        self._work = RetryLoop("relief for node", self._step, background)

    def node_silent(self, node: NodeId) -> None:
        """Watch the logs of a silent node until it is back or replaced everywhere."""
        self._work.wake(node)

    def node_joined(self, node: NodeId) -> None:
        """Watch the logs of a node that came back without their data."""
        if self._has_lost_logs(node):
            self.node_silent(node)

    async def _step(self, node: NodeId) -> StepResult:
        if not (self._is_missed(node) or self._has_lost_logs(node)):
            return StepResult.IDLE
        await asyncio.sleep(PATIENCE_S)
        async with self._one_at_a_time:
            await self._look_at_logs(node)
        return StepResult.FAILED  # the node is still missed: look again later

    async def _look_at_logs(self, node: NodeId) -> None:
        for record in list(self._catalog.logs.values()):
            log = self._committer.logs.get(record.log_id)
            if log is not None and not record.unfinished and self._stands_still(log, node):
                await self._add_stream(record.name)

    def _is_missed(self, node: NodeId) -> bool:
        if self._nodes.alive(node):
            return False
        streams = (s for log in self._committer.logs.values() for s in log.streams.values())
        return any(node in stream.replicas for stream in streams)

    def _has_lost_logs(self, node: NodeId) -> bool:
        """Return whether it had a stream of a log whose streams all lost data."""
        return any(self._is_lost(log, node) for log in self._committer.logs.values())

    def _is_lost(self, log: LogRounds, node: NodeId) -> bool:
        return concerns_all(log.streams.values(), node, lambda s: self._losses.of(s) is not None)

    def _stands_still(self, log: LogRounds, node: NodeId) -> bool:
        if self._committer.lost_rounds(log.log_id):
            return False
        return stands_still(log.streams.values(), node, self._is_hit)

    def _is_hit(self, stream: StreamRounds) -> bool:
        is_whole = all(self._nodes.alive(node) for node in stream.replicas)
        return not is_whole or self._losses.of(stream) is not None

    async def _add_stream(self, name: str) -> None:
        try:
            record, _ = await self._streams.add_stream(name)
        except LoomError as error:  # too few nodes, for now
            logger.info("log %r has no running stream, and gets none: %s", name, error)
        else:
            logger.warning("log %r had no running stream: it got %d", name, record.stream_id)
