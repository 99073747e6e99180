"""Following a log: one sequence, whatever protocols its segments are run by.

A log is read a stretch at a time (orders.py), each by the part of its protocol (parts.py). A part
ends where the metadata repository has recorded the end of its stretch, and the next one begins.
"""

from __future__ import annotations

from loomlog.client.metadata import CachedLog
from loomlog.client.orders import Order
from loomlog.client.parts import Part, PartsByProtocol, trimmed
from loomlog.client.pieces import Stored
from loomlog.errors import LoomError, VersionMismatch
from loomlog.types import Gap
from loomlog.wire import loomlog_pb2 as pb


class Subscription:
    """One reader's way through a log. `next()` is for one consumer at a time."""

    def __init__(
        self,
        log: CachedLog,
        parts: PartsByProtocol,
        order: Order,
        start: int | str,
        stop: int | None,
        live: dict[Subscription, None],
    ) -> None:
        self._log = log
        self._parts = parts
        self._order = order
        self._start = start
        self._stop = stop
        self._live = live  # all that their client has to close
        self._next = 0  # the number that is delivered next; 0: not begun
        self._part: Part | None = None
        self._failure: LoomError | None = None
        self._closed = False

    async def next(self) -> Stored | None:
        """The next records; None when `stop` was delivered. Waits for what is not written yet."""
        if not self._next:
            await self._begin()
        while not self._at_end():
            part = self._part or self._open(await self._log.get())
            piece = await part.next()
            if piece is not None:
                return self._passed(piece)
            if not self._closed:
                self._next = max(self._next, part.last + 1)
                self._part = None
                part.close()
        self.close()
        if self._failure is not None:
            raise self._failure
        return None

    def next_ready(self) -> Stored | None:
        """The next records if they are here already."""
        piece = None if self._part is None else self._part.next_ready()
        return None if piece is None else self._passed(piece)

    def close(self, error: LoomError | None = None) -> None:
        """Stop; a consumer that waits is told `error`."""
        if not self._closed:
            self._failure = error
        self._closed = True
        self._live.pop(self, None)
        if self._part is not None:
            self._part.close(error)

    def _at_end(self) -> bool:
        return self._closed or (self._stop is not None and self._next > self._stop)

    async def _begin(self) -> None:
        self._live[self] = None
        is_tail_needed = self._start == "latest"
        log = await (self._log.describe() if is_tail_needed else self._log.look())
        head, tail = self._order.bounds(log)
        if self._start == "earliest":
            self._next = head
        elif self._start == "latest":
            self._next = tail + 1
        else:
            self._next = int(self._start)
        if not self._at_end():
            self._open(log)

    def _open(self, log: pb.Log) -> Part:
        head, _ = self._order.bounds(log)
        if self._next < head:
            raise trimmed(self._order, self._next, self._log.name, head)
        protocol = self._order.stretch(log, self._next).protocol
        open_part = self._parts.get(protocol)
        if open_part is None:
            raise VersionMismatch(
                f"{self._order.describe(self._next)} of log {self._log.name!r} is kept by protocol "
                f"{protocol!r}, which this client does not know; upgrade it"
            )
        self._part = open_part(log, self._next, self._stop)
        return self._part

    def _passed(self, piece: Stored) -> Stored:
        if isinstance(piece, Gap):
            self._next = piece.last + 1
        else:
            self._next = self._order.first(piece.header) + piece.skip + piece.rows
        return piece
