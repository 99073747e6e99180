"""From a batch that has an `ordered` stream to a request on the wire.

Every batch that is given to `dispatch` is sent or refused, unless it was settled or sent elsewhere
meanwhile; each time under a new sequence number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

from loomlog.client.nodes import Connections
from loomlog.client.outgoing import Batch, Producer
from loomlog.client.targets import Stream
from loomlog.errors import LoomError, Unavailable
from loomlog.net.connection import Connection
from loomlog.types import Glsn, Llsn
from loomlog.wire import loomlog_pb2 as pb


class Replies(Protocol):
    """Who hears what became of it."""

    def answered(
        self, batch: Batch, connection: Connection, reply: Any, payload: memoryview
    ) -> None:
        """The reply of this connection, or the error that took its place."""

    def refused(self, batch: Batch, error: LoomError) -> None:
        """It was not sent."""


class Outcomes(Protocol):
    """Who hears what became of a batch that a carrier took."""

    def appended(self, batch: Batch, first: Glsn, first_llsn: Llsn) -> None: ...

    def refused(self, batch: Batch, error: LoomError) -> None:
        """It was certainly not appended."""

    def lost(self, batch: Batch, why: str) -> None:
        """It may or may not have been, and nobody looks any further."""

    def unknown(self, batch: Batch, error: LoomError) -> None:
        """It may or may not have been, and nobody can tell any more."""

    def gone(self, batch: Batch) -> None:
        """It may have been taken, and was certainly not appended."""


class Carrier(Protocol):
    """Takes batches to the streams of one protocol."""

    def dispatch(self, batch: Batch, target: Stream) -> None:
        """Its outcome is told later, unless the batch was settled or sent elsewhere meanwhile."""

    def tasks(self) -> list[asyncio.Task[None]]:
        """What has to end with it."""


CarriersByProtocol: TypeAlias = Mapping[str, Callable[[Outcomes], Carrier]]
"""What makes a carrier for each protocol but `ordered`."""


class Sender:
    """Sends the batches of one client to the `ordered` streams of one log."""

    def __init__(
        self,
        connections: Connections,
        producer: Producer,
        compression: str,
        replies: Replies,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._connections = connections
        self._producer = producer
        self._compression = compression
        self._replies = replies
        self._loop = loop
        self._waiting: dict[asyncio.Task[None], None] = {}  # for a connection

    def dispatch(self, batch: Batch, target: Stream) -> None:
        connection = self._connections.get(target.address)
        if connection is None or connection.congested:
            task = self._loop.create_task(self._connect_and_send(batch, target))
            self._waiting[task] = None
            task.add_done_callback(self._waiting.pop)
        else:
            self._send(batch, target, connection)

    async def _connect_and_send(self, batch: Batch, target: Stream) -> None:
        attempt = batch.attempts
        connection: Connection | LoomError
        try:
            connection = await self._connections.connect(target.address)
            await connection.drain()
        except LoomError as error:
            connection = error
        if batch.settled or batch.attempts != attempt:
            return  # it did not wait for this connection
        if isinstance(connection, LoomError):
            self._replies.refused(batch, connection)
        elif connection.closed or target.doubtful:
            lost = Unavailable(f"the connection to {target.address} was lost")
            self._replies.refused(batch, lost)
        else:
            self._send(batch, target, connection)

    def _send(self, batch: Batch, target: Stream, connection: Connection) -> None:
        producer = self._producer
        batch.sequence, batch.epoch = producer.next_sequence(), target.epoch
        try:
            batch.payload = batch.encode(producer.id, batch.sequence, self._compression)
        except LoomError as error:
            # Not at once: settling sends the next batch, which may be as bad, and so on.
            self._loop.call_soon(self._replies.refused, batch, error)
            return
        self.transmit(batch, target, connection)

    def transmit(self, batch: Batch, target: Stream, connection: Connection) -> None:
        """Send it as it was encoded, for the first time or again."""
        batch.connection = connection
        batch.request_id = connection.call(
            pb.Frame(append=pb.Append(log_stream_id=target.id, seal_epoch=batch.epoch)),
            (batch.payload,),
            partial(self._replies.answered, batch, connection),
        )

    def tasks(self) -> list[asyncio.Task[None]]:
        """What has to end with it."""
        return list(self._waiting)
