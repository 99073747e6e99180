"""The places of a log that can be asked for: its ends, where a time begins, checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import TYPE_CHECKING

from loomlog.client.archived import ArchivedLog, Pieces
from loomlog.client.checkpoints import Checkpoint, CheckpointInfo, Checkpoints
from loomlog.client.metadata import Metadata
from loomlog.client.moments import timestamp_us
from loomlog.client.time_search import TimeSearch
from loomlog.types import Gap, Glsn
from loomlog.wire import loomlog_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa


class Landmarks(ABC):
    """The part of a Log that knows them."""

    name: str
    _metadata: Metadata
    _archived: ArchivedLog
    _times: TimeSearch
    _checkpoints: Checkpoints

    async def tail(self) -> Glsn:
        """The last committed position; 0 if there is none."""
        return (await self._bounds()).tail

    async def head(self) -> Glsn:
        """The first position that is not trimmed."""
        return (await self._bounds()).head

    async def is_empty(self) -> bool:
        """Whether there is nothing between head and tail; an archive does not count."""
        bounds = await self._bounds()
        return bool(bounds.head > bounds.tail)

    async def earliest(self) -> Glsn:
        """The first position that can be read: the archive's first if there is one, else the
        head."""
        return await self._archived.earliest()

    async def find_time(self, moment: datetime | float) -> Glsn:
        """The first position whose entry has this timestamp or a later one, one past the tail if
        none has; a float is seconds since 1970. What was trimmed is not searched.

        Timestamps are the writers'. Where they do not grow with positions, this is still the first
        one if the log is `ordered`, and one of several places otherwise."""
        return await self._times.find(timestamp_us(moment), self._rows_from)

    def checkpoint(self, name: str) -> Checkpoint:
        """The checkpoint of this name; it exists once it was set."""
        return self._checkpoints.checkpoint(name)

    async def checkpoints(self) -> dict[str, CheckpointInfo]:
        """All checkpoints of this log, by name."""
        return await self._checkpoints.all()

    @abstractmethod
    def open_subscription(
        self, start: Glsn | str, stop: Glsn | None, *, archived: bool = True, gaps: bool = False
    ) -> Pieces: ...

    async def _rows_from(self, start: Glsn, stop: Glsn) -> pa.RecordBatch | None:
        pieces = self.open_subscription(start, stop, archived=False)
        try:
            while isinstance(piece := await pieces.next(), Gap):
                pass
            return None if piece is None else piece.to_arrow()
        finally:
            pieces.close()

    async def _bounds(self) -> pb.Bounds:
        frame = pb.Frame(get_bounds=pb.GetBounds(name=self.name))
        return (await self._metadata.request(frame)).bounds
