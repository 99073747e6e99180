"""Reads that wait for more: readers follow the end of a log with them.

Such a read looks whenever its log has changed. When its time is over it looks once more, because it
reports even then how far the log is released and trimmed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from loomlog.core.copyset.messages import Delivered, NodeAnswer, NodeRequest, Read
from loomlog.net.turns import Turns
from loomlog.node.long_poll import LongPoll
from loomlog.storage.logsdb.store import Answered
from loomlog.types import LogId

Ask: TypeAlias = Callable[[NodeRequest, Answered], None]


class WaitingReads:
    """The waiting reads of one node."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        # Ordered sets, so that a simulation can be repeated.
        self._by_log: defaultdict[LogId, dict[LongPoll[NodeAnswer], None]] = defaultdict(dict)

    def add(self, read: Read, wait_s: float, done: Answered, turns: Turns) -> Callable[[], None]:
        """Return a function that ends the read without an answer."""

        def forget() -> None:
            del others[waiting]
            if not others:
                self._by_log.pop(read.log, None)

        others = self._by_log[read.log]
        look, is_nothing = partial(self._ask, read), partial(_is_nothing, read)
        waiting = LongPoll(turns, look, is_nothing, wait_s, done, forget)
        others[waiting] = None
        waiting.look()
        return waiting.end

    def changed(self, log: LogId) -> None:
        """Look again: more of the log may be shown, or less is there."""
        for waiting in list(self._by_log.get(log, ())):
            waiting.look()

    def look_at_all(self) -> None:
        """Look again for all of them: the store has failed, and they are answered so."""
        for log in list(self._by_log):
            self.changed(log)

    def stop(self) -> None:
        for waitings in list(self._by_log.values()):
            for waiting in list(waitings):
                waiting.end()


def _is_nothing(read: Read, answer: NodeAnswer) -> bool:
    """Return whether the node neither sends anything nor has looked any further."""
    return isinstance(answer, Delivered) and not answer.records and answer.next_lsn <= read.first
