"""Following a log: the streams' batches, merged into one sequence without holes.

Numbers (positions of the log, or LLSNs of one stream) are dense, so merging needs no comparing: the
next batch is the one that begins with the next number. Every stream has a feed: a subscription at
one replica, a queue, and the next number it has yet to bring. A feed that breaks is opened again at
another replica from that number on, so nothing is lost and nothing comes twice.

Back-pressure: a replica sends `read_ahead_bytes` ahead; consuming gives it credit for more. Batches
are decoded when they are consumed, not when they arrive.

When the next number does not come although it exists, the metadata repository is asked what is the
matter: a new stream, a trim, or a replica that has gone silent.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from loomlog import batch as batches
from loomlog import references
from loomlog.batch import FLAG_REFERENCE, Header
from loomlog.client import backoff
from loomlog.client.metadata import CachedLog
from loomlog.client.nodes import Connections
from loomlog.errors import (
    Corrupt,
    DataLoss,
    LoomError,
    NotFound,
    Retryable,
    Sealed,
    Trimmed,
    Unavailable,
)
from loomlog.net.connection import Connection
from loomlog.references import Reference
from loomlog.types import Entry, StreamId
from loomlog.wire import loomlog_pb2 as pb

if TYPE_CHECKING:
    from loomlog.columns import Batch

STALL_S: Final = 0.2  # the next number exists and does not come: look into it
IDLE_S: Final = 5.0  # nothing is known to exist: is that still true?
SILENT_S: Final = 1.0  # a feed that owes the next number for so long is opened elsewhere
CREDIT_PARTS: Final = 4  # credit is given back in such parts of the window
DAMAGE_MAX: Final = 6  # damaged answers in a row, over all replicas, before we believe it

_ELSEWHERE = (Retryable, NotFound, Sealed)  # another replica, or the same one later, will do
_DAMAGE = (Corrupt, DataLoss)


class Order(Protocol):
    """What a subscription counts by."""

    def first(self, header: Header) -> int: ...

    def bounds(self, log: pb.Log) -> tuple[int, int]:
        """The first number kept (1 if that is not known) and the last one committed."""

    def streams(self, log: pb.Log) -> list[pb.LogStream]: ...

    def request(self, stream: StreamId, start: int) -> pb.Subscribe: ...

    def describe(self, number: int) -> str: ...


class ByPosition:
    """The whole log, in its total order."""

    def first(self, header: Header) -> int:
        return header.first_position

    def bounds(self, log: pb.Log) -> tuple[int, int]:
        return max(log.head, 1), log.tail

    def streams(self, log: pb.Log) -> list[pb.LogStream]:
        return list(log.streams)

    def request(self, stream: StreamId, start: int) -> pb.Subscribe:
        return pb.Subscribe(log_stream_id=stream, first_glsn=start)

    def describe(self, number: int) -> str:
        return f"position {number}"


class ByLlsn:
    """One stream, in its own order."""

    def __init__(self, stream: StreamId) -> None:
        self._stream = stream

    def first(self, header: Header) -> int:
        return header.first_llsn

    def bounds(self, log: pb.Log) -> tuple[int, int]:
        return 1, sum(stream.entries for stream in self.streams(log))

    def streams(self, log: pb.Log) -> list[pb.LogStream]:
        found = [s for s in log.streams if s.log_stream_id == self._stream]
        if not found:
            raise NotFound(f"log {log.name!r} has no stream {self._stream}")
        return found

    def request(self, stream: StreamId, start: int) -> pb.Subscribe:
        return pb.Subscribe(log_stream_id=stream, first_llsn=start)

    def describe(self, number: int) -> str:
        return f"LLSN {number} of stream {self._stream}"


class _Arrived(NamedTuple):
    """A batch in a feed's queue; `first` is the first number in it that is still wanted."""

    begin: int
    first: int
    last: int
    content: memoryview
    opening: int
    refers: bool


class Piece(NamedTuple):
    """The next records of the sequence: `rows` records of a batch after the first `skip`."""

    batch: Batch
    skip: int
    rows: int

    def entries(self) -> list[Entry]:
        found = self.batch.entries(self.skip)
        return found if len(found) == self.rows else found[: self.rows]

    def to_arrow(self) -> Any:
        found = self.batch.to_arrow(self.skip)
        return found if found.num_rows == self.rows else found.slice(0, self.rows)


class Referred(NamedTuple):
    """The same of a reference: `rows` of the rows that it names, after the first `skip`."""

    header: Header
    reference: Reference
    skip: int
    rows: int


class _Feed:
    """One stream's part in a subscription."""

    def __init__(self, stream: StreamId, start: int) -> None:
        self.stream = stream
        self.wanted = start  # the next number not yet received
        self.asked = start  # from where the last replica was asked to send
        self.queue: deque[_Arrived] = deque()
        self.connection: Connection | None = None
        self.subscription_id = 0
        self.openings = 0  # credit for what came over an earlier subscription is void
        self.consumed_bytes = 0  # not yet given back as credit
        self.failures = 0  # since something came
        self.damages = 0
        self.replica = ""  # the address asked last
        self.heard_s = 0.0
        self.opener: asyncio.Task[None] | None = None

    @property
    def opening(self) -> bool:
        return self.opener is not None and not self.opener.done()


class Subscription:
    """One reader's way through a log. `next()` is for one consumer at a time."""

    def __init__(
        self,
        log: CachedLog,
        connections: Connections,
        read_ahead_bytes: int,
        rng: random.Random,
        order: Order,
        start: int | str,
        stop: int | None,
        live: dict[Subscription, None],
    ) -> None:
        self._log = log
        self._connections = connections
        self._window_bytes = read_ahead_bytes
        self._rng = rng
        self._order = order
        self._start = start
        self._stop = stop
        self._live = live  # all that their client has to close
        self._loop = asyncio.get_running_loop()
        self._next = 0  # the number that is delivered next; 0: not begun
        self._feeds: dict[StreamId, _Feed] = {}
        self._heads: dict[int, _Feed] = {}  # by the first number in the feed's queue
        self._known_tail = 0
        self._failure: LoomError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    # ---- the consumer's side

    async def next(self) -> Piece | Referred | None:
        """The next records; None when `stop` was delivered. Waits for what is not written yet."""
        if not self._next:
            await self._begin()
        while True:
            piece = self.next_ready()
            if piece is not None:
                return piece
            if self._failure is not None:
                raise self._failure
            if self._at_end():
                self.close()
                return None
            await self._wait()

    def next_ready(self) -> Piece | Referred | None:
        """The next records if they are here already."""
        while not self._at_end():
            feed = self._heads.pop(self._next, None)
            if feed is None:
                return None
            arrived = feed.queue.popleft()
            if feed.queue:
                self._heads[feed.queue[0].first] = feed
            self._consumed(feed, arrived)
            piece = self._decode(feed, arrived)
            if piece is not None:
                feed.damages = 0
                self._next += piece.rows
                return piece
        return None

    def close(self, error: LoomError | None = None) -> None:
        """Stop; a consumer that waits is told `error`."""
        if error is not None:
            self._fail(error)
        self._closed = True
        self._live.pop(self, None)
        for feed in self._feeds.values():
            self._detach(feed)
            feed.queue.clear()
            if feed.opener is not None:
                feed.opener.cancel()
        self._heads.clear()

    # ---- the merge

    async def _begin(self) -> None:
        self._live[self] = None
        log = await self._log.describe()
        head, tail = self._order.bounds(log)
        if self._start == "earliest":
            self._next = head
        elif self._start == "latest":
            self._next = tail + 1
        else:
            self._next = int(self._start)
        self._adopt(log)

    def _at_end(self) -> bool:
        return self._closed or (self._stop is not None and self._next > self._stop)

    def _decode(self, feed: _Feed, arrived: _Arrived) -> Piece | Referred | None:
        from loomlog import columns

        last = arrived.last if self._stop is None else min(arrived.last, self._stop)
        skip, rows = arrived.first - arrived.begin, last - arrived.first + 1
        try:
            if arrived.refers:
                return Referred(*references.decode(arrived.content), skip, rows)
            return Piece(columns.decode(arrived.content), skip, rows)
        except LoomError as error:
            # What comes after it is taken again from another replica, too.
            if feed.queue:
                self._heads.pop(feed.queue[0].first, None)
            feed.queue.clear()
            feed.wanted = arrived.first
            self._broken(feed, error)
            return None

    def _consumed(self, feed: _Feed, arrived: _Arrived) -> None:
        if arrived.opening == feed.openings:
            self._give_credit(feed, len(arrived.content))

    def _give_credit(self, feed: _Feed, size: int) -> None:
        """Let the replica send so much more, told in parts of the window."""
        feed.consumed_bytes += size
        if feed.connection is not None and feed.consumed_bytes * CREDIT_PARTS >= self._window_bytes:
            credit = pb.SubscriptionCredit(
                subscription_id=feed.subscription_id, bytes=feed.consumed_bytes
            )
            feed.connection.send(pb.Frame(subscription_credit=credit))
            feed.consumed_bytes = 0

    # ---- waiting, and finding out why

    async def _wait(self) -> None:
        """Until the next number is here, or something is wrong; looks into it now and then."""
        since_s, patience_s = self._loop.time(), STALL_S
        while not self._awake():
            await self._doze()
            exists = self._known_tail >= self._next
            due_s = patience_s if exists else IDLE_S
            if not self._awake() and self._loop.time() - since_s >= due_s:
                await self._look_into_it()
                since_s, patience_s = self._loop.time(), min(2 * patience_s, IDLE_S)

    def _awake(self) -> bool:
        return self._next in self._heads or self._failure is not None or self._closed

    async def _doze(self) -> None:
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(STALL_S, self._notify)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def _look_into_it(self) -> None:
        try:
            self._adopt(await self._log.refresh())
        except Retryable:
            return  # the feeds may still bring it
        except LoomError as error:
            self._fail(error)
            return
        if self._known_tail < self._next:
            return
        now_s = self._loop.time()
        for feed in list(self._feeds.values()):
            silent = now_s - feed.heard_s >= SILENT_S
            if feed.wanted <= self._next and silent and not feed.opening:
                self._broken(feed, Unavailable(f"{feed.replica} went silent"))

    def _adopt(self, log: pb.Log) -> None:
        """Take over what the metadata repository says: bounds, and which streams there are."""
        head, tail = self._order.bounds(log)
        self._known_tail = max(self._known_tail, tail)
        if head > self._next:
            self._fail(
                Trimmed(
                    f"{self._order.describe(self._next)} of log {self._log.name!r} was trimmed; "
                    f"the first one kept is {head}: subscribe from there or from 'earliest'"
                )
            )
            return
        for stream in self._order.streams(log):
            if stream.log_stream_id not in self._feeds and not self._at_end():
                feed = _Feed(stream.log_stream_id, self._next)
                self._feeds[feed.stream] = feed
                self._open_soon(feed)

    def _fail(self, error: LoomError) -> None:
        if self._failure is None and not self._closed:
            self._failure = error
        self._notify()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- feeds

    def _open_soon(self, feed: _Feed) -> None:
        if not feed.opening and not self._closed:
            feed.opener = self._loop.create_task(self._open(feed))

    async def _open(self, feed: _Feed) -> None:
        """Subscribe at a replica, another one after each failure, until one takes it."""
        while True:
            try:
                log = await self._log_for(feed)
                replica = self._choose(log, feed)
                if replica is None:
                    self._forget(feed)
                    return
                feed.replica = replica
                connection = await self._connections.connect(replica)
            except Retryable:
                feed.failures += 1
            except LoomError as error:
                self._fail(error)
                return
            else:
                self._subscribe(feed, connection)
                return

    async def _log_for(self, feed: _Feed) -> pb.Log:
        if not feed.failures:
            return await self._log.get()
        await asyncio.sleep(backoff.delay_s(feed.failures - 1, self._rng))
        return await self._log.refresh()

    def _choose(self, log: pb.Log, feed: _Feed) -> str | None:
        """An address for the feed; None if the log has no such stream any more."""
        for stream in log.streams:
            if stream.log_stream_id == feed.stream:
                addresses = [replica.address for replica in stream.replicas]
                others = [address for address in addresses if address != feed.replica]
                if not addresses:
                    raise Unavailable(f"stream {feed.stream} has no replica")
                return self._rng.choice(others or addresses)
        return None

    def _subscribe(self, feed: _Feed, connection: Connection) -> None:
        feed.openings += 1
        feed.consumed_bytes = 0
        feed.heard_s = self._loop.time()
        feed.connection = connection
        # Below the next number everything was delivered; it may even be trimmed by now.
        feed.asked = max(feed.wanted, self._next)
        request = self._order.request(feed.stream, feed.asked)
        request.credit_bytes = self._window_bytes
        feed.subscription_id = connection.call(
            pb.Frame(subscribe=request), (), partial(self._received, feed), many=True
        )

    def _forget(self, feed: _Feed) -> None:
        if not feed.queue:
            self._feeds.pop(feed.stream, None)

    def _detach(self, feed: _Feed) -> None:
        connection, feed.connection = feed.connection, None
        if connection is not None and feed.subscription_id:
            connection.forget(feed.subscription_id)
            cancel = pb.CancelSubscription(subscription_id=feed.subscription_id)
            connection.send(pb.Frame(cancel_subscription=cancel))
        feed.subscription_id = 0

    def _broken(self, feed: _Feed, error: LoomError) -> None:
        self._detach(feed)
        if self._closed:
            return
        feed.failures += 1
        if isinstance(error, _DAMAGE):
            feed.damages += 1
            if feed.damages > DAMAGE_MAX:
                self._fail(error)
                return
        elif not isinstance(error, _ELSEWHERE) and not self._is_outdated(feed, error):
            self._fail(self._named(error))
            return
        self._open_soon(feed)

    def _is_outdated(self, feed: _Feed, error: LoomError) -> bool:
        """What was asked for came from other streams meanwhile, and then it was trimmed."""
        return isinstance(error, Trimmed) and feed.asked < self._next

    def _named(self, error: LoomError) -> LoomError:
        if isinstance(error, Trimmed):
            return Trimmed(
                f"{self._order.describe(self._next)} of log {self._log.name!r} was trimmed "
                f"({error}): subscribe from 'earliest'"
            )
        return error

    def _received(self, feed: _Feed, reply: Any, payload: memoryview) -> None:
        if self._closed:
            return
        if isinstance(reply, LoomError):
            self._broken(feed, reply)
            return
        feed.heard_s = self._loop.time()
        if reply.WhichOneof("body") != "subscription_data":
            self._broken(feed, Unavailable(f"{feed.replica} ended the subscription"))
            return
        feed.failures = 0
        watermark = reply.subscription_data.high_watermark
        try:
            self._take(feed, payload)
        except LoomError as error:
            self._broken(feed, error)
        self._heard_watermark(feed, watermark, complete=not len(payload))
        if self._awake():
            self._notify()

    def _heard_watermark(self, feed: _Feed, watermark: int, *, complete: bool) -> None:
        """`complete`: nothing of this stream up to the watermark is still to come."""
        if not isinstance(self._order, ByPosition):
            return
        self._known_tail = max(self._known_tail, watermark)
        if complete:
            feed.wanted = max(feed.wanted, watermark + 1)

    def _take(self, feed: _Feed, payload: memoryview) -> None:
        """Queue the batches of an answer; what was received before, or is not wanted, is cut."""
        at, size = 0, len(payload)
        while at < size:
            header = batches.read_header(payload, at)
            content = payload[at : at + header.size]
            at += header.size
            begin = self._order.first(header)
            last = begin + header.count - 1
            first = max(begin, feed.wanted)
            if first > last:
                self._give_credit(feed, len(content))
                continue
            if not feed.queue:
                self._heads[first] = feed
            refers = header.flags == FLAG_REFERENCE
            feed.queue.append(_Arrived(begin, first, last, content, feed.openings, refers))
            feed.wanted = last + 1
