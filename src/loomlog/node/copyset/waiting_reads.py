"""Reads that wait for more: readers follow the end of a log with them.

Such a read looks whenever its log has changed. When its time is over it looks once more, for what
it has to tell even then: how far the log is released and trimmed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from loomlog.core.copyset.messages import Delivered, NodeAnswer, Read
from loomlog.node.waiting import Waiting
from loomlog.storage.logsdb.store import Answered, LogsStore
from loomlog.types import LogId


class WaitingReads:
    """All of one store."""

    def __init__(self, store: LogsStore) -> None:
        self._store = store
        # Ordered sets, so that a simulation can be repeated.
        self._by_log: defaultdict[LogId, dict[Waiting[NodeAnswer], None]] = defaultdict(dict)

    def add(self, read: Read, wait_s: float, done: Answered) -> Callable[[], None]:
        """What it gives back ends the read without an answer."""

        def forget() -> None:
            del others[waiting]
            if not others:
                self._by_log.pop(read.log, None)

        others = self._by_log[read.log]
        waiting = Waiting(
            partial(self._store.ask, read), partial(_is_nothing, read), wait_s, done, forget
        )
        others[waiting] = None
        waiting.look()
        return waiting.end

    def changed(self, log: LogId) -> None:
        """More of it may be shown, or less is there."""
        for waiting in list(self._by_log.get(log, ())):
            waiting.look()

    def stop(self) -> None:
        for waitings in list(self._by_log.values()):
            for waiting in list(waitings):
                waiting.end()


def _is_nothing(read: Read, answer: NodeAnswer) -> bool:
    """The node neither sends anything nor has looked any further."""
    return isinstance(answer, Delivered) and not answer.records and answer.next_lsn <= read.first
