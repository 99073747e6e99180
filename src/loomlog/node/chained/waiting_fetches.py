"""Fetches that wait for more: readers follow the end of a chain with them.

Such a fetch looks whenever its replica has changed. It ends with its connection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from loomlog import limits
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Answer, Fetch, Fetched, Request
from loomlog.errors import Busy
from loomlog.node.long_poll import LongPoll
from loomlog.storage.chained.write_once import Answered
from loomlog.wire.link import Connection

Ask: TypeAlias = Callable[[Replica, Request, Answered], None]


class WaitingFetches:
    """The waiting fetches of one node."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        # Ordered sets, so that a simulation can be repeated.
        self._by_replica: defaultdict[Replica, dict[LongPoll[Answer], None]] = defaultdict(dict)
        self._by_connection: defaultdict[Connection, dict[LongPoll[Answer], None]] = defaultdict(
            dict
        )

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
        waiting: LongPoll[Answer] = LongPoll(
            connection.turns,
            partial(self._ask, replica, fetch),
            _is_nothing,
            wait_s,
            done,
            forget,
            nothing=Fetched([], more=False),
        )
        mine[waiting] = others[waiting] = None
        waiting.look()

    def changed(self, replica: Replica) -> None:
        """Look again: something was committed to the replica."""
        for waiting in list(self._by_replica.get(replica, ())):
            waiting.look()

    def connection_closed(self, connection: Connection) -> None:
        for waiting in list(self._by_connection.pop(connection, ())):
            waiting.end()


def _is_nothing(answer: Answer) -> bool:
    return isinstance(answer, Fetched) and not answer.blocks
