"""What a storage node does with the logs in its store, besides answering: it keeps readers waiting
until there is more, learns what it missed while it was away, and tends the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.messages import (
    Done,
    Forget,
    NodeAnswer,
    NodeRequest,
    Purge,
    Read,
    Release,
    Trim,
)
from loomlog.core.copyset.storage import epoch_to_purge
from loomlog.node.copyset.waiting_reads import WaitingReads
from loomlog.storage.logsdb.store import Answered, LogsStore
from loomlog.types import LogId

TEND_S: Final = 5.0  # a partition may last this much longer


class Storing:
    """For one store. `purge` is called when something up to the LSN is released, but an older epoch
    was recovered without this node: it must learn how that ended, and ask the release again."""

    def __init__(
        self,
        store: LogsStore,
        purge: Callable[[LogId, Lsn], None],
        now_us: Callable[[], int],
    ) -> None:
        self._store = store
        self._purge = purge
        self._now_us = now_us
        self._waiting = WaitingReads(store)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._tend()

    def stop(self) -> None:
        """Before the workers finish."""
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.stop()
        self._store.stop()

    def ask(self, request: NodeRequest, done: Answered) -> None:
        """`done` gets the answer, on the loop. A batch must not change until then."""
        self._store.ask(request, partial(self._answered, request, done))

    def wait(self, read: Read, wait_s: float, done: Answered) -> Callable[[], None]:
        """Like `ask`, but with nothing to tell the answer may take that long. What it gives back
        ends the read without an answer."""
        return self._waiting.add(read, wait_s, done)

    def _answered(self, request: NodeRequest, done: Answered, answer: NodeAnswer) -> None:
        done(answer)
        if not isinstance(answer, Done):
            return
        match request:
            case Release(log, lsn):
                self._waiting.changed(log)
                if epoch_to_purge(lsn, self._store.standing(log)) is not None:
                    self._purge(log, lsn)
            case Purge(log) | Trim(log) | Forget(log):
                self._waiting.changed(log)

    def _tend(self) -> None:
        try:
            self._store.tend(self._now_us())
        finally:  # whatever fails, it must not be the last time
            self._timer = asyncio.get_running_loop().call_later(TEND_S, self._tend)
