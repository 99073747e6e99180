"""A segment of a log as a loglet (core/loglet.py), whatever its protocol: sealed by a switch.

What goes on in the segment that follows is not this loglet's: appends go to its own stream, and it
ends where its end is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

from loomlog.client.info import LogInfo, SegmentInfo
from loomlog.client.log import Log
from loomlog.client.operator import Operator
from loomlog.core.loglet import Tail
from loomlog.errors import NotYetWritten
from loomlog.types import Buffer, Entry, Glsn, LogId, StreamId


class SegmentLoglet:
    """One that has one stream."""

    def __init__(self, log: Log, operator: Operator, loglet: LogId, stream: StreamId) -> None:
        self._log = log
        self._operator = operator
        self._loglet = loglet
        self._stream = stream

    async def append(self, values: Sequence[Buffer]) -> Glsn:
        """Sealed only after the client's append timeout."""
        return (await self._log.append_many(values, stream=self._stream))[0].position

    async def read(self, position: Glsn) -> Entry:
        entry = await self._log.read(position)
        if entry.stream != self._stream:
            raise NotYetWritten(f"position {position} is of another segment")
        return entry

    async def tail(self) -> Tail:
        info = await self._log.describe()
        end = self._segment(info).end
        return Tail(info.tail, False) if end is None else Tail(end, True)

    async def trim(self, position: Glsn) -> None:
        await self._log.trim(position)

    async def seal(self) -> Glsn:
        info = await self._log.describe()
        while (end := self._segment(info).end) is None:
            await self._operator.switch_log(self._log.name, protocol="ordered")
            info = await self._log.describe()
        return end

    def _segment(self, info: LogInfo) -> SegmentInfo:
        return next(segment for segment in info.segments if segment.id == self._loglet)
