"""Requests of clients and other nodes to the log streams on a storage node."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from loomlog import limits
from loomlog.errors import AppendUnknown, Busy, InvalidArgument, LoomError, Trimmed
from loomlog.node.ordered.copy_destination import CopyDestination
from loomlog.node.ordered.reader import Reader, Subscription
from loomlog.node.ordered.repairer import Repairer
from loomlog.node.ordered.replica import ReplicaDriver
from loomlog.types import Glsn, Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Route, Service


class Held(NamedTuple):
    """A replica, and what works with it."""

    driver: ReplicaDriver
    reader: Reader
    repairer: Repairer
    destination: CopyDestination


class Streams(Protocol):
    """The replicas on a node."""

    def holding(self, stream_id: StreamId) -> Held:
        """Return the replica; raises NotFound."""

    def stamped(self, stream_id: StreamId, stamp: int) -> Held:
        """Return the replica if it has this creation stamp; raises Conflict."""


class StreamRequests:
    def __init__(self, streams: Streams, codec: Codec, service: Service) -> None:
        self._streams = streams
        self._codec = codec
        self._service = service
        self._subscriptions: dict[Connection, dict[int, Subscription]] = {}

    def routes(self) -> dict[str, Route]:
        return {
            "append": self._append,
            "resolve_append": self._resolve_append,
            "replicate": self._replicate,
            "open_replication": self._open_replication,
            "sync_start": self._sync_start,
            "sync_batches": self._sync_batches,
            "fetch_batches": self._fetch_batches,
            "read": self._read,
            "locate": self._locate,
            "find_time": self.find_time,
            "subscribe": self._subscribe,
            "subscription_credit": self._add_credit,
            "cancel_subscription": self._cancel_subscription,
        }

    def stop(self) -> None:
        for connection in list(self._subscriptions):
            self.connection_closed(connection)

    def connection_closed(self, connection: Connection) -> None:
        for subscription in self._subscriptions.pop(connection, {}).values():
            subscription.cancel()

    # ---- appends

    def _append(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        held = self._streams.holding(frame.append.log_stream_id)
        repeated = held.driver.append(connection, frame, payload)
        return None if repeated is None else _answer_repeated(held.reader, repeated)

    async def _resolve_append(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order = frame.resolve_append
        held = self._streams.holding(order.log_stream_id)
        answer = pb.AppendResolved()
        first_llsn = held.driver.resolve(order.seal_epoch, order.producer_id, order.sequence)
        if first_llsn:
            answer.appended = True
            answer.first_llsn = first_llsn
            answer.first_glsn = await _position_of(held.reader, first_llsn)
        return pb.Frame(append_resolved=answer)

    # ---- requests of other replicas

    def _replicate(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        order = frame.replicate
        try:
            driver = self._streams.holding(order.log_stream_id).driver
            driver.replicate(order.seal_epoch, payload)
        except LoomError as error:
            refusal = pb.ReplicationRefused(
                log_stream_id=order.log_stream_id, seal_epoch=order.seal_epoch, reason=str(error)
            )
            connection.send(pb.Frame(replication_refused=refusal))

    async def _open_replication(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order = frame.open_replication
        driver = self._streams.holding(order.log_stream_id).driver
        driver.core.check_primary(order.seal_epoch, order.next_llsn)
        return pb.Frame(done=pb.Done())

    async def _sync_start(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.sync_start
        destination = self._streams.stamped(order.log_stream_id, order.stamp).destination
        return pb.Frame(sync_started=await destination.start(connection, order))

    def _sync_batches(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        destination = self._streams.holding(frame.sync_batches.log_stream_id).destination
        destination.take(connection, frame, payload)

    def _fetch_batches(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        held = self._streams.holding(frame.fetch_batches.log_stream_id)  # it may leave then
        self._service.spawn(self._answer_fetch(connection, frame, held.reader))

    async def _answer_fetch(self, connection: Connection, frame: Frame, reader: Reader) -> None:
        order = frame.fetch_batches
        async with connection.turns:
            try:
                batches = await reader.stored(order.first_llsn, order.last_llsn)
            except Exception as error:
                self._service.answer_error(connection, frame, "fetch_batches", error)
                return
            answer = pb.Frame(id=frame.id, reply=True, fetched_batches=pb.FetchedBatches())
            connection.send(answer, [batches])

    # ---- reads

    def _read(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        held = self._streams.holding(frame.read.log_stream_id)  # as above
        self._service.spawn(self._answer_read(connection, frame, held))

    async def _answer_read(self, connection: Connection, frame: Frame, held: Held) -> None:
        async with connection.turns:
            try:
                chunk = await held.reader.read(frame.read.glsn)
            except Exception as error:
                self._service.answer_error(connection, frame, "read", error)
                return
            answer = pb.Frame(id=frame.id, reply=True)
            answer.read_response.high_watermark = held.driver.core.context.high_watermark
            connection.send(answer, [chunk.buffer])

    async def _locate(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.locate
        if not order.glsn:
            raise InvalidArgument("positions begin at 1")
        held = self._streams.holding(order.log_stream_id)
        llsn = await held.reader.locate(order.glsn)
        high = held.driver.core.context.high_watermark
        return pb.Frame(located=pb.Located(llsn=llsn, high_watermark=high))

    async def find_time(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.find_time
        held = self._streams.holding(order.log_stream_id)
        # Before the search: the answer holds up to here.
        high = held.driver.core.context.high_watermark
        position = await held.reader.find_time(order.timestamp_us, max(order.first_glsn, 1))
        return pb.Frame(found_time=pb.FoundTime(position=position, high_watermark=high))

    # ---- subscriptions

    def _subscribe(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        order = frame.subscribe
        if not order.first_glsn and not order.first_llsn:
            raise InvalidArgument("a subscription needs a first position or a first LLSN")
        held = self._streams.holding(order.log_stream_id)
        mine = self._subscriptions.setdefault(connection, {})
        if len(mine) >= limits.SUBSCRIPTIONS_PER_CONNECTION_MAX:
            raise Busy("too many subscriptions on this connection: cancel some first")
        subscription = Subscription(held.driver, held.reader, self._codec, connection, frame)
        mine[frame.id] = subscription
        subscription.task.add_done_callback(lambda _: mine.pop(frame.id, None))

    def _add_credit(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        order = frame.subscription_credit
        subscription = self._subscriptions.get(connection, {}).get(order.subscription_id)
        if subscription is not None:
            subscription.add_credit(order.bytes)

    def _cancel_subscription(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> None:
        wanted = frame.cancel_subscription.subscription_id
        subscription = self._subscriptions.get(connection, {}).pop(wanted, None)
        if subscription is not None:
            subscription.cancel()


async def _answer_repeated(reader: Reader, first_llsn: Llsn) -> Frame:
    first_glsn = await _position_of(reader, first_llsn)
    return pb.Frame(appended=pb.Appended(first_glsn=first_glsn, first_llsn=first_llsn))


async def _position_of(reader: Reader, llsn: Llsn) -> Glsn:
    try:
        return await reader.position_of(llsn)
    except Trimmed as error:
        raise AppendUnknown(f"{error}; it was appended, where is not known any more") from None
