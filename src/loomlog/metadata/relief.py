"""A log in which no stream runs any more, because of a dead node, gets a new, empty stream.

Filling a spare with what a stream has stored takes as long as there is data; an empty stream has
nothing to be filled with and takes appends at once. The order of the log does not mind: streams
come and go in it. The others are repaired meanwhile and run again beside it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.errors import LoomError
from loomlog.metadata.admin import Admin
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.members import Members
from loomlog.types import NodeId

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 0.25  # little data is copied sooner than that
PATIENCE_MAX_S: Final = 5.0


class Relief:
    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        members: Members,
        admin: Admin,
        background: Background,
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._members = members
        self._admin = admin
        self._background = background

    def node_silent(self, node: NodeId) -> None:
        """Look after its logs until it is back or replaced everywhere."""
        self._background.spawn(self._relieve(node), f"relief for node {node}")

    async def _relieve(self, node: NodeId) -> None:
        delay_s = PATIENCE_S
        while self._is_missed(node):
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, PATIENCE_MAX_S)
            for record in list(self._catalog.logs.values()):
                log = self._committer.logs.get(record.log_id)
                if log is not None and not record.creating and self._stands_still(log, node):
                    await self._add_stream(record.name)

    def _is_missed(self, node: NodeId) -> bool:
        if self._members.alive(node):
            return False
        streams = (s for log in self._committer.logs.values() for s in log.streams.values())
        return any(node in stream.replicas for stream in streams)

    def _stands_still(self, log: LogRounds, node: NodeId) -> bool:
        """No stream runs, and none can before a dead node is back or replaced."""
        streams = [stream for stream in log.streams.values() if not stream.closed]
        concerned = any(node in s.replicas and s.wanted_running for s in streams)
        return concerned and all(s.sealed and self._is_hit(s) for s in streams)

    def _is_hit(self, stream: StreamRounds) -> bool:
        return not all(self._members.alive(node) for node in stream.replicas)

    async def _add_stream(self, name: str) -> None:
        try:
            record, _ = await self._admin.add_stream(name)
        except LoomError as error:  # too few nodes, for now
            logger.info("log %r has no running stream, and gets none: %s", name, error)
        else:
            logger.warning("log %r had no running stream: it got %d", name, record.stream_id)
