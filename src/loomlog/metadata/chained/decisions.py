"""Decide positions for nodes whose clients have read but not append permission.

Nodes do not store writes of such clients. They ask here instead, where the range of handed-out
positions is known, and the position is decided as by a trusted reader: a half-written block is
brought to the tail, and a hole is filled, once its writer had time to write.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.core.chained.chain import Projection
from loomlog.core.chained.hole_ages import HoleAges
from loomlog.core.chained.messages import Interrupted, NotWritten
from loomlog.core.chained.read import decide_at, read_at
from loomlog.errors import Busy, InvalidArgument, NotFound, Unauthorized, Unavailable
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.records import ChainedCatalog
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.types import Glsn, LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

AT_ONCE: Final = 16  # of all loglets; each asks a few replicas
ASKED_MAX: Final = 1000  # unanswered requests


class Decisions:
    """Decides positions of this term's loglets."""

    def __init__(
        self,
        records: ChainedCatalog,
        sequencers: Sequencers,
        driver: Driver,
        connected: ConnectedNodes,
    ) -> None:
        self._records = records
        self._sequencers = sequencers
        self._driver = driver
        self._connected = connected
        self._room = asyncio.Semaphore(AT_ONCE)
        self._asked = 0
        self._ages: dict[LogId, tuple[int, HoleAges]] = {}  # with their epochs

    async def answer(self, connection: Connection, frame: pb.Frame) -> pb.Frame:
        """Answer when a block permanently covers the position."""
        asked = frame.decide_position
        node, record = self._connected.node_of(connection), self._records.get(asked.loglet_id)
        if record is None or all(r.node_id != node for r in record.projection.replicas):
            raise Unauthorized(f"node {node} has no replica of segment {asked.loglet_id}")
        projection = record.projection
        if asked.epoch != projection.epoch:
            raise Unavailable(f"epoch {projection.epoch} of segment {record.loglet} is in force")
        if self._asked >= ASKED_MAX:
            raise Busy("too many positions are being decided: try again later")
        self._asked += 1
        try:
            await self._decide(projection, asked.position)
        except (
            InvalidArgument
        ) as error:  # that error would mean that this server is too old for the request
            raise Unavailable(str(error)) from error
        finally:
            self._asked -= 1
        return pb.Frame(done=pb.Done())

    async def _decide(self, projection: Projection, position: Glsn) -> None:
        loglet = projection.log_id
        end = projection.start if projection.closed else self._sequencers.end_of(loglet)
        if not projection.first <= position < end:
            raise NotFound(f"position {position} of segment {loglet} is not handed out")
        async with self._room:
            outcome = await self._driver.drive(loglet, read_at(projection, position))
        if isinstance(outcome, NotWritten):
            if position >= projection.start:
                await asyncio.sleep(self._wait_s(projection, position, end))
            async with self._room:
                outcome = await self._driver.drive(loglet, decide_at(projection, position))
        match outcome:
            case NotWritten():
                raise NotFound(f"position {position} of segment {loglet} is not handed out")
            case Interrupted(reason):
                raise Unavailable(f"position {position} of segment {loglet}: {reason}")

    def _wait_s(self, projection: Projection, position: Glsn, end: Glsn) -> float:
        epoch, ages = self._ages.get(projection.log_id, (0, HoleAges()))
        if epoch != projection.epoch:
            ages = HoleAges()
            kept = {key: each for key, each in self._ages.items() if self._records.get(key)}
            self._ages = {**kept, projection.log_id: (projection.epoch, ages)}
        return ages.wait_s(position, end, asyncio.get_running_loop().time())
