"""A log in which no stream runs any more, because of a dead node, gets a new, empty stream.

Filling a spare with what a stream has stored takes as long as there is data; an empty stream has
nothing to be filled with and takes appends at once. The order of the log does not mind: streams
come and go in it. The others are repaired meanwhile and run again beside it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from loomlog.core.ordered.rounds import LogRounds
from loomlog.errors import LoomError
from loomlog.metadata.admin import Admin
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.members import Members
from loomlog.types import NodeId

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 0.25  # little data is copied sooner than that


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
        """Look at its logs when a moment has passed."""
        self._background.spawn(self._relieve_later(node), f"relief for node {node}")

    async def _relieve_later(self, node: NodeId) -> None:
        await asyncio.sleep(PATIENCE_S)
        if self._members.alive(node):
            return
        for record in list(self._catalog.logs.values()):
            log = self._committer.logs.get(record.log_id)
            if log is not None and not record.creating and _stands_still(log, node):
                logger.warning("log %r has no running stream: it gets a new one", record.name)
                await self._add_stream(record.name)

    async def _add_stream(self, name: str) -> None:
        try:
            await self._admin.add_stream(name)
        except LoomError as error:
            logger.warning("log %r gets no new stream: %s", name, error)


def _stands_still(log: LogRounds, node: NodeId) -> bool:
    streams = log.streams.values()
    concerned = any(node in stream.replicas for stream in streams)
    wanted = any(stream.wanted_running for stream in streams)
    return concerned and wanted and all(stream.sealed for stream in streams)
