"""Requests to replicas and sequencers, answered by plain callbacks.

An append is four requests, each sent when the previous one is answered. With a Future and a task
switch for each, the client would take as long as the disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from loomlog import limits
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Answer, Refused, Request
from loomlog.core.requests import Lost
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
from loomlog.wire import chained as codec
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame

if TYPE_CHECKING:
    from loomlog.client.loglets.chained.chains import Chains, ChainView

ANSWER_S: Final = 2.0  # a replica silent for this long is reported, and asked again
BYTES_PER_S_MIN: Final = 4 * limits.MIB  # large blocks are given more time

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
        "_chains",
        "_connection",
        "_frame",
        "_node_id",
        "_payload",
        "_request_id",
        "_timeout_s",
        "due_s",
        "view",
    )

    def __init__(
        self,
        chains: Chains,
        view: ChainView,
        replica: Replica,
        request: Request,
        answered: Answered,
        wait_ms: int = 0,
    ) -> None:
        """Send the request; `wait_ms` is how long a Fetch may wait for blocks."""
        super().__init__(answered)
        self.view = view
        self._chains = chains
        self._node_id = replica.node_id
        message, payload = codec.request_to_wire(replica, request, wait_ms=wait_ms)
        self._frame = pb.Frame(chain_request=message)
        self._payload = (payload,) if len(payload) else ()
        self._timeout_s = ANSWER_S + wait_ms / 1000 + len(payload) / BYTES_PER_S_MIN
        self.due_s = 0.0  # set when it is sent
        self._connection: Connection | None = None
        self._request_id = 0
        connection = chains.connections.get(view.addresses.get(self._node_id, ""))
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

    def time_is_over(self) -> None:
        self._forget()
        self._failed(Timeout(f"no answer within {seconds(self._timeout_s)}"))

    def _forget(self) -> bool:
        """Drop the answer; return whether it was still expected."""
        if not self._chains.forget(self):
            return False
        assert self._connection is not None
        self._connection.forget(self._request_id)
        return True

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        self._request_id = connection.call(self._frame, self._payload, self._replied)
        # The rest is done while the peer works, so it adds no latency.
        if self._answered is not None:
            self.due_s = asyncio.get_running_loop().time() + self._timeout_s
            self._chains.expect(self)

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
                connection = await self._chains.connections.connect(address)
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
            self._chains.missed[self.view.stream] = self._node_id
        sent = silent and connection is not None
        self._end(Lost() if sent else Refused(f"node {self._node_id}: {error}"))

    def _end(self, answer: Answer | Exception) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(answer)
        self._chains.forget(self)


class SequencerRequest(PendingRequest):
    """Asks the server used last; falls back to any that can be found."""

    __slots__ = ("_call", "_frame", "_metadata")

    def __init__(
        self, chains: Chains, view: ChainView, request: Request, answered: Answered
    ) -> None:
        super().__init__(answered)
        self._metadata = chains.metadata
        message = codec.sequencer_request_to_wire(view.projection.log_id, request)
        self._frame = pb.Frame(sequencer_request=message)
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
