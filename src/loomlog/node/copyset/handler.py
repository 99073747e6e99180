"""Requests to the copies on a node, from sequencers, recoveries, other nodes and readers.

Any peer may ask. core/copyset/storage.py decides what a request may do, once it is certain that its
epoch was granted. Only the metadata repository may trim and forget, over the connection that this
node made to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from loomlog.core.copyset.messages import (
    Digest,
    Forget,
    NodeAnswer,
    NodeRequest,
    Read,
    Release,
)
from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.storage import claimed_epoch, taken_epoch
from loomlog.errors import NotLeader, Unauthorized, Unavailable
from loomlog.node.copyset.copies import CatchUp, Copies, looked_up
from loomlog.node.copyset.epoch_store import AskMetadata
from loomlog.node.workers import called_back
from loomlog.storage.logsdb.store import Answered
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import answer_to_wire, request_from_wire
from loomlog.wire.link import Connection, Frame

WAIT_S_MAX: Final = 30.0  # the longest that a read waits for more records
_ORDERS: Final = (pb.CopysetRequest.TRIM, pb.CopysetRequest.FORGET)


class CopysetHandler:
    """Checks requests to the copies, and answers them."""

    def __init__(
        self,
        copies: Copies,
        grants: Grants,
        catch_up: CatchUp,
        forgotten: Callable[[LogId], None],
    ) -> None:
        self._copies = copies
        self._grants = grants
        self._catch_up = catch_up
        self._forgotten = forgotten

    def request(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        """Handle a request of any peer."""
        kind = frame.copyset_request.kind
        if kind in _ORDERS:
            name = pb.CopysetRequest.Kind.Name(kind)
            raise Unauthorized(f"{name} of a log is ordered by the metadata repository only")
        request = request_from_wire(frame.copyset_request, payload)
        epoch = claimed_epoch(request)
        if epoch and not self._grants.covers(request.log, epoch):
            return self._when_granted(connection, request, frame.copyset_request.stamp, epoch)
        self._serve(connection, frame, request)
        return None

    async def _when_granted(
        self, connection: Connection, request: NodeRequest, stamp: int, epoch: Epoch
    ) -> Frame:
        await self._grants.verify(request.log, epoch)
        answer = await called_back(partial(self._ask, connection, request, stamp))
        if isinstance(request, Release):
            self._catch_up.released(request, answer)
        message, _ = answer_to_wire(answer)
        return pb.Frame(copyset_answer=message)

    def order(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """Handle a request of the metadata repository, which may ask for everything."""
        self._serve(connection, frame, request_from_wire(frame.copyset_request, payload))

    def _serve(self, connection: Connection, frame: Frame, request: NodeRequest) -> None:
        message = frame.copyset_request
        if isinstance(request, Read):
            self._catch_up.note_reader(request.log)
            if message.wait_ms:
                wait_s = min(message.wait_ms / 1000, WAIT_S_MAX)
                done = partial(_answer, connection, frame.id)
                self._copies.wait(connection, request, message.stamp, wait_s, done)
                return
        if isinstance(request, Forget) and self._is_known(request.log, message.stamp):
            self._forgotten(request.log)
        if isinstance(request, Release):  # it has no answer
            done = partial(self._catch_up.released, request)
        else:
            done = partial(_answer, connection, frame.id)
        self._ask(connection, request, message.stamp, done)

    def _ask(
        self, connection: Connection, request: NodeRequest, stamp: int, done: Answered
    ) -> None:
        """Ask at once, or in its turn if the answer may be large."""
        if not isinstance(request, Read | Digest):
            self._copies.ask(request, stamp, done)
            return

        def looked(answer: NodeAnswer) -> None:
            done(answer)
            connection.turns.end()

        connection.turns.take(partial(self._copies.ask, request, stamp, looked))

    def _is_known(self, log: LogId, stamp: int) -> bool:
        return self._copies.standing(log).stamp in (0, stamp)

    # ---- landmarks

    async def landmarks(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.find_copyset_landmarks
        store = await self._copies.volume.opened()
        if store is None:
            raise Unavailable("the copies on this node cannot be opened: see its log")
        log = order.loglet_id
        released = store.standing(log).released  # first: all that it covers is looked at then
        older, young = await looked_up(partial(store.ages, log, order.timestamp_us))
        found = pb.CopysetLandmarks(
            older=older,
            young=young,
            released=released,
            underreplicated=self._copies.may_miss(log),
        )
        return pb.Frame(copyset_landmarks=found)


class Grants:
    """The epochs that were granted, as the metadata repository said and as is stored here.

    Any peer can send a request of any epoch. A request of an epoch that is not known here waits
    until the metadata repository was asked: once for each epoch of a log, and for each forged
    one."""

    def __init__(self, copies: Copies, ask: AskMetadata) -> None:
        self._copies = copies
        self._ask = ask
        self._granted: dict[LogId, Epoch] = {}  # the highest one
        self._asking: dict[LogId, asyncio.Task[None]] = {}

    def covers(self, log: LogId, epoch: Epoch) -> bool:
        """Return whether the epoch is known to be granted, without asking anybody."""
        if epoch <= self._granted.get(log, 0):
            return True
        if epoch > taken_epoch(self._copies.standing(log)):
            return False
        self._granted[log] = epoch
        return True

    def learned(self, log: LogId, epoch: Epoch) -> None:
        """Note what the metadata repository said."""
        if epoch > self._granted.get(log, 0):
            self._granted[log] = epoch

    def forget(self, log: LogId) -> None:
        self._granted.pop(log, None)

    def stop(self) -> None:
        for asking in self._asking.values():
            asking.cancel()

    async def verify(self, log: LogId, epoch: Epoch) -> None:
        """Return if the epoch was granted; raise Unavailable if not, or if that is not known."""
        for _ in range(2):  # an answer that was on its way before may be too old
            await self._asked(log)
            if self.covers(log, epoch):
                return
        raise Unavailable(
            f"epoch {epoch} of loglet {log} was never granted: the newest one is "
            f"{self._granted.get(log, 0)}"
        )

    async def _asked(self, log: LogId) -> None:
        """Ask the metadata repository; concurrent callers wait for the same answer."""
        if log not in self._asking:
            self._asking[log] = asyncio.get_running_loop().create_task(self._get(log))
            self._asking[log].add_done_callback(lambda asking: self._answered(log, asking))
        await asyncio.shield(self._asking[log])

    async def _get(self, log: LogId) -> None:
        question = pb.EpochStoreRequest(kind=pb.EpochStoreRequest.GET, loglet_id=log)
        try:
            answer = await self._ask(pb.Frame(epoch_store_request=question))
        except NotLeader as error:  # of the metadata: clients would take it for a sequencer
            raise Unavailable(f"the epochs of loglet {log}: {error}") from None
        self.learned(log, answer.copyset_state.epoch)

    def _answered(self, log: LogId, asking: asyncio.Task[None]) -> None:
        del self._asking[log]
        if not asking.cancelled():
            asking.exception()  # callers that still wait get it, too


def _answer(connection: Connection, number: int, answer: NodeAnswer) -> None:
    message, payload = answer_to_wire(answer)
    connection.send(pb.Frame(id=number, reply=True, copyset_answer=message), payload)
