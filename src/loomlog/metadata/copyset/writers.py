"""Take reports of writers about acknowledged entries that all disks have forgotten.

Only what recovery left without an entry can become lost by a report. So a writer that lies can hide
nothing; what it can do is to have readers told of losses where there was nothing.
"""

from __future__ import annotations

import logging
from functools import partial

from loomlog.core.copyset.late_losses import FORGOTTEN_MAX, forgotten
from loomlog.core.copyset.record import epoch_of
from loomlog.errors import InvalidArgument, NotFound, Unavailable
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

logger = logging.getLogger(__name__)


class WriterReports:
    """Records the losses that writers report."""

    def __init__(self, epochs: EpochStore) -> None:
        self._epochs = epochs

    async def answer(self, connection: Connection, frame: pb.Frame) -> pb.Frame:
        """Answer when all losses are recorded."""
        report = frame.report_forgotten
        loglet, ranges = report.loglet_id, [(each.first, each.last) for each in report.ranges]
        if len(ranges) > FORGOTTEN_MAX:
            raise InvalidArgument(f"{len(ranges)} ranges are too many at a time")
        record = self._epochs.records.get(loglet)
        if record is None or self._epochs.catalog.segment_of(record) is None:
            raise NotFound(f"there is no segment {loglet} of protocol copyset")
        state = record.state
        newest = max((epoch_of(last) for _, last in ranges), default=0)
        if newest > state.last_clean:
            raise Unavailable(f"epoch {newest} of segment {loglet} is not recovered: try again")
        if record.begun and forgotten(state, ranges) != state:
            await self._epochs.change(loglet, partial(forgotten, ranges=ranges))
            logger.warning(
                "segment %d: a writer knows of entries that all nodes have forgotten: they are "
                "lost",
                loglet,
            )
        return pb.Frame(done=pb.Done())
