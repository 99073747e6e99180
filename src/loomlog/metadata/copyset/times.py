"""Find where a time begins in a copyset segment, for retention.

Trims end at partitions of the nodes' stores, so that nodes only have to drop whole partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from loomlog.core.copyset.landmarks import Ages, last_to_go
from loomlog.core.copyset.nodeset import Authority
from loomlog.core.copyset.record import skip_zero
from loomlog.core.segments import Segment
from loomlog.errors import LoomError, Unavailable
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.copyset.catalog import CopysetCatalog
from loomlog.metadata.copyset.nodes import CopysetNodes
from loomlog.metadata.copyset.orders import CopysetOrders
from loomlog.metadata.copyset.record import CopysetRecord
from loomlog.types import Glsn, NodeId
from loomlog.wire import loomlog_pb2 as pb


class CopysetTimes:
    """Finds where a time begins, from the landmarks of the nodes."""

    def __init__(
        self, copysets: CopysetCatalog, nodes: CopysetNodes, orders: CopysetOrders
    ) -> None:
        self._copysets = copysets
        self._nodes = nodes
        self._orders = orders

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        record = self._copysets.get(segment.loglet)
        if record is None or not record.begun:
            raise Unavailable(f"segment {segment.loglet} of log {log.name!r} is not there now")
        marks = await self._landmarks(record, timestamp_us)
        last = last_to_go(
            record.state,
            {node: Ages(mark.older, mark.young) for node, mark in marks.items()},
            {node: mark.released for node, mark in marks.items()},
            {node: Authority.UNDERREPLICATED for node, m in marks.items() if m.underreplicated},
        )
        if last is None:
            raise Unavailable(f"too few nodes of segment {segment.loglet} answer")
        return max(first, skip_zero(last + 1))

    async def _landmarks(
        self, record: CopysetRecord, timestamp_us: int
    ) -> Mapping[NodeId, pb.CopysetLandmarks]:
        """Return the landmarks of the nodes that answer."""
        nodes = [node for node in record.holders if self._nodes.reachable(node)]
        answers = await asyncio.gather(
            *(self._orders.find_landmarks(node, record.loglet, timestamp_us) for node in nodes),
            return_exceptions=True,
        )
        marks = dict(zip(nodes, answers, strict=True))
        for failure in marks.values():
            if isinstance(failure, BaseException) and not isinstance(failure, LoomError):
                raise failure
        return {n: mark for n, mark in marks.items() if isinstance(mark, pb.CopysetLandmarks)}
