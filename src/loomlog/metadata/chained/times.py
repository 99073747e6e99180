"""Where a time begins in a chained segment, for retention."""

from __future__ import annotations

from loomlog.core.chained.outcomes import Interrupted, Trimmed
from loomlog.core.chained.time_search import find_time
from loomlog.core.segments import Segment
from loomlog.errors import Unavailable
from loomlog.metadata.chained.catalog import ChainedCatalog
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.segments import ChainedSegments
from loomlog.metadata.records import LogRecord
from loomlog.types import Glsn


class ChainedTimes:
    def __init__(self, chained: ChainedCatalog, driver: Driver, segments: ChainedSegments) -> None:
        self._chained = chained
        self._driver = driver
        self._segments = segments

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        """As retention.TimeFinder."""
        record = self._chained.get(segment.loglet)
        if record is None:
            raise Unavailable(f"segment {segment.loglet} of log {log.name!r} is just being deleted")
        ended = segment.end is not None
        last = await self._segments.find_tail(segment) if segment.end is None else segment.end
        steps = find_time(record.projection, timestamp_us, first, last, ended=ended)
        outcome = await self._driver.drive(segment.loglet, steps)
        match outcome:
            case Interrupted(reason):
                raise Unavailable(f"segment {segment.loglet}: {reason}")
            case Trimmed(position):
                raise Unavailable(f"segment {segment.loglet} was trimmed to {position} meanwhile")
        return outcome
