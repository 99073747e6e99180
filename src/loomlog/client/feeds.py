"""One `ordered` stream's part in a subscription: a replica that sends, and a queue.

A feed that breaks is opened again at another replica from the next number on that it has yet to
bring, so nothing is lost and nothing comes twice.

Back-pressure: a replica sends a window of bytes ahead; consuming gives it credit for more.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any, Final, NamedTuple, Protocol

from loomlog import batch as batches
from loomlog.client import backoff, pieces
from loomlog.client.metadata import CachedLog
from loomlog.client.nodes import Connections
from loomlog.client.orders import Order
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
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb

CREDIT_PARTS: Final = 4  # credit is given back in such parts of the window
DAMAGE_MAX: Final = 6  # damaged answers in a row, over all replicas, before we believe it

_ELSEWHERE = (Retryable, NotFound, Sealed)  # another replica, or the same one later, will do
_DAMAGE = (Corrupt, DataLoss)


class Arrived(NamedTuple):
    """A batch in a feed's queue; `first` is the first number in it that is still wanted."""

    begin: int
    first: int
    last: int
    content: memoryview
    opening: int
    refers: bool


class Source(NamedTuple):
    """Where the feeds of a subscription come from."""

    log: CachedLog
    connections: Connections
    window_bytes: int
    rng: random.Random
    order: Order


class Merge(Protocol):
    """Who puts the feeds together."""

    @property
    def wanted(self) -> int:
        """The number that is delivered next."""

    def queued(self, feed: Feed) -> None:
        """Its queue was empty and is not any more."""

    def heard(self, feed: Feed, watermark: int, *, complete: bool) -> None:
        """`complete`: nothing of this stream up to the watermark is still to come."""

    def over(self, feed: Feed) -> None:
        """The log has no such stream any more."""

    def fail(self, error: Exception) -> None: ...


class Feed:
    """The batches of one stream, from a number on."""

    def __init__(self, source: Source, merge: Merge, stream: StreamId, start: int) -> None:
        self._source = source
        self._merge = merge
        self._loop = asyncio.get_running_loop()
        self.stream = stream
        self.wanted = start  # the next number not yet received
        self.queue: deque[Arrived] = deque()
        self.replica = ""  # the address asked last
        self.heard_s = 0.0
        self.sealed = False  # its stream takes no appends now
        self._asked = start  # from where the last replica was asked to send
        self._connection: Connection | None = None
        self._subscription_id = 0
        self._openings = 0  # credit for what came over an earlier subscription is void
        self._consumed_bytes = 0  # not yet given back as credit
        self._failures = 0  # since something came
        self._damages = 0
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
        """What was consumed could be read."""
        self._damages = 0

    def damaged(self, arrived: Arrived, error: LoomError) -> None:
        """It could not: it, and what comes after it, is taken again from another replica."""
        self.queue.clear()
        self.wanted = arrived.first
        self.broken(error)

    def _give_credit(self, size: int) -> None:
        """Let the replica send so much more, told in parts of the window."""
        self._consumed_bytes += size
        enough = self._consumed_bytes * CREDIT_PARTS >= self._source.window_bytes
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
        """Subscribe at a replica, another one after each failure, until one takes it."""
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
            return await self._source.log.get()
        await asyncio.sleep(backoff.delay_s(self._failures - 1, self._source.rng))
        return await self._source.log.refresh()

    def _choose(self, log: pb.Log) -> str | None:
        """An address for the feed; None if the log has no such stream any more."""
        for stream in log.streams:
            if stream.log_stream_id == self.stream:
                addresses = [replica.address for replica in stream.replicas]
                others = [address for address in addresses if address != self.replica]
                if not addresses:
                    raise Unavailable(f"stream {self.stream} has no replica")
                return self._source.rng.choice(others or addresses)
        return None

    def _subscribe(self, connection: Connection) -> None:
        self._openings += 1
        self._consumed_bytes = 0
        self.heard_s = self._loop.time()
        self._connection = connection
        # Below the next number everything was delivered; it may even be trimmed by now.
        self._asked = max(self.wanted, self._merge.wanted)
        request = self._source.order.request(self.stream, self._asked)
        request.credit_bytes = self._source.window_bytes
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
        """Go on elsewhere, if that can help."""
        self._detach()
        if self._closed:
            return
        self._failures += 1
        if isinstance(error, _DAMAGE):
            self._damages += 1
            if self._damages > DAMAGE_MAX:
                self._merge.fail(error)
                return
        elif not isinstance(error, _ELSEWHERE) and not self._is_outdated(error):
            self._merge.fail(self._named(error))
            return
        self.open_soon()

    def _is_outdated(self, error: LoomError) -> bool:
        """What was asked for came from other streams meanwhile, and then it was trimmed."""
        return isinstance(error, Trimmed) and self._asked < self._merge.wanted

    def _named(self, error: LoomError) -> LoomError:
        if isinstance(error, Trimmed):
            what = self._source.order.describe(self._merge.wanted)
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
        """Queue the batches of an answer; what was received before, or is not wanted, is cut."""
        at, size = 0, len(payload)
        while at < size:
            header = batches.read_header(payload, at)
            content = payload[at : at + header.size]
            at += header.size
            begin = self._source.order.first(header)
            last = begin + header.count - 1
            first = max(begin, self.wanted)
            if first > last:
                self._give_credit(len(content))
                continue
            refers = pieces.refers(header)
            self.queue.append(Arrived(begin, first, last, content, self._openings, refers))
            self.wanted = last + 1
            if len(self.queue) == 1:
                self._merge.queued(self)
