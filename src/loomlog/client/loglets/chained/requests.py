"""Requests to replicas and sequencers, answered by plain callbacks, and operations made of them.

An append is four requests, each sent when the previous one is answered. With a Future and a task
switch for each, the client would take as long as the disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias

from loomlog import limits
from loomlog.client.servers.metadata import Metadata
from loomlog.client.servers.nodes import Connections
from loomlog.core.chained.messages import Answer, ChainedAsk, InForce, Refused, Request, Steps
from loomlog.core.chained.projection import Projection, Replica
from loomlog.core.requests import Lost, Outcome
from loomlog.errors import LoomError, NotFound, Retryable, Timeout, Unavailable
from loomlog.types import LogId, NodeId, StreamId
from loomlog.wire import chained as codec
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame

if TYPE_CHECKING:
    from loomlog.client.loglets.chained.chains import View

ANSWER_S: Final = 2.0  # a replica silent for this long is reported, and asked again
BYTES_PER_S_MIN: Final = 4 * limits.MIB  # large blocks are given more time
TICK_S: Final = 0.1  # the precision of timeouts: a timer for each request would cost too much

_NONE_YET: Final = Lost()
Answered: TypeAlias = Callable[[Answer | Exception], None]


class PendingRequests:
    """The requests of one client to the chains of one log that have no answer yet."""

    def __init__(self, metadata: Metadata, connections: Connections) -> None:
        self.metadata = metadata
        self.connections = connections
        self.missed: dict[StreamId, NodeId] = {}  # a node that did not answer
        self.of_replicas: dict[ReplicaRequest, None] = {}  # in the order of sending
        self._ticker: asyncio.TimerHandle | None = None

    def wait_for(self, request: ReplicaRequest) -> None:
        """Give up the request if it has no answer when it is due."""
        self.of_replicas[request] = None
        if self._ticker is None:
            self._tick()

    def _tick(self) -> None:
        self._ticker = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for request in [pending for pending in self.of_replicas if pending.due_s <= now_s]:
            request.time_is_over()
        if self.of_replicas and self._ticker is None:
            self._ticker = loop.call_later(TICK_S, self._tick)

    def interrupt(self, stream: StreamId, epoch: int) -> None:
        """Give up requests of older epochs."""
        for request in list(self.of_replicas):
            if request.view.stream == stream and request.view.epoch < epoch:
                # Deferred: the operation then asks for the view that is being adopted now.
                asyncio.get_running_loop().call_soon(request.give_up)


class PendingRequest:
    """A request without an answer. `answered` is called once, after the constructor has returned;
    with an exception if the request failed in an unexpected way."""

    def __init__(self, answered: Answered) -> None:
        self._answered: Answered | None = answered
        self._task: asyncio.Task[None] | None = None  # if callbacks are not enough

    def cancel(self) -> None:
        """Ignore the answer; do nothing if it has arrived."""
        self._answered = None
        if self._task is not None:
            self._task.cancel()

    def _end(self, answer: Answer | Exception) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(answer)


class ReplicaRequest(PendingRequest):
    """Asks one replica of a chain."""

    def __init__(
        self,
        pending: PendingRequests,
        view: View,
        replica: Replica,
        request: Request,
        answered: Answered,
        wait_ms: int = 0,
    ) -> None:
        """Send the request; `wait_ms` is how long a Fetch may wait for blocks."""
        super().__init__(answered)
        self.view = view
        self._pending = pending
        self._node_id = replica.node_id
        message, payload = codec.request_to_wire(replica, request, wait_ms=wait_ms)
        self._frame = pb.Frame(chain_request=message)
        self._payload = (payload,) if len(payload) else ()
        self._timeout_s = ANSWER_S + wait_ms / 1000 + len(payload) / BYTES_PER_S_MIN
        self.due_s = 0.0  # set when it is sent
        self._connection: Connection | None = None
        self._request_id = 0
        connection = pending.connections.get(view.addresses.get(self._node_id, ""))
        if connection is None or connection.congested:
            self._task = asyncio.get_running_loop().create_task(self._connect_and_send())
        else:
            self._send(connection)

    def cancel(self) -> None:
        self._forget()
        super().cancel()

    def give_up(self) -> None:
        """Answer with Lost: a newer epoch has begun."""
        if self in self._pending.of_replicas:
            self._forget()
            self._end(Lost())

    def time_is_over(self) -> None:
        self._forget()
        self._failed(Timeout(f"no answer within {self._timeout_s:g} s"))

    def _forget(self) -> None:
        if self in self._pending.of_replicas:
            del self._pending.of_replicas[self]
            assert self._connection is not None
            self._connection.forget(self._request_id)

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        self._request_id = connection.call(self._frame, self._payload, self._replied)
        # The rest is done while the peer works, so it adds no latency.
        if self._answered is not None:
            self.due_s = asyncio.get_running_loop().time() + self._timeout_s
            self._pending.wait_for(self)

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
                connection = await self._pending.connections.connect(address)
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
            self._pending.missed[self.view.stream] = self._node_id
        sent = silent and connection is not None
        self._end(Lost() if sent else Refused(f"node {self._node_id}: {error}"))

    def _end(self, answer: Answer | Exception) -> None:
        super()._end(answer)
        self._pending.of_replicas.pop(self, None)


class SequencerRequest(PendingRequest):
    """Asks the server used last; falls back to any that can be found."""

    def __init__(
        self, pending: PendingRequests, loglet: LogId, request: Request, answered: Answered
    ) -> None:
        super().__init__(answered)
        self._metadata = pending.metadata
        message = codec.sequencer_request_to_wire(loglet, request)
        self._frame = pb.Frame(sequencer_request=message)
        self._call = self._metadata.call(self._frame, self._replied)
        if self._call is None:
            self._ask_any()

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()
        super().cancel()

    def _replied(self, reply: pb.Frame | LoomError, content: memoryview) -> None:
        if isinstance(reply, LoomError):
            self._ask_any()
        else:
            self._end(codec.sequencer_answer_from_wire(reply.sequencer_answer))

    def _ask_any(self) -> None:
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


class RenewRequest(PendingRequest):
    """Looks for a newer projection, in a task."""

    def __init__(self, renew: Callable[[], Awaitable[Projection]], answered: Answered) -> None:
        super().__init__(answered)
        self._task = asyncio.get_running_loop().create_task(self._renew(renew))

    async def _renew(self, renew: Callable[[], Awaitable[Projection]]) -> None:
        try:
            projection = await renew()
        except Exception as error:
            self._end(error)
        else:
            self._end(InForce(projection))


def _nobody(end: object) -> None:
    pass


class Drive(Generic[Outcome]):
    """Drives an operation of core/chained without a task: the last answer of a step sends the
    requests of the next one. `ended` is called with the outcome or an exception."""

    def __init__(
        self,
        ask: Callable[[ChainedAsk, Answered], PendingRequest],
        steps: Steps[Outcome],
        ended: Callable[[Outcome | Exception], None],
    ) -> None:
        self._ask = ask
        self._steps = steps
        self._ended = ended
        self._requests: list[PendingRequest] = []  # of the current step
        self._answers: list[Answer] = []
        self._missing = 0  # the number of answers outstanding

    def start(self) -> None:
        self._step(None)

    def cancel(self) -> None:
        """Stop; do nothing if it has ended."""
        self._steps.close()
        for request in self._requests:
            request.cancel()

    def _step(self, answers: list[Answer] | None) -> None:
        try:
            # The first step takes no answers, which Generator cannot say.
            asks = self._steps.send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            self._end(end.value)
        except Exception as error:
            self._end(error)
        else:
            self._ask_all(asks)

    def _end(self, end: Outcome | Exception) -> None:
        ended, self._ended = self._ended, _nobody  # breaks the reference cycle with its maker
        ended(end)

    def _ask_all(self, asks: list[ChainedAsk]) -> None:
        self._missing = len(asks)
        self._answers = [_NONE_YET] * len(asks)
        requests: list[PendingRequest] = []
        self._requests = requests
        for index, ask in enumerate(asks):
            requests.append(self._ask(ask, partial(self._answered, index)))

    def _answered(self, index: int, answer: Answer | Exception) -> None:
        if isinstance(answer, Exception):
            self.cancel()
            self._end(answer)
            return
        self._answers[index] = answer
        self._missing -= 1
        if not self._missing:
            self._step(self._answers)


async def run(
    ask: Callable[[ChainedAsk, Answered], PendingRequest], steps: Steps[Outcome]
) -> Outcome:
    """Drive an operation to its end."""
    end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    drive = Drive(ask, steps, partial(resolve_future, end))
    drive.start()
    try:
        return await end
    finally:
        drive.cancel()


def resolve_future(future: asyncio.Future[Any], result: object) -> None:
    """Give a future its result, or the exception that took its place."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
