"""Feeds: each subscribes to one `ordered` stream at a replica and queues its batches.

A feed that fails is opened again at another replica from the next number that it has not received,
so nothing is lost or duplicated.

Back-pressure: a replica sends a window of bytes ahead; consuming gives it credit for more.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any, Final, NamedTuple, Protocol

from loomlog import batch as batches
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import BACKOFF
from loomlog.client.loglets.contract import FollowOptions
from loomlog.client.servers import Connections
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
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

CREDIT_PARTS: Final = 4  # credit is sent per this fraction of the window
DAMAGE_MAX: Final = 6  # consecutive damaged answers, over all replicas, before the feed fails

_ELSEWHERE = (Retryable, NotFound, Sealed)  # try another replica, or the same one later
_DAMAGE = (Corrupt, DataLoss)


class Arrived(NamedTuple):
    """A batch in a feed's queue; `first` is its first number that is still wanted."""

    begin: int
    first: int
    last: int
    content: memoryview
    opening: int
    header: batches.Header | None  # None: no replica can read it


class Source(NamedTuple):
    """Services and options that the feeds of a subscription share."""

    log: CachedLog
    connections: Connections
    rng: random.Random
    options: FollowOptions


class Merge(Protocol):
    """The consumer of feeds, which merges them."""

    @property
    def wanted(self) -> int:
        """The next number to deliver."""

    def queued(self, feed: Feed) -> None:
        """Called when a feed's queue is no longer empty."""

    def heard(self, feed: Feed, watermark: int, *, complete: bool) -> None:
        """Called for each answer. `complete`: the feed has received everything of its stream up to
        the watermark."""

    def over(self, feed: Feed) -> None:
        """Called when the log no longer has the stream."""

    def fail(self, error: Exception) -> None: ...


class Feed:
    """The batches of one stream, from a number on."""

    def __init__(self, source: Source, merge: Merge, stream: StreamId, start: int) -> None:
        self._source = source
        self._options = source.options
        self._merge = merge
        self._loop = asyncio.get_running_loop()
        self.stream = stream
        self.wanted = start  # the next number not yet received
        self.queue: deque[Arrived] = deque()
        self.replica = ""  # the address asked last
        self.heard_s = 0.0
        self.sealed = False  # its stream takes no appends now
        self._asked = start  # the first number of the last subscription
        self._connection: Connection | None = None
        self._subscription_id = 0
        self._openings = 0  # batches of an earlier subscription earn no credit
        self._consumed_bytes = 0  # not yet returned as credit
        self._failures = 0  # since the last answer
        self._damages = 0
        self._addresses: set[str] = set()  # of the replicas, as of the last choice
        self._unreadable: dict[str, Corrupt] = {}  # by replica: what it cannot read
        self._opener: asyncio.Task[None] | None = None
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._detach()
        self.queue.clear()
        if self._opener is not None:
            self._opener.cancel()

    # ---- consuming

    def consumed(self, arrived: Arrived) -> None:
        if arrived.opening == self._openings:
            self._give_credit(len(arrived.content))

    def sound(self) -> None:
        """Called when a consumed batch was valid."""
        self._damages = 0

    def damaged(self, arrived: Arrived, error: LoomError) -> None:
        """Called when a consumed batch was damaged: get it and all later ones from another
        replica."""
        self.queue.clear()
        self.wanted = arrived.first
        self.broken(error)

    def _give_credit(self, size: int) -> None:
        """Let the replica send `size` more bytes; credit is sent in parts of the window."""
        self._consumed_bytes += size
        enough = self._consumed_bytes * CREDIT_PARTS >= self._options.window_bytes
        if self._connection is not None and enough:
            credit = pb.SubscriptionCredit(
                subscription_id=self._subscription_id, bytes=self._consumed_bytes
            )
            self._connection.send(pb.Frame(subscription_credit=credit))
            self._consumed_bytes = 0

    # ---- at a replica

    @property
    def opening(self) -> bool:
        return self._opener is not None and not self._opener.done()

    def open_soon(self) -> None:
        if not self.opening and not self._closed:
            self._opener = self._loop.create_task(self._open())

    async def _open(self) -> None:
        """Subscribe at one replica after the other until one accepts."""
        while True:
            try:
                replica = self._choose(await self._learn())
                if replica is None:
                    self._merge.over(self)
                    return
                self.replica = replica
                connection = await self._source.connections.connect(replica)
            except Retryable:
                self._failures += 1
            except Exception as error:
                self._merge.fail(error)
                return
            else:
                self._subscribe(connection)
                return

    async def _learn(self) -> pb.Log:
        if not self._failures:
            return await self._source.log.cached()
        await asyncio.sleep(BACKOFF.delay_s(self._failures - 1, self._source.rng))
        return await self._source.log.refresh()

    def _choose(self, log: pb.Log) -> str | None:
        """Return the address of a replica; None if the log no longer has the stream."""
        for stream in log.streams:
            if stream.log_stream_id == self.stream:
                addresses = [replica.address for replica in stream.replicas]
                others = [address for address in addresses if address != self.replica]
                unasked = [address for address in others if address not in self._unreadable]
                if not addresses:
                    raise Unavailable(f"stream {self.stream} has no replica")
                self._addresses = set(addresses)
                return self._source.rng.choice(unasked or others or addresses)
        return None

    def _subscribe(self, connection: Connection) -> None:
        self._openings += 1
        self._consumed_bytes = 0
        self.heard_s = self._loop.time()
        self._connection = connection
        # Numbers below the next one were delivered and may have been trimmed.
        self._asked = max(self.wanted, self._merge.wanted)
        request = pb.Subscribe(log_stream_id=self.stream, credit_bytes=self._options.window_bytes)
        if self._options.numbering.crosses:
            request.first_glsn = self._asked
        else:
            request.first_llsn = self._asked
        self._subscription_id = connection.call(
            pb.Frame(subscribe=request), (), self._received, many=True
        )

    def _detach(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._subscription_id:
            connection.forget(self._subscription_id)
            cancel = pb.CancelSubscription(subscription_id=self._subscription_id)
            connection.send(pb.Frame(cancel_subscription=cancel))
        self._subscription_id = 0

    def broken(self, error: LoomError) -> None:
        """Continue at another replica if that can help, else fail."""
        self._detach()
        if self._closed:
            return
        self._failures += 1
        if isinstance(error, _DAMAGE):
            self._damages += 1
            if isinstance(error, Corrupt) and error.first:
                self._unreadable[self.replica] = error
            if self._damages > DAMAGE_MAX and (failure := self._skip_lost(error)):
                self._merge.fail(failure)
                return
        elif not isinstance(error, _ELSEWHERE) and not self._is_outdated(error):
            self._merge.fail(self._named(error))
            return
        self.open_soon()

    def _skip_lost(self, error: LoomError) -> LoomError | None:
        """Queue numbers that no replica can read as lost, if the subscriber wants to hear of them;
        return the error that it gets otherwise. If a replica was not asked, that is the last."""
        unread = self._unreadable.values()
        if not self._addresses or not self._addresses <= self._unreadable.keys():
            return error
        first = max(self.wanted, *(each.first for each in unread))
        last = min(each.last for each in unread)
        if first > last:
            return error
        if not self._options.gaps:
            return DataLoss(
                f"{self._options.numbering.describe(first)} of log {self._source.log.name!r} up to "
                f"{last} is damaged on all replicas: continue at {last + 1}, or ask for gaps, too "
                "(gaps=True, --gaps)"
            )
        lost = Arrived(first, first, last, memoryview(b""), self._openings, None)
        self.queue.append(lost)
        self.wanted = last + 1
        self._damages = self._failures = 0
        self._unreadable = {}
        if len(self.queue) == 1:
            self._merge.queued(self)
        self._merge.heard(self, last, complete=False)
        return None

    def _is_outdated(self, error: LoomError) -> bool:
        """Return whether only numbers were trimmed that other streams have delivered meanwhile."""
        return isinstance(error, Trimmed) and self._asked < self._merge.wanted

    def _named(self, error: LoomError) -> LoomError:
        if isinstance(error, Trimmed):
            what = self._options.numbering.describe(self._merge.wanted)
            return Trimmed(
                f"{what} of log {self._source.log.name!r} was trimmed "
                f"({error}): subscribe from 'earliest'"
            )
        return error

    # ---- receiving

    def _received(self, reply: Any, payload: memoryview) -> None:
        if self._closed:
            return
        try:
            self._heard(reply, payload)
        except Exception as error:
            self._merge.fail(error)

    def _heard(self, reply: Any, payload: memoryview) -> None:
        if isinstance(reply, LoomError):
            self.broken(reply)
            return
        self.heard_s = self._loop.time()
        if reply.WhichOneof("body") != "subscription_data":
            self.broken(Unavailable(f"{self.replica} ended the subscription"))
            return
        self._failures = 0
        watermark = reply.subscription_data.high_watermark
        self.sealed = reply.subscription_data.sealed
        try:
            self._take(payload)
        except LoomError as error:
            self.broken(error)
        self._merge.heard(self, watermark, complete=not len(payload))

    def _take(self, payload: memoryview) -> None:
        """Queue the batches of an answer, without numbers received before or not wanted."""
        at, size = 0, len(payload)
        while at < size:
            header = batches.read_header(payload, at)
            content = payload[at : at + header.size]
            at += header.size
            begin = self._options.numbering.first(header)
            last = begin + header.count - 1
            first = max(begin, self.wanted)
            if first > last:
                self._give_credit(len(content))
                continue
            self._unreadable = {}
            self.queue.append(Arrived(begin, first, last, content, self._openings, header))
            self.wanted = last + 1
            if len(self.queue) == 1:
                self._merge.queued(self)
