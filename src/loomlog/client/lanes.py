"""The lanes of one log, and when a lane's open batch is closed.

At the end of the loop's turn while few batches are under way, and otherwise when one of those is
answered or it is full: the more is in flight, the larger batches become.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from loomlog.client.outgoing import Batch, Lane
from loomlog.client.targets import Targets
from loomlog.types import StreamId

FEW_IN_FLIGHT: Final = 2  # per stream or replica of a chain: one on the disk, one on its way


class Lanes:
    """One lane for "any stream", one per named stream that somebody appends to."""

    def __init__(
        self, targets: Targets, closed: Callable[[Batch], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`closed` is told of each batch that is to be sent."""
        self._targets = targets
        self._closed = closed
        self._loop = loop
        self.any = Lane(None)
        self._lanes: dict[StreamId | None, Lane] = {None: self.any}

    def __iter__(self) -> Iterator[Lane]:
        """Those that there are now, whatever becomes of them meanwhile."""
        return iter(list(self._lanes.values()))

    def get(self, stream: StreamId | None) -> Lane:
        lane = self._lanes.get(stream)
        if lane is None:
            lane = self._lanes[stream] = Lane(stream)
        return lane

    def flush_soon(self, lane: Lane) -> None:
        """At the end of this turn of the loop: what else this turn appends comes along."""
        if not lane.flush_scheduled:
            lane.flush_scheduled = True
            self._loop.call_soon(self._flush, lane)

    def _flush(self, lane: Lane) -> None:
        lane.flush_scheduled = False
        under_way = lane.under_way - lane.stalled
        few = FEW_IN_FLIGHT  # or more, if it is worth a look
        if under_way < few or under_way < few * self._targets.width(lane.stream):
            self.close_open(lane)

    def close_open(self, lane: Lane) -> None:
        batch, lane.open = lane.open, None
        if batch is not None:
            self._closed(batch)

    def go_on(self, lane: Lane) -> None:
        """One of its batches was settled."""
        if lane.open is not None:
            self.flush_soon(lane)
        elif lane.stream is not None and not lane.under_way and not lane.flush_scheduled:
            self._lanes.pop(lane.stream, None)
