"""A stretch of `ordered` segments: the streams' batches, merged into one sequence without holes.

Numbers (positions of the log, or LLSNs of one stream) are dense here, so merging needs no
comparing: the next batch is the one that begins with the next number. Every stream has a feed
(feeds.py). Batches are decoded when they are consumed, not when they arrive.

When the next number does not come although it exists, the metadata repository is asked what is the
matter: a new stream, a trim, the end of the stretch, or a replica that has gone silent.
"""

from __future__ import annotations

from typing import Final

from loomlog.client import pieces
from loomlog.client.feeds import Arrived, Feed, Source
from loomlog.client.following import Following
from loomlog.client.orders import ORDERED, ByPosition
from loomlog.client.parts import trimmed
from loomlog.client.pieces import Piece, Referred
from loomlog.errors import LoomError, Retryable, Unavailable
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb

STALL_S: Final = 0.2  # the next number exists and does not come: look into it
IDLE_S: Final = 5.0  # nothing is known to exist: is that still true?
SILENT_S: Final = 1.0  # a feed that owes the next number for so long is opened elsewhere


class OrderedPart(Following):
    """The numbers from `start` to `stop` inclusive, or to the end of the stretch."""

    def __init__(self, source: Source, log: pb.Log, start: int, stop: int | None) -> None:
        super().__init__(start, stop)
        self._source = source
        self._order = source.order
        self._feeds: dict[StreamId, Feed] = {}
        self._heads: dict[int, Feed] = {}  # by the first number in the feed's queue
        self._known_tail = 0
        self._adopt(log)

    # ---- the consumer's side

    def next_ready(self) -> Piece | Referred | None:
        while not self._at_end():
            feed = self._heads.pop(self._next, None)
            if feed is None:
                return None
            arrived = feed.queue.popleft()
            if feed.queue:
                self._heads[feed.queue[0].first] = feed
            feed.consumed(arrived)
            piece = self._decode(feed, arrived)
            if piece is not None:
                feed.sound()
                self._next += piece.rows
                return piece
        return None

    def _release(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._heads.clear()

    def _decode(self, feed: Feed, arrived: Arrived) -> Piece | Referred | None:
        last = self._clipped(arrived.last)
        skip, rows = arrived.first - arrived.begin, last - arrived.first + 1
        try:
            return pieces.decode(arrived.content, arrived.refers, skip, rows)
        except LoomError as error:
            if feed.queue:
                self._heads.pop(feed.queue[0].first, None)
            feed.damaged(arrived, error)
            return None

    # ---- waiting, and finding out why

    async def _wait(self) -> None:
        """Until the next number is here, or something is wrong; looks into it now and then."""
        since_s, patience_s = self._loop.time(), STALL_S
        while not self._awake():
            await self._doze(self._loop.time() + STALL_S)
            due_s = patience_s if self._suspicious() else IDLE_S
            if not self._awake() and self._loop.time() - since_s >= due_s:
                await self._look_into_it()
                since_s, patience_s = self._loop.time(), min(2 * patience_s, IDLE_S)

    def _suspicious(self) -> bool:
        """The next number exists already, or nobody is left who could bring it."""
        sealed = all(feed.sealed for feed in self._feeds.values())
        return sealed or self._known_tail >= self._next

    def _awake(self) -> bool:
        return self._next in self._heads or self._failure is not None or self._at_end()

    async def _look_into_it(self) -> None:
        try:
            self._adopt(await self._source.log.refresh())
        except Retryable:
            return  # the feeds may still bring it
        except LoomError as error:
            self.fail(error)
            return
        if self._known_tail < self._next:
            return
        now_s = self._loop.time()
        for feed in list(self._feeds.values()):
            silent = now_s - feed.heard_s >= SILENT_S
            if feed.wanted <= self._next and silent and not feed.opening:
                feed.broken(Unavailable(f"{feed.replica} went silent"))

    def _adopt(self, log: pb.Log) -> None:
        """Take over what the metadata repository says: bounds, streams, and where it ends."""
        head, tail = self._order.bounds(log)
        if head > self._next:
            self.fail(trimmed(self._order, self._next, log.name, head))
            return
        stretch = self._order.stretch(log, self._next)
        last = stretch.last
        if stretch.protocol != ORDERED:  # all of this stretch was delivered, then it ended
            stretch, last = stretch._replace(streams=[]), self._next - 1
        if last is not None:
            tail = min(tail, last)
            self._stop = self._clipped(last)
        self._known_tail = max(self._known_tail, tail)
        for stream in stretch.streams:
            if stream.log_stream_id not in self._feeds and not self._at_end():
                feed = Feed(self._source, self, stream.log_stream_id, self._next)
                self._feeds[feed.stream] = feed
                feed.open_soon()

    # ---- what feeds tell

    @property
    def wanted(self) -> int:
        return self._next

    def queued(self, feed: Feed) -> None:
        self._heads[feed.queue[0].first] = feed

    def heard(self, feed: Feed, watermark: int, *, complete: bool) -> None:
        if isinstance(self._order, ByPosition):
            self._known_tail = max(self._known_tail, watermark)
            if complete:
                feed.wanted = max(feed.wanted, watermark + 1)
        if self._awake():
            self._notify()

    def over(self, feed: Feed) -> None:
        if not feed.queue:
            self._feeds.pop(feed.stream, None)
