"""Give a log a new, empty stream when none of its streams takes appends: nodes or disks failed, or
volumes are full.

The time to fill a spare grows with the data of a stream. An empty stream takes appends at once, and
streams may be added to and removed from a log at any time. Meanwhile the other streams are
repaired; some seconds after they run again, the new one takes no more appends, and it is removed
when all its entries are trimmed. A stream that lost data stays sealed, so that readers see the
loss; then the new one stays, and the other one is removed when all its entries are trimmed. The new
one also stays if the other streams of the log stay full.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from loomlog.core.ordered.repair import concerns_all, stands_still, unneeded
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.errors import LoomError
from loomlog.metadata.background import Background, Later, RetryLoop, StepResult
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.losses import Losses
from loomlog.metadata.ordered.status import lacks_space
from loomlog.metadata.ordered.streams import OrderedStreams
from loomlog.types import LogId, NodeId, StreamId

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 0.02  # until the streams of a node are sealed
UNNEEDED_S: Final = 5.0  # all other streams have to run this long: a node may fail again
LOOK_S: Final = 0.5  # between checks while a log has a relief stream


class Relief:
    """Adds a stream to each log without a running one, and retires it when it is no longer
    needed."""

    def __init__(
        self, committer: Committer, streams: OrderedStreams, background: Background
    ) -> None:
        self._catalog, self._nodes = committer.catalog, committer.nodes
        self._records = committer.records
        self._committer = committer
        self._streams = streams
        self._losses = Losses(committer)
        self._one_at_a_time = asyncio.Lock()
        self._work = RetryLoop("relief for node", self._step, background)
        self._retirements = RetryLoop("end of the relief of log", self._retire_step, background)
        self._unneeded_since_s: dict[StreamId, float] = {}

    def start(self) -> None:
        """Watch the relief streams that an earlier leader added."""
        for log_id in self._committer.logs:
            self._retirements.wake(log_id)

    def node_silent(self, node: NodeId) -> None:
        """Watch the logs of a silent node until it is back or replaced everywhere."""
        self._work.wake(node)

    def node_full(self, node: NodeId) -> None:
        """Watch the logs of a node that refuses appends for lack of space."""
        if self._nodes.restrictions(node).full_streams:
            self._work.wake(node)

    def node_joined(self, node: NodeId) -> None:
        """Watch the logs of a node that came back without their data, or that may take a lost
        one."""
        if self._has_lost_logs(node):
            self.node_silent(node)
        self.node_given_up(node)

    def node_given_up(self, node: NodeId) -> None:
        """Watch the streams of a node that lost entries, until these entries are trimmed."""
        for record in self._records.on_node(node):
            stream = self._committer.stream(record.stream_id)
            if stream is not None and self._is_lost_stream(stream):
                self._retirements.wake(record.log_id)

    async def _step(self, node: NodeId) -> StepResult:
        is_full = bool(self._nodes.restrictions(node).full_streams)
        if not (is_full or self._is_missed(node) or self._has_lost_logs(node)):
            return StepResult.IDLE
        await asyncio.sleep(PATIENCE_S)
        async with self._one_at_a_time:
            await self._look_at_logs(node)
        return StepResult.FAILED  # the node is still missed: check again later

    async def _look_at_logs(self, node: NodeId) -> None:
        for log in self._logs_on(node):
            record = self._catalog.log_of(log)
            if record is not None and not record.unfinished and self._stands_still(log, node):
                await self._add_stream(record.name)

    def _logs_on(self, node: NodeId) -> list[LogRounds]:
        logs = map(self._committer.logs.get, self._records.logs_on(node))
        return [log for log in logs if log is not None]

    def _is_missed(self, node: NodeId) -> bool:
        return not self._nodes.alive(node) and bool(self._records.on_node(node))

    def _has_lost_logs(self, node: NodeId) -> bool:
        """Return whether it had a stream of a log whose streams all lost data."""
        return any(self._is_lost(log, node) for log in self._logs_on(node))

    def _is_lost(self, log: LogRounds, node: NodeId) -> bool:
        return concerns_all(log.streams.values(), node, lambda s: self._losses.of(s) is not None)

    def _stands_still(self, log: LogRounds, node: NodeId) -> bool:
        if self._committer.lost_rounds(log.log_id):
            return False
        return stands_still(log.streams.values(), node, self._is_hit, self._is_full)

    def _is_full(self, stream: StreamRounds) -> bool:
        return bool(lacks_space(stream, self._nodes))

    def _is_hit(self, stream: StreamRounds) -> bool:
        is_whole = all(self._nodes.alive(node) for node in stream.replicas)
        return not is_whole or self._losses.of(stream) is not None

    async def _add_stream(self, name: str) -> None:
        try:
            record, _ = await self._streams.add_stream(name, relief=True)
        except LoomError as error:  # too few nodes, for now
            logger.info("log %r has no running stream, and gets none: %s", name, error)
        else:
            logger.warning("log %r had no running stream: it got %d", name, record.stream_id)
            self._retirements.wake(record.log_id)

    # ---- streams that are no longer needed

    def _lost_streams(self, log: LogRounds) -> list[StreamRounds]:
        return list(filter(self._is_lost_stream, log.streams.values()))

    def _is_lost_stream(self, stream: StreamRounds) -> bool:
        return stream.sealed and not stream.removing and self._losses.of(stream) is not None

    async def _retire_step(self, log_id: LogId) -> StepResult | Later:
        log = self._committer.logs.get(log_id)
        reliefs = [s for s in log.streams.values() if s.relief and s.wanted_running] if log else []
        lost = self._lost_streams(log) if log else []
        if log is None or not (reliefs or lost):
            return StepResult.IDLE
        for stream in lost:
            if stream.is_trimmed:  # readers no longer need to see the loss
                with suppress(LoomError):  # no other stream takes appends now
                    await self._streams.retire(stream.stream_id)
        streams, nodes = log.streams.values(), self._nodes
        found = [stream.stream_id for stream in unneeded(streams, nodes.alive, self._is_full)]
        now_s = asyncio.get_running_loop().time()
        for stream in reliefs:
            if stream.stream_id not in found:
                self._unneeded_since_s.pop(stream.stream_id, None)
            elif now_s - self._unneeded_since_s.setdefault(stream.stream_id, now_s) >= UNNEEDED_S:
                await self._streams.retire(stream.stream_id)
                del self._unneeded_since_s[stream.stream_id]
                logger.info("stream %d is not needed any more", stream.stream_id)
        return Later(LOOK_S)
