"""Requests to replicas and sequencers, and operations that consist of them, with plain callbacks.

An append is four requests, each sent when the previous one is answered. With a Future and a task
switch for each, the client would take as long as the disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias

from loomlog import limits
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import (
    Answer,
    ChainedAsk,
    InForce,
    Refused,
    Renew,
    Request,
    Steps,
)
from loomlog.core.requests import Ask, Lost, Outcome, Service
from loomlog.errors import (
    Busy,
    LoomError,
    NotFound,
    PermissionDenied,
    Retryable,
    Timeout,
    Unavailable,
    seconds,
)
from loomlog.types import NodeId, StreamId
from loomlog.wire import chained as codec
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame

if TYPE_CHECKING:
    from loomlog.client.loglets.chained.chains import Chains, ChainView
    from loomlog.client.servers import Connections, Metadata

ANSWER_S: Final = 2.0  # a replica silent for this long is asked again ...
LATE_S: Final = 1.0  # ... and its node reported after this
TICK_S: Final = 0.1  # the precision of these: a timer for each request would cost too much
BYTES_PER_S_MIN: Final = 4 * limits.MIB  # large blocks are given more time

_NONE_YET: Final = Lost()

Answered: TypeAlias = Callable[[Answer | Exception], None]


class PendingRequest:
    """A request without an answer. `answered` is called once; with an exception if the request
    failed in an unexpected way."""

    __slots__ = ("_answered", "_task")

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

    __slots__ = (
        "_connection",
        "_frame",
        "_payload",
        "_request_id",
        "_requests",
        "_timeout_s",
        "due_s",
        "node_id",
        "reported",
        "view",
    )

    def __init__(
        self,
        requests: ChainRequests,
        view: ChainView,
        replica: Replica,
        request: Request,
        answered: Answered,
        wait_ms: int = 0,
    ) -> None:
        """Send the request; `wait_ms` is how long a Fetch may wait for blocks."""
        self._answered, self._task = answered, None  # as PendingRequest does, without a call
        self.view = view
        self._requests = requests
        self.node_id = replica.node_id
        self.reported = False  # as late
        self._frame = frame = pb.Frame()
        _, payload = codec.request_to_wire(replica, request, wait_ms, frame.chain_request)
        self._payload = (payload,) if len(payload) else ()
        self._timeout_s = ANSWER_S + wait_ms / 1000 + len(payload) / BYTES_PER_S_MIN
        self.due_s = 0.0  # set when it is sent
        self._connection: Connection | None = None
        self._request_id = 0
        connection = requests.connections.get(view.addresses.get(self.node_id, ""))
        if connection is None or connection.congested:
            self._task = asyncio.get_running_loop().create_task(self._connect_and_send())
        else:
            self._send(connection)

    def cancel(self) -> None:
        self._forget()
        super().cancel()

    def give_up(self) -> None:
        """Answer with Lost: a newer epoch has begun."""
        if self._forget():
            self._end(Lost())

    def is_late(self, now_s: float) -> bool:
        """Return whether its answer, for which it may wait at the node, is late."""
        return now_s >= self.due_s - ANSWER_S + LATE_S

    def time_is_over(self) -> None:
        self._forget()
        self._failed(Timeout(f"no answer within {seconds(self._timeout_s)}"))

    def _forget(self) -> bool:
        """Drop the answer; return whether it was still expected."""
        if not self._requests.forget(self):
            return False
        assert self._connection is not None
        self._connection.forget(self._request_id)
        return True

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        self._request_id = connection.call(self._frame, self._payload, self._replied)
        # The rest is done while the peer works, so it adds no latency.
        if self._answered is not None:
            self.due_s = self._requests.now_s() + self._timeout_s
            self._requests.expect(self)

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
        address = self.view.addresses.get(self.node_id)
        if address is None:
            raise Unavailable("its address is not known")
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await self._requests.connections.connect(address)
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
        if isinstance(error, PermissionDenied):
            self._end(error)
            return
        connection = self._connection
        silent = connection is None or connection.closed or isinstance(error, Timeout)
        if silent:
            self._requests.missed[self.view.stream] = self.node_id
        sent = silent and connection is not None
        self._end(Lost() if sent else Refused(f"node {self.node_id}: {error}"))

    def _end(self, answer: Answer | Exception) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(answer)
        self._requests.forget(self)


class SequencerRequest(PendingRequest):
    """Asks the server used last; falls back to any that can be found."""

    __slots__ = ("_call", "_frame", "_metadata")

    def __init__(
        self, requests: ChainRequests, view: ChainView, request: Request, answered: Answered
    ) -> None:
        super().__init__(answered)
        self._metadata = requests.metadata
        self._frame = frame = pb.Frame()
        codec.sequencer_request_to_wire(view.projection.log_id, request, frame.sequencer_request)
        self._call = self._metadata.call(self._frame, self._replied)
        if self._call is None:
            self._ask_any()

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()
        super().cancel()

    def _replied(self, reply: pb.Frame | LoomError, content: memoryview) -> None:
        if isinstance(reply, Busy):
            self._end(reply)
        elif isinstance(reply, LoomError):
            self._ask_any()
        else:
            self._end(codec.sequencer_answer_from_wire(reply.sequencer_answer))

    def _ask_any(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._request())

    async def _request(self) -> None:
        try:
            reply = await self._metadata.request(self._frame)
        except Busy as error:
            self._end(error)
        except (Retryable, NotFound) as error:
            self._end(Refused(str(error)))
        except Exception as error:
            self._end(error)
        else:
            self._end(codec.sequencer_answer_from_wire(reply.sequencer_answer))


class ChainRequests:
    """Sends requests to the chains of one log, and gives them up when they are due."""

    def __init__(
        self,
        metadata: Metadata,
        connections: Connections,
        late: Callable[[ReplicaRequest], None],
    ) -> None:
        """`late` is called with a request, perhaps again, while its answer is late."""
        self.metadata = metadata
        self.connections = connections
        self.missed: dict[StreamId, NodeId] = {}  # a node that did not answer
        self._late = late
        self.now_s = asyncio.get_running_loop().time
        self._pending: dict[ReplicaRequest, bool] = {}  # all True, in the order of sending
        self._ticker: asyncio.TimerHandle | None = None

    def ask(
        self, view: ChainView, ask: ChainedAsk, answered: Answered, wait_ms: int = 0
    ) -> PendingRequest:
        """Send a request; `wait_ms` is how long a Fetch may wait for blocks."""
        target, request = ask
        if isinstance(target, Service):
            return SequencerRequest(self, view, request, answered)
        return ReplicaRequest(self, view, target, request, answered, wait_ms)

    async def ask_replica(
        self, view: ChainView, replica: Replica, request: Request, *, wait_ms: int = 0
    ) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answered = partial(resolve, answer)
        pending = self.ask(view, Ask(replica, request), answered, wait_ms=wait_ms)
        try:
            return await answer
        finally:
            pending.cancel()

    def interrupt(self, stream: StreamId, epoch: int) -> None:
        """Give up requests of older epochs."""
        for request in list(self._pending):
            if request.view.stream == stream and request.view.epoch < epoch:
                # Deferred: the operation then asks for the view that is being adopted now.
                asyncio.get_running_loop().call_soon(request.give_up)

    def expect(self, request: ReplicaRequest) -> None:
        """Give up the request if it has no answer when it is due."""
        self._pending[request] = True
        if self._ticker is None:
            self._tick()

    def forget(self, request: ReplicaRequest) -> bool:
        """Stop waiting for the answer; return whether it was still pending."""
        return self._pending.pop(request, False)

    def _tick(self) -> None:
        self._ticker = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for request in [pending for pending in self._pending if pending.due_s <= now_s]:
            request.time_is_over()
        for request in [pending for pending in self._pending if pending.is_late(now_s)]:
            self._late(request)
        if self._pending and self._ticker is None:
            self._ticker = loop.call_later(TICK_S, self._tick)


class Drive(Generic[Outcome]):
    """Drives an operation of core/chained without a task: the last answer of a step sends the
    requests of the next one. Only the search for a newer view is a task."""

    __slots__ = (
        "_answers",
        "_chains",
        "_ended",
        "_missing",
        "_renewing",
        "_requests",
        "_steps",
        "_view",
    )

    def __init__(
        self,
        chains: Chains,
        view: ChainView,
        steps: Steps[Outcome],
        ended: Callable[[Outcome | Exception], None],
        renewing: Callable[[], None] | None = None,
    ) -> None:
        """`ended` is called with the outcome or an exception, `renewing` before a newer view is
        searched."""
        self._chains = chains
        self._view = view
        self._steps = steps
        self._ended = ended
        self._renewing = renewing
        self._requests: Sequence[PendingRequest | asyncio.Task[None]] = ()  # of the current step
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
            return
        except Exception as error:
            self._end(error)
            return
        # A request may fail before `ask` returns, and begin the next step.
        requests: list[PendingRequest | asyncio.Task[None]] = []
        self._requests = requests
        if len(asks) > 1:
            self._missing = len(asks)
            self._answers = [_NONE_YET] * len(asks)
            for index, ask in enumerate(asks):
                answered = partial(self._one_answered, index)
                requests.append(self._chains.requests.ask(self._view, ask, answered))
        elif isinstance(renew := asks[0].request, Renew):
            if self._renewing is not None:
                self._renewing()
            requests.append(self._chains.renew(self._view, renew, self._renewed))
        else:
            requests.append(self._chains.requests.ask(self._view, asks[0], self._answered))

    def _answered(self, answer: Answer | Exception) -> None:
        if isinstance(answer, Exception):
            self._steps.close()
            self._end(answer)
        else:
            self._step([answer])

    def _one_answered(self, index: int, answer: Answer | Exception) -> None:
        if isinstance(answer, Exception):
            self.cancel()
            self._end(answer)
            return
        self._answers[index] = answer
        self._missing -= 1
        if not self._missing:
            self._step(self._answers)

    def _renewed(self, view: ChainView | Exception) -> None:
        if isinstance(view, Exception):
            self._end(view)
        else:
            self._view = view
            self._step([InForce(view.projection)])

    def _end(self, end: Outcome | Exception) -> None:
        self._requests = ()
        ended, self._ended = self._ended, _ignore  # breaks the reference cycle with its maker
        ended(end)


def _ignore(end: object) -> None:
    pass


def resolve(future: asyncio.Future[Any], result: object) -> None:
    """Give a future its result, or the exception that took its place."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
