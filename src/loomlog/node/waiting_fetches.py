"""Fetches that wait for more: readers follow the end of a chain with them.

Such a fetch looks when it comes and whenever its replica has changed, and is answered when there is
something to tell, or nothing for as long as it wanted to wait. It ends with its connection.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

from loomlog import limits
from loomlog.core.chained.messages import Answer, Fetch, Fetched, Request
from loomlog.core.chained.projection import Replica
from loomlog.errors import Busy
from loomlog.net.connection import Connection
from loomlog.storage.write_once import Answered

Ask: TypeAlias = Callable[[Replica, Request, Answered], None]


class WaitingFetches:
    """All of one node."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        # Ordered sets, so that a simulation can be repeated.
        self._by_replica: defaultdict[Replica, dict[_Waiting, None]] = defaultdict(dict)
        self._by_connection: defaultdict[Connection, dict[_Waiting, None]] = defaultdict(dict)

    def add(
        self,
        connection: Connection,
        replica: Replica,
        fetch: Fetch,
        wait_s: float,
        done: Answered,
    ) -> None:
        mine = self._by_connection[connection]
        if len(mine) >= limits.SUBSCRIPTIONS_PER_CONNECTION_MAX:
            raise Busy("too many fetches wait on this connection: end some first")

        def forget() -> None:
            del mine[waiting]
            del others[waiting]
            if not others:
                self._by_replica.pop(replica, None)

        others = self._by_replica[replica]
        waiting = _Waiting(lambda looked: self._ask(replica, fetch, looked), wait_s, done, forget)
        mine[waiting] = others[waiting] = None
        waiting.look()

    def changed(self, replica: Replica) -> None:
        """Something was committed there."""
        for waiting in list(self._by_replica.get(replica, ())):
            waiting.look()

    def connection_closed(self, connection: Connection) -> None:
        for waiting in list(self._by_connection.pop(connection, ())):
            waiting.end()


class _Waiting:
    def __init__(
        self,
        look: Callable[[Answered], None],
        wait_s: float,
        done: Answered,
        forget: Callable[[], None],
    ) -> None:
        self._look = look
        self._done = done
        self._forget = forget
        self._looking = False
        self._changed = False  # since it began to look
        self._late = False
        self._ended = False
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_is_over)

    def look(self) -> None:
        self._changed = self._looking
        if not self._looking:
            self._looking = True
            self._look(self._looked)

    def end(self) -> None:
        """Without an answer."""
        self._ended = True
        self._timer.cancel()
        self._forget()

    def _looked(self, answer: Answer) -> None:
        self._looking = False
        if self._ended:
            return
        if self._late or not _is_nothing(answer):
            self.end()
            self._done(answer)
        elif self._changed:
            self.look()

    def _time_is_over(self) -> None:
        self._late = True
        if not self._looking:
            self.end()
            self._done(Fetched([], more=False))


def _is_nothing(answer: Answer) -> bool:
    return isinstance(answer, Fetched) and not answer.blocks
