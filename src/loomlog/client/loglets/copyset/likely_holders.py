"""Reads one record from single nodes that are likely to hold it, before all are asked at once.

Which nodes hold it is not known, but in a small nodeset most do, and asking one is much cheaper
than asking all. A record that a node returns is valid; that it has none proves nothing, and then a
reader (reader_driver.py) has to find out.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.client.loglets.copyset.known_segments import Segments, View
from loomlog.core.copyset.messages import Delivered, Read
from loomlog.core.copyset.record import Kind, Lsn, Record, epoch_of
from loomlog.errors import LoomError
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import answer_from_wire, request_to_wire
from loomlog.wire.link import Connection

GUESSES_MAX: Final = 3  # in nodesets that need more, guessing does not pay off
ANSWER_S: Final = 0.05  # until a silent node is given up
AVOIDED_S: Final = 5.0  # for which a silent node is not asked first again


class Guessing:
    """Reads single records of the copyset segments of one log from likely holders."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._avoided: dict[NodeId, float] = {}  # until this time of the loop's clock

    async def find(self, view: View, position: Lsn, room_bytes: int) -> Record | None:
        """Return the record that covers the position; None if no node asked has it."""
        if position <= view.state.trimmed:
            return None
        for node in _holders(view, position):
            connection = self._connection(view, node)
            if connection is None:
                continue
            record = await self._ask(view, node, connection, position, room_bytes)
            if record is not None:
                return record
        return None

    def _connection(self, view: View, node: NodeId) -> Connection | None:
        """Return an open connection; opening one may take too long."""
        if asyncio.get_running_loop().time() < self._avoided.get(node, 0.0):
            return None
        return self._segments.connected(view, node)

    async def _ask(
        self, view: View, node: NodeId, connection: Connection, position: Lsn, room_bytes: int
    ) -> Record | None:
        read = Read(view.loglet, position, position, room_bytes, everything=True)
        message, _ = request_to_wire(read, view.state.stamp)
        try:
            reply, payload = await connection.request(
                pb.Frame(copyset_request=message), timeout_s=ANSWER_S
            )
            answer = answer_from_wire(reply.copyset_answer, payload)
        except LoomError:
            self._avoided[node] = asyncio.get_running_loop().time() + AVOIDED_S
            return None
        for record in answer.records if isinstance(answer, Delivered) else ():
            if record.kind is Kind.DATA and record.first <= position <= record.last:
                return record
        return None


def _holders(view: View, position: Lsn) -> list[NodeId]:
    """Return enough nodes that one holds the record unless it was lost, rotated by position."""
    state, epoch = view.state, epoch_of(position)
    if not state.history or epoch < state.history[0].since:
        return []
    metadata = state.metadata_of(epoch)
    nodes = sorted(metadata.nodes)
    count = min(len(nodes) - metadata.replication + 1, GUESSES_MAX)
    first = position % len(nodes)
    return (nodes[first:] + nodes[:first])[:count]
