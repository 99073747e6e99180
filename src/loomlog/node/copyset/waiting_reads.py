"""Reads that wait for more: readers follow the end of a log with them.

Such a read looks when it comes and whenever its log has changed, and is answered when there is
something to tell, or nothing for as long as it wanted to wait.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from loomlog.core.copyset.messages import Delivered, NodeAnswer, Read
from loomlog.storage.logsdb.store import Answered, LogsStore
from loomlog.types import LogId


class WaitingReads:
    """All of one store."""

    def __init__(self, store: LogsStore) -> None:
        self._store = store
        # Ordered sets, so that a simulation can be repeated.
        self._by_log: defaultdict[LogId, dict[_Waiting, None]] = defaultdict(dict)

    def add(self, read: Read, wait_s: float, done: Answered) -> Callable[[], None]:
        """What it gives back ends the read without an answer."""
        look = partial(self._store.ask, read)
        waiting = _Waiting(read, look, wait_s, done, self._forget)
        self._by_log[read.log][waiting] = None
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

    def _forget(self, waiting: _Waiting) -> None:
        others = self._by_log.get(waiting.read.log, {})
        others.pop(waiting, None)
        if not others:
            self._by_log.pop(waiting.read.log, None)


class _Waiting:
    def __init__(
        self,
        read: Read,
        look: Callable[[Answered], None],
        wait_s: float,
        done: Answered,
        forget: Callable[[_Waiting], None],
    ) -> None:
        self.read = read
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
        self._forget(self)

    def _looked(self, answer: NodeAnswer) -> None:
        self._looking = False
        if self._ended:
            return
        if self._late or not self._is_nothing(answer):
            self.end()
            self._done(answer)
        elif self._changed:
            self.look()

    def _time_is_over(self) -> None:
        self._late = True
        self.look()  # for what it has to tell: how far the log is released and trimmed

    def _is_nothing(self, answer: NodeAnswer) -> bool:
        """The node neither sends anything nor has looked any further."""
        return (
            isinstance(answer, Delivered)
            and not answer.records
            and answer.next_lsn <= self.read.first
        )
