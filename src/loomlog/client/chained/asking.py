"""Questions to replicas and to sequencers, whose answers go to plain callbacks.

An append is four questions, each asked when the one before is answered. With a Future and a task's
turn of the loop for each, the client would take as long as the disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from loomlog import limits
from loomlog.client.metadata import Metadata
from loomlog.client.nodes import Connections
from loomlog.core.chained.messages import Answer, Lost, Refused, Request
from loomlog.core.chained.projection import Replica
from loomlog.errors import LoomError, NotFound, Retryable, Timeout, Unavailable
from loomlog.net.connection import Connection, Frame
from loomlog.types import LogId, NodeId, StreamId
from loomlog.wire import chained as codec
from loomlog.wire import loomlog_pb2 as pb

if TYPE_CHECKING:
    from loomlog.client.chained.chains import View

ANSWER_S: Final = 2.0  # a replica that says nothing for so long is reported, and asked again
BYTES_PER_S_MIN: Final = 4 * limits.MIB  # large blocks are given more time
TICK_S: Final = 0.1  # how exactly that is kept: a timer for each question would cost too much

Answered: TypeAlias = Callable[[Answer | Exception], None]


class Asking:
    """What one client asks of the chains of one log."""

    def __init__(self, metadata: Metadata, connections: Connections) -> None:
        self.metadata = metadata
        self.connections = connections
        self.missed: dict[StreamId, NodeId] = {}  # a node that did not answer
        self.of_replicas: dict[ReplicaQuestion, None] = {}  # what is waited for
        self._ticker: asyncio.TimerHandle | None = None

    def wait_for(self, question: ReplicaQuestion) -> None:
        """For its answer, as long as it may take."""
        self.of_replicas[question] = None
        if self._ticker is None:
            self._tick()

    def _tick(self) -> None:
        self._ticker = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for question in [found for found in self.of_replicas if found.due_s <= now_s]:
            question.time_is_over()
        if self.of_replicas and self._ticker is None:
            self._ticker = loop.call_later(TICK_S, self._tick)

    def interrupt(self, stream: StreamId, epoch: int) -> None:
        """Who still waits for answers of older epochs need not."""
        for question in list(self.of_replicas):
            if question.view.stream == stream and question.view.epoch < epoch:
                # Not at once: who asked is going to look at what is just being learnt.
                asyncio.get_running_loop().call_soon(question.give_up)


class Question:
    """Something that was asked. `answered` is called once, after this was made; an exception is
    what the answer should not be."""

    def __init__(self, answered: Answered) -> None:
        self._answered: Answered | None = answered
        self._task: asyncio.Task[None] | None = None  # if it is not that simple

    def cancel(self) -> None:
        """Nobody is told anything any more. Fine if it is answered."""
        self._answered = None
        if self._task is not None:
            self._task.cancel()

    def _end(self, answer: Answer | Exception) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(answer)


class ReplicaQuestion(Question):
    def __init__(
        self,
        asking: Asking,
        view: View,
        replica: Replica,
        request: Request,
        answered: Answered,
        wait_ms: int = 0,
    ) -> None:
        """`wait_ms`: so long a Fetch may wait for something to be there."""
        super().__init__(answered)
        self.view = view
        self._asking = asking
        self._node_id = replica.node_id
        message, payload = codec.request_to_wire(replica, request, wait_ms=wait_ms)
        self._frame = pb.Frame(chain_request=message)
        self._payload = (payload,) if len(payload) else ()
        self._timeout_s = ANSWER_S + wait_ms / 1000 + len(payload) / BYTES_PER_S_MIN
        self.due_s = 0.0  # when it was sent and is not answered
        self._connection: Connection | None = None
        self._request_id = 0
        connection = asking.connections.get(view.addresses.get(self._node_id, ""))
        if connection is None or connection.congested:
            self._task = asyncio.get_running_loop().create_task(self._connect_and_send())
        else:
            self._send(connection)

    def cancel(self) -> None:
        self._forget()
        super().cancel()

    def give_up(self) -> None:
        """Who asked learns of a newer epoch first."""
        if self in self._asking.of_replicas:
            self._forget()
            self._end(Lost())

    def time_is_over(self) -> None:
        self._forget()
        self._failed(Timeout(f"no answer within {self._timeout_s:g} s"))

    def _forget(self) -> None:
        if self in self._asking.of_replicas:
            del self._asking.of_replicas[self]
            assert self._connection is not None
            self._connection.forget(self._request_id)

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        self._request_id = connection.call(self._frame, self._payload, self._replied)
        # From here on the peer is at work: whatever else is to be done costs no time.
        if self._answered is not None:
            self.due_s = asyncio.get_running_loop().time() + self._timeout_s
            self._asking.wait_for(self)

    async def _connect_and_send(self) -> None:
        try:
            connection = await self._connect()
        except LoomError as error:
            self._failed(error)
        except Exception as error:
            self._end(error)
        else:
            self._send(connection)

    async def _connect(self) -> Connection:
        address = self.view.addresses.get(self._node_id)
        if address is None:
            raise Unavailable("its address is not known")
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await self._asking.connections.connect(address)
                await connection.drain()
                return connection
        except TimeoutError:
            raise Timeout(f"no connection to {address} in time") from None

    def _replied(self, reply: Frame | LoomError, content: memoryview) -> None:
        if isinstance(reply, LoomError):
            self._failed(reply)
        else:
            self._end(codec.answer_from_wire(reply.chain_answer, content))

    def _failed(self, error: LoomError) -> None:
        if self._answered is None:
            return
        connection = self._connection
        silent = connection is None or connection.closed or isinstance(error, Timeout)
        if silent:
            self._asking.missed[self.view.stream] = self._node_id
        sent = silent and connection is not None
        self._end(Lost() if sent else Refused(f"node {self._node_id}: {error}"))

    def _end(self, answer: Answer | Exception) -> None:
        super()._end(answer)
        self._asking.of_replicas.pop(self, None)


class SequencerQuestion(Question):
    """First of who was asked last; if that fails, of whoever can be found."""

    def __init__(self, asking: Asking, loglet: LogId, request: Request, answered: Answered) -> None:
        super().__init__(answered)
        self._metadata = asking.metadata
        message = codec.sequencer_request_to_wire(loglet, request)
        self._frame = pb.Frame(sequencer_request=message)
        self._call = self._metadata.call(self._frame, self._replied)
        if self._call is None:
            self._insist()

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()
        super().cancel()

    def _replied(self, reply: pb.Frame | LoomError, content: memoryview) -> None:
        if isinstance(reply, LoomError):
            self._insist()
        else:
            self._end(codec.sequencer_answer_from_wire(reply.sequencer_answer))

    def _insist(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._request())

    async def _request(self) -> None:
        try:
            reply = await self._metadata.request(self._frame)
        except (Retryable, NotFound) as error:
            self._end(Refused(str(error)))
        except Exception as error:
            self._end(error)
        else:
            self._end(codec.sequencer_answer_from_wire(reply.sequencer_answer))
