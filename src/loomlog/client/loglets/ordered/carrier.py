"""Appends to `ordered` streams: sends each batch to the primary of its stream, in one request.

Every attempt has a new sequence number: a stream that has seen a later one would take an old number
for a repeat. If an answer is lost, the stream's resolver finds out whether the batch was appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from loomlog.client.append.appender import Attempt, Batch
from loomlog.client.append.carriers import Carrier, Outcomes, retryable_if_sound
from loomlog.client.append.stream import Stream
from loomlog.client.context import Client
from loomlog.client.loglets.ordered.resolver import Resolver
from loomlog.errors import AppendUnknown, LoomError, Unavailable
from loomlog.types import Buffer
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection


class OrderedCarrier(Carrier):
    """Appends batches to the `ordered` streams of one log."""

    def __init__(self, client: Client, outcomes: Outcomes) -> None:
        self.connections = client.connections
        self.producer = client.producer
        self.outcomes = outcomes
        self.loop = client.loop
        self._client = client
        self._connecting: dict[asyncio.Task[None], None] = {}
        self._resolving: dict[Stream, asyncio.Task[None]] = {}

    def attempt(self, batch: Batch, target: Stream) -> OrderedAttempt:
        return OrderedAttempt(self, batch, target)

    def silent(self, target: Stream) -> None:
        self.resolve(target)

    def tasks(self) -> list[asyncio.Task[None]]:
        return [*self._connecting, *self._resolving.values()]

    def run(self, connecting: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(connecting)
        self._connecting[task] = None
        task.add_done_callback(self._connecting.pop)

    def resolve(self, target: Stream) -> None:
        """Find out the outcome of attempts on the stream that have no answer."""
        if target not in self._resolving:
            self._resolving[target] = self.loop.create_task(self._resolve(target))

    async def _resolve(self, target: Stream) -> None:
        try:
            await Resolver(target, self._client, self.outcomes).run()
        finally:  # at once: an answer that is lost from now on needs another one
            del self._resolving[target]


class OrderedAttempt(Attempt):
    """Sends a batch to one stream as often as necessary, always with the same bytes."""

    __slots__ = ("_carrier", "_payload", "_request_id", "connection", "epoch", "sequence")

    def __init__(self, carrier: OrderedCarrier, batch: Batch, target: Stream) -> None:
        super().__init__(batch, target)
        self._carrier = carrier
        self._payload: Buffer = b""
        self._request_id = 0
        self.connection: Connection | None = None  # from which an answer is expected
        self.epoch = 0  # of the stream when the batch was encoded
        self.sequence = 0

    def start(self) -> None:
        target = self.target
        connection = target.connection
        if connection is None or connection.closed:
            connection = target.connection = self._carrier.connections.get(target.address)
        if connection is None or connection.congested:
            self._carrier.run(self._connect_and_send())
        else:
            self._send(connection)

    def cancel(self) -> None:
        if self.connection is not None:
            self.connection.forget(self._request_id)

    async def _connect_and_send(self) -> None:
        outcomes, address = self._carrier.outcomes, self.target.address
        try:
            connection = await self._carrier.connections.connect(address)
            await connection.drain()
        except LoomError as error:
            outcomes.refused(self, error)
            return
        if not self.current:
            return  # it does not wait for this connection
        if connection.closed or self.target.doubtful:
            outcomes.refused(self, Unavailable(f"the connection to {address} was lost"))
        else:
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        carrier = self._carrier
        producer = carrier.producer
        self.sequence, self.epoch = producer.next_sequence(), self.target.epoch
        try:
            self._payload = self.batch.encode(producer.id, self.sequence, self.target.compression)
        except LoomError as error:
            carrier.loop.call_soon(carrier.outcomes.refused, self, error)
            return
        self.transmit(connection)

    def transmit(self, connection: Connection) -> None:
        """Send the encoded batch for the first time, or again."""
        self.connection = connection
        self._carrier.outcomes.sent(self)
        frame = pb.Frame()
        append = frame.append  # filled in place, because assigning a message would copy it
        append.log_stream_id, append.seal_epoch = self.target.id, self.epoch
        if (expected_tail := self.batch.expected_tail) is not None:
            append.expected_tail = expected_tail
        self._request_id = connection.call(
            frame,
            (self._payload,),
            partial(self._answered, connection),
        )

    def _answered(
        self, connection: Connection, reply: pb.Frame | LoomError, content: memoryview
    ) -> None:
        if self.connection is not connection:
            return
        if isinstance(reply, LoomError):
            self._failed(connection, retryable_if_sound(reply, self._payload))
        elif reply.appended.first_glsn:
            place = reply.appended
            self.connection = None  # no further answer is expected
            self._carrier.outcomes.appended(self, place.first_glsn, place.first_llsn)
        else:
            self._lost(f"{connection.peer} gave no position")

    def _failed(self, connection: Connection, error: LoomError) -> None:
        if connection.closed:
            self._lost(str(error))
        elif isinstance(error, AppendUnknown):
            self._carrier.outcomes.unknown(self, error)
        elif self._carrier.outcomes.refused(self, error):
            self.connection = None  # so that the resolver asks again

    def _lost(self, why: str) -> None:
        self.connection = None
        if self._carrier.outcomes.lost(self, why):
            self._carrier.resolve(self.target)
