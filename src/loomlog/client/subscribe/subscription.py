"""Follows a log as one sequence across segments of different protocols.

A log is read one run (numbering.py) at a time, each by a part (part.py) that its loglet opens. A
part ends where the metadata repository has recorded the end of the run.
"""

from __future__ import annotations

from loomlog.client.cached_log import CachedLog
from loomlog.client.loglets.contract import FollowOptions
from loomlog.client.loglets.registry import Loglets
from loomlog.client.subscribe.part import Part, trimmed
from loomlog.client.subscribe.pieces import Stored
from loomlog.errors import LoomError, Unavailable
from loomlog.types import Gap
from loomlog.wire import loomlog_pb2 as pb


class OpenSubscriptions:
    """The open subscriptions of one client."""

    def __init__(self) -> None:
        self._open: dict[Subscription, None] = {}
        self._closed = False

    def check_open(self) -> None:
        """Raise Unavailable if the client was closed."""
        if self._closed:
            raise Unavailable("this client was closed")

    def add(self, subscription: Subscription) -> None:
        self._open[subscription] = None

    def discard(self, subscription: Subscription) -> None:
        self._open.pop(subscription, None)

    def close(self) -> None:
        """End all subscriptions; waiting consumers get Unavailable."""
        self._closed = True
        for subscription in list(self._open):
            subscription.close(Unavailable("this client was closed"))


class Subscription:
    """The stored pieces of a log, run after run, for one consumer at a time."""

    def __init__(
        self,
        log: CachedLog,
        loglets: Loglets,
        options: FollowOptions,
        start: int | str,
        stop: int | None,
        subscriptions: OpenSubscriptions,
    ) -> None:
        self._log = log
        self._loglets = loglets
        self._options = options
        self._numbering = options.numbering
        self._start = start
        self._stop = stop
        self._subscriptions = subscriptions
        self._next = 0  # the next number to deliver; 0: not started
        self._part: Part | None = None
        self._failure: LoomError | None = None
        self._closed = False

    async def next(self) -> Stored | None:
        """Wait until the next records are written and return them; return None after `stop`."""
        if not self._next:
            await self._begin()
        while not self._at_end():
            part = self._part or self._open(await self._log.cached())
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
        """Return the next records if they have arrived."""
        piece = None if self._part is None else self._part.next_ready()
        return None if piece is None else self._passed(piece)

    def close(self, error: LoomError | None = None) -> None:
        """Stop; `error` is raised in a waiting consumer."""
        if not self._closed:
            self._failure = error
        self._closed = True
        self._subscriptions.discard(self)
        if self._part is not None:
            self._part.close(error)

    def _at_end(self) -> bool:
        return self._closed or (self._stop is not None and self._next > self._stop)

    async def _begin(self) -> None:
        self._subscriptions.add(self)
        is_tail_needed = self._start == "latest"
        log = await (self._loglets.fetch_with_tail() if is_tail_needed else self._log.fetch())
        head, tail = self._numbering.bounds(log)
        if self._start == "earliest":
            self._next = head
        elif self._start == "latest":
            self._next = tail + 1
        else:
            self._next = int(self._start)
        if not self._at_end():
            self._open(log)

    def _open(self, log: pb.Log) -> Part:
        head, _ = self._numbering.bounds(log)
        if self._next < head:
            raise trimmed(self._numbering, self._next, self._log.name, head)
        loglet = self._loglets.of(self._numbering.run(log, self._next).protocol)
        self._part = loglet.follow(self._options, log, self._next, self._stop)
        return self._part

    def _passed(self, piece: Stored) -> Stored:
        if isinstance(piece, Gap):
            self._next = piece.last + 1
        else:
            self._next = self._numbering.first(piece.header) + piece.skip + piece.rows
        if self._numbering.crosses:  # numbers are positions
            self._log.reached = max(self._log.reached, self._next - 1)
        return piece
