"""One record, asked of one node after the other before all are asked at once.

Which nodes have it is not known, but in a small nodeset it is most of them, and to ask one is much
less work than to ask all. What a node shows is the record that stands there. That a node has
nothing means nothing: then a reader (reading.py) finds out.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.client.copyset.segments import Segments, View
from loomlog.core.copyset.lsn import Lsn, epoch_of
from loomlog.core.copyset.messages import Delivered, Read
from loomlog.core.copyset.record import Kind, Record
from loomlog.errors import LoomError
from loomlog.net.connection import Connection
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import answer_from_wire, request_to_wire

GUESSES_MAX: Final = 3  # where this is not enough, nodesets are large, and it is not worth it
ANSWER_S: Final = 0.05  # for a node that is silent nobody waits longer
AVOIDED_S: Final = 5.0  # so long it is not asked first again


class Guessing:
    """For one client, in the copyset segments of one log."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._avoided: dict[NodeId, float] = {}  # until when, by the loop's clock

    async def find(self, view: View, position: Lsn, room_bytes: int) -> Record | None:
        """The record that covers the position. None: nobody knows."""
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
        """An open one: else it may take long."""
        if asyncio.get_running_loop().time() < self._avoided.get(node, 0.0):
            return None
        return self._segments.connected(view, node)

    async def _ask(
        self, view: View, node: NodeId, connection: Connection, position: Lsn, room_bytes: int
    ) -> Record | None:
        read = Read(view.loglet, position, position, room_bytes, everything=True)
        message, _ = request_to_wire(read)
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
    """So many that one of them has it, if none has lost it; others for each position."""
    state, epoch = view.state, epoch_of(position)
    if not state.history or epoch < state.history[0].since:
        return []
    metadata = state.metadata_of(epoch)
    nodes = sorted(metadata.nodes)
    count = min(len(nodes) - metadata.replication + 1, GUESSES_MAX)
    first = position % len(nodes)
    return (nodes[first:] + nodes[:first])[:count]
