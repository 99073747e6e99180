"""What sequencers, recoveries, other nodes and readers ask of the copies on a node.

Anybody may: what a request may do is core/copyset/storage.py's matter. To trim and to forget is for
the metadata repository to order, over the connection that this node made to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from loomlog.core.copyset.messages import Forget, NodeAnswer, Read, Release
from loomlog.errors import Busy, Unauthorized, Unavailable
from loomlog.limits import COPYSET_READS_PER_CONNECTION_MAX, COPYSET_WAIT_S_MAX
from loomlog.net.connection import Connection, Frame
from loomlog.node.copyset.catching_up import CatchingUp
from loomlog.node.copyset.copies import Copies
from loomlog.node.copyset.looking_up import looked_up
from loomlog.node.copyset.losses import HonestCopies
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import answer_to_wire, request_from_wire

_ORDERS: Final = (pb.CopysetRequest.TRIM, pb.CopysetRequest.FORGET)


class Serving:
    def __init__(
        self,
        copies: Copies,
        honest: HonestCopies,
        catching_up: CatchingUp,
        forgotten: Callable[[LogId], None],
    ) -> None:
        self._copies = copies
        self._honest = honest
        self._catching_up = catching_up
        self._forgotten = forgotten
        self._waiting: dict[Connection, dict[int, Callable[[], None]]] = {}

    def request(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """Of anybody."""
        kind = frame.copyset_request.kind
        if kind in _ORDERS:
            name = pb.CopysetRequest.Kind.Name(kind)
            raise Unauthorized(f"{name} of a log is ordered by the metadata repository only")
        self.order(connection, frame, payload)

    def order(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """Of the metadata repository, which may ask for everything."""
        message = frame.copyset_request
        request = request_from_wire(message, payload)
        if isinstance(request, Read):
            self._catching_up.somebody_reads(request.log)
            if message.wait_ms:
                self._wait(connection, frame.id, request, message.wait_ms / 1000)
                return
        if isinstance(request, Forget):
            self._forgotten(request.log)
        done = _ignore if isinstance(request, Release) else partial(_answer, connection, frame.id)
        self._honest.ask(request, done)

    def connection_closed(self, connection: Connection) -> None:
        for end in self._waiting.pop(connection, {}).values():
            end()

    def _wait(self, connection: Connection, number: int, read: Read, wait_s: float) -> None:
        waiting = self._waiting.setdefault(connection, {})
        if len(waiting) >= COPYSET_READS_PER_CONNECTION_MAX:
            raise Busy("too many reads wait on this connection")

        def done(answer: NodeAnswer) -> None:
            waiting.pop(number, None)
            _answer(connection, number, answer)

        waiting[number] = _nothing
        end = self._honest.wait(read, min(wait_s, COPYSET_WAIT_S_MAX), done)
        if number in waiting:  # it may have been answered at once
            waiting[number] = end

    # ---- landmarks

    async def landmarks(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.find_copyset_landmarks
        store = await self._copies.opened()
        if store is None:
            raise Unavailable("the copies on this node cannot be opened: see its log")
        log, timestamp_us = order.loglet_id, order.timestamp_us
        older = await looked_up(partial(store.find_time, log, timestamp_us))
        expired = await looked_up(partial(store.expired, log, timestamp_us))
        empty = await looked_up(partial(store.is_empty, log))
        found = pb.CopysetLandmarks(
            older=older.after,
            expired=expired,
            empty=empty,
            underreplicated=self._honest.may_miss(log),
        )
        return pb.Frame(copyset_landmarks=found)


def _answer(connection: Connection, number: int, answer: NodeAnswer) -> None:
    message, payload = answer_to_wire(answer)
    connection.send(pb.Frame(id=number, reply=True, copyset_answer=message), payload)


def _ignore(answer: NodeAnswer) -> None:
    pass


def _nothing() -> None:
    pass
