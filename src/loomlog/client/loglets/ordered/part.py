"""Follows a run of `ordered` segments: merges the streams' batches into one dense sequence.

Numbers (positions of the log, or LLSNs of one stream) are dense, so merging needs no comparisons:
the next batch is the one that begins with the next number. Each stream has a feed (feed.py).
Batches are decoded when they are consumed, not when they arrive.

If the next number exists but does not arrive, the metadata repository is asked for the reason: a
new stream, a trim, the end of the run, or a replica that has gone silent.
"""

from __future__ import annotations

from typing import Final

from loomlog.batch import Header
from loomlog.client.loglets.ordered.feed import Arrived, Feed, Source
from loomlog.client.subscribe import pieces
from loomlog.client.subscribe.part import FollowedPart, trimmed
from loomlog.client.subscribe.pieces import Piece, Referred, Stored
from loomlog.core.backoff import Backoff
from loomlog.errors import DataLoss, LoomError, Retryable, Unavailable
from loomlog.protocol_names import ORDERED
from loomlog.types import Gap, StreamId
from loomlog.wire import loomlog_pb2 as pb

STALL_S: Final = 0.2  # until a number that exists but has not arrived is investigated
IDLE_S: Final = 5.0  # between checks while no further number is known to exist
SILENT_S: Final = 1.0  # until a feed that does not deliver the next number changes its replica


class OrderedPart(FollowedPart):
    """The numbers from `start` to `stop` inclusive, or to the end of the run."""

    def __init__(self, source: Source, log: pb.Log, start: int, stop: int | None) -> None:
        super().__init__(start, stop)
        self._source = source
        self._options = source.options
        self._numbering = source.options.numbering
        self._feeds: dict[StreamId, Feed] = {}
        self._heads: dict[int, Feed] = {}  # by the first number in the feed's queue
        self._known_tail = 0
        self._lost: Gap | None = None  # to be delivered first
        self._adopt(log)

    # ---- the consumer's side

    def next_ready(self) -> Stored | None:
        if self._lost is not None:
            lost, self._lost = self._lost, None
            self._next = lost.last + 1
            return lost
        while not self._at_end():
            feed = self._heads.pop(self._next, None)
            if feed is None:
                return None
            arrived = feed.queue.popleft()
            if feed.queue:
                self._heads[feed.queue[0].first] = feed
            feed.consumed(arrived)
            if arrived.header is None:
                self._next = self._clipped(arrived.last) + 1
                return Gap(arrived.first, self._next - 1, "dataloss")
            piece = self._decode(feed, arrived, arrived.header)
            if piece is not None:
                feed.sound()
                self._next += piece.rows
                return piece
        return None

    def _release(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._heads.clear()

    def _decode(self, feed: Feed, arrived: Arrived, header: Header) -> Piece | Referred | None:
        last = self._clipped(arrived.last)
        skip, rows = arrived.first - arrived.begin, last - arrived.first + 1
        try:
            return pieces.decode(arrived.content, header, skip, rows)
        except LoomError as error:
            if feed.queue:
                self._heads.pop(feed.queue[0].first, None)
            feed.damaged(arrived, error)
            return None

    # ---- waiting and investigating

    async def _wait(self) -> None:
        """Wait until the next number has arrived or the part has failed; investigate at times."""
        since_s, looks, patience = self._loop.time(), 0, Backoff(STALL_S, IDLE_S)
        while not self._awake():
            await self._doze(self._loop.time() + STALL_S)
            due_s = patience.delay_s(looks) if self._suspicious() else IDLE_S
            if not self._awake() and self._loop.time() - since_s >= due_s:
                await self._look_into_it()
                since_s, looks = self._loop.time(), looks + 1

    def _suspicious(self) -> bool:
        """Return whether the next number already exists, or no feed can deliver it."""
        sealed = all(feed.sealed for feed in self._feeds.values())
        return sealed or self._known_tail >= self._next

    def _awake(self) -> bool:
        is_decided = self._failure is not None or self._lost is not None
        return self._next in self._heads or is_decided or self._at_end()

    async def _look_into_it(self) -> None:
        try:
            log = await self._source.log.refresh()
            self._adopt(log)
        except Retryable:
            return  # the feeds may still deliver it
        except LoomError as error:
            self.fail(error)
            return
        if self._known_tail < self._next or self._awake():
            return
        if (last := self._last_lost(log)) is not None:
            self._tell_loss(last)
            return
        now_s = self._loop.time()
        for feed in list(self._feeds.values()):
            silent = now_s - feed.heard_s >= SILENT_S
            if feed.wanted <= self._next and silent and not feed.opening:
                feed.broken(Unavailable(f"{feed.replica} went silent"))

    def _last_lost(self, log: pb.Log) -> int | None:
        """Return the end of a loss that begins at the next number; None if that may still arrive.
        It is lost if the streams with lost entries have no more, and all others are past it."""
        lost = {s.log_stream_id: s for s in log.streams if s.lost_from}
        last = self._clipped(min([self._known_tail, *(head - 1 for head in self._heads)]))
        for feed in self._feeds.values():
            stream, received = lost.get(feed.stream), feed.wanted - 1
            if stream is None or max(received, self._next - 1) < self._kept(stream):
                last = min(last, received)
        return last if lost.keys() & self._feeds.keys() and last >= self._next else None

    def _kept(self, stream: pb.LogStream) -> int:
        """Return the last number before the stream's loss."""
        return stream.lost_after if self._numbering.crosses else stream.lost_from - 1

    def _tell_loss(self, last: int) -> None:
        if self._options.gaps:
            self._lost = Gap(self._next, last, "dataloss")
            self._notify()
            return
        self.fail(
            DataLoss(
                f"{self._numbering.describe(self._next)} of log {self._source.log.name!r} up to "
                f"{last} were acknowledged, and all their replicas are gone: continue at "
                f"{last + 1}, or ask for gaps, too (gaps=True, --gaps)"
            )
        )

    def _adopt(self, log: pb.Log) -> None:
        """Adopt the bounds, the streams and the run's end from newer metadata."""
        head, tail = self._numbering.bounds(log)
        if head > self._next:
            self.fail(trimmed(self._numbering, self._next, log.name, head))
            return
        run = self._numbering.run(log, self._next)
        last = run.last
        if run.protocol != ORDERED:  # the run has ended, and all of it was delivered
            run, last = run._replace(streams=[]), self._next - 1
        if last is not None:
            tail = min(tail, last)
            self._stop = self._clipped(last)
        self._known_tail = max(self._known_tail, tail)
        for stream in run.streams:
            if stream.log_stream_id not in self._feeds and not self._at_end():
                feed = Feed(self._source, self, stream.log_stream_id, self._next)
                self._feeds[feed.stream] = feed
                feed.open_soon()

    # ---- callbacks of feeds

    @property
    def wanted(self) -> int:
        return self._next

    def queued(self, feed: Feed) -> None:
        self._heads[feed.queue[0].first] = feed

    def heard(self, feed: Feed, watermark: int, *, complete: bool) -> None:
        if self._numbering.crosses:
            self._known_tail = max(self._known_tail, watermark)
            if complete:
                feed.wanted = max(feed.wanted, watermark + 1)
        if self._awake():
            self._notify()

    def over(self, feed: Feed) -> None:
        if not feed.queue:
            self._feeds.pop(feed.stream, None)
