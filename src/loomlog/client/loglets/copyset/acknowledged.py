"""Reports entries that were acknowledged to this client, and that all disks have forgotten.

What recovery left of an epoch is in the log's metadata. This client looks there whether all of its
own entries are, once their epoch has ended. While it appends, and nothing ends, it asks nothing. If
it appends nothing more, it looks now and then, less and less often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Final

from loomlog.client.context import Client
from loomlog.client.loglets.copyset.segments import Segments
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.core.backoff import Backoff
from loomlog.core.copyset.acknowledged import AcknowledgedRanges, Ranges, to_report
from loomlog.core.copyset.late_losses import FORGOTTEN_MAX
from loomlog.errors import InvalidArgument, LoomError, NotFound, PermissionDenied
from loomlog.types import Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

LOOK: Final = Backoff(2.0, 300.0)  # between looks; short again after an append
REPORT_AGAIN: Final = Backoff(0.1, 5.0)
REPORT_S: Final = 15.0  # for the metadata repository to record what is lost
REPORT_LAST_S: Final = 0.3  # for what is not reported when the client is closed


class Acknowledgements:
    """Keeps what was acknowledged to this client in the copyset segments of one log."""

    def __init__(self, segments: Segments, client: Client) -> None:
        self._segments = segments
        self._metadata = client.metadata
        self._rng = client.rng
        self._loop = client.loop
        self.news: list[tuple[StreamId, Glsn, int]] = []  # where, and how many; see `add`
        self.is_watched = False  # whether a look at the news is due soon
        self._by_stream: dict[StreamId, AcknowledgedRanges] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._idle_looks = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closed = False

    def add(self, stream: StreamId, first: Glsn, count: int) -> None:
        """Add what was acknowledged. (Batches do the same without a call.)"""
        self.news.append((stream, first, count))
        if not self.is_watched:
            self.look_soon()

    def look_soon(self) -> None:
        """Look at the news soon; the next look may be minutes away otherwise."""
        self._idle_looks = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._look_later()

    async def close(self) -> None:
        """Report what is known to be lost."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._settle()
        until_s = self._loop.time() + REPORT_LAST_S
        while self._tasks and (left_s := until_s - self._loop.time()) > 0:
            await asyncio.wait(list(self._tasks), timeout=left_s)  # they may begin others
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- looking

    def _look_later(self) -> None:
        if self._timer is None and not self._closed:
            delay_s = LOOK.delay_s(self._idle_looks, self._rng)
            self._timer = self._loop.call_later(delay_s, self._look)
        self.is_watched = not self._idle_looks

    def _look(self) -> None:
        self._timer = None
        self.is_watched = False
        is_active = bool(self.news)
        self._idle_looks = 0 if is_active else self._idle_looks + 1
        if self._settle() or not is_active:
            self._spawn(self._refresh())
        if self._by_stream:
            self._look_later()

    async def _refresh(self) -> None:
        try:
            await self._segments.log.refresh()
        except NotFound:
            self._by_stream.clear()
        except LoomError:
            pass  # it looks again
        else:
            self._settle()

    def _settle(self) -> bool:
        """Report or drop the ranges of epochs that are known as recovered. Return whether others
        are over, so that newer metadata is needed."""
        self._take_news()
        is_outdated = False
        for stream, ranges in list(self._by_stream.items()):
            try:
                state = self._segments.view(stream).state
            except SegmentGoneError:
                del self._by_stream[stream]
                continue
            except LoomError:
                is_outdated = True
                continue
            if lost := to_report(state, ranges.take(state.last_clean)):
                self._spawn(self._report(stream, lost))
            is_outdated = is_outdated or ranges.is_over(state.epoch)
            if not ranges:
                del self._by_stream[stream]
        return is_outdated

    def _take_news(self) -> None:
        news, self.news = self.news, []
        for stream, first, count in news:
            self._by_stream.setdefault(stream, AcknowledgedRanges()).add(first, first + count - 1)

    # ---- reporting

    async def _report(self, stream: StreamId, lost: Ranges) -> None:
        """Report lost ranges; try again until that is done."""
        attempts = 0
        while lost:
            try:
                loglet = self._segments.view(stream).loglet
                some = (pb.CopysetRange(first=r[0], last=r[1]) for r in lost[:FORGOTTEN_MAX])
                report = pb.ReportForgotten(loglet_id=loglet, ranges=some)
                await self._metadata.request(pb.Frame(report_forgotten=report), timeout_s=REPORT_S)
                lost = lost[FORGOTTEN_MAX:]
            except (SegmentGoneError, NotFound, InvalidArgument, PermissionDenied):
                return  # it was trimmed, or that is not known or allowed there
            except LoomError:
                await asyncio.sleep(REPORT_AGAIN.delay_s(attempts, self._rng))
                attempts += 1

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
