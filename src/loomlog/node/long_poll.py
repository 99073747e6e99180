"""Requests that wait until there is more, with which readers follow the end of a log."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Generic, TypeVar

from loomlog.errors import Busy
from loomlog.net.turns import Turns
from loomlog.wire.link import Connection

Answer = TypeVar("Answer")
Key = TypeVar("Key")


class LongPoll(Generic[Answer]):
    """A request that is evaluated immediately and after each change. It is answered when there is
    something to send, or when its time is over."""

    def __init__(
        self,
        turns: Turns,
        look: Callable[[Callable[[Answer], None]], None],
        is_nothing: Callable[[Answer], bool],
        wait_s: float,
        done: Callable[[Answer], None],
        forget: Callable[[], None],
        nothing: Answer | None = None,
    ) -> None:
        """`nothing` is the answer when the time is over; None: evaluate the request once more."""
        self._turns = turns
        self._look = look
        self._is_nothing = is_nothing
        self._done = done
        self._forget = forget
        self._nothing = nothing
        self._looking = False
        self._queued = False  # waits for its turn to be evaluated
        self._changed = False  # since the evaluation began
        self._late = False
        self._ended = False
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_is_over)

    def look(self) -> None:
        self._changed = self._looking
        if not self._looking:
            self._looking = self._queued = True
            self._turns.take(self._begin)

    def _begin(self) -> None:
        self._queued = False
        if self._ended:
            self._turns.end()
        else:
            self._look(self._looked)

    def end(self) -> None:
        """End without an answer. May be called twice."""
        if not self._ended:
            self._ended = True
            self._timer.cancel()
            self._forget()

    def _looked(self, answer: Answer) -> None:
        self._looking = False
        self._take(answer)
        self._turns.end()

    def _take(self, answer: Answer) -> None:
        if self._ended:
            return
        if self._late or not self._is_nothing(answer):
            self.end()
            self._done(answer)
        elif self._changed:
            self.look()

    def _time_is_over(self) -> None:
        self._late = True
        if self._nothing is None:
            self.look()
        elif not self._looking or self._queued:
            self.end()
            self._done(self._nothing)


class LongPolls(Generic[Key, Answer]):
    """The long polls of a node, by key. They end with their connection."""

    def __init__(self, per_connection_max: int) -> None:
        self._per_connection_max = per_connection_max
        # Ordered sets, so that a simulation can be repeated.
        self.by_key: defaultdict[Key, dict[LongPoll[Answer], None]] = defaultdict(dict)
        self._by_connection: defaultdict[Connection, dict[LongPoll[Answer], None]]
        self._by_connection = defaultdict(dict)

    def add(
        self,
        connection: Connection,
        key: Key,
        look: Callable[[Callable[[Answer], None]], None],
        is_nothing: Callable[[Answer], bool],
        wait_s: float,
        done: Callable[[Answer], None],
        nothing: Answer | None = None,
    ) -> None:
        """Begin a LongPoll. Raise Busy if too many are waiting on the connection, or of its
        identity."""
        mine = self._by_connection[connection]
        if len(mine) >= self._per_connection_max:
            raise Busy("too many requests wait on this connection: end some first")

        usage = connection.usage
        usage.subscribe()

        def forget() -> None:
            usage.unsubscribe()
            del mine[poll]
            del others[poll]
            if not others:
                self.by_key.pop(key, None)

        others = self.by_key[key]
        poll = LongPoll(connection.turns, look, is_nothing, wait_s, done, forget, nothing)
        mine[poll] = others[poll] = None
        poll.look()

    def changed(self, key: Key) -> None:
        """Called when something has changed at this key."""
        for poll in list(self.by_key.get(key, ())):
            poll.look()

    def changed_everywhere(self) -> None:
        for key in list(self.by_key):
            self.changed(key)

    def connection_closed(self, connection: Connection) -> None:
        for poll in list(self._by_connection.pop(connection, ())):
            poll.end()

    def stop(self) -> None:
        for connection in list(self._by_connection):
            self.connection_closed(connection)
