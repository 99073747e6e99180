"""Where a node keeps its copies of `copyset` logs: one LogsDB, on its first volume.

    <volume>/cid=<cluster id>/snid=<node id>/logs/…

A node without copies has no LogsDB and no threads for one. It is opened at the start of the node if
it is there, otherwise with the first request; what is asked meanwhile waits. When it cannot be
opened, or a commit failed, all is refused until the node is started again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.messages import NodeRequest, Read, Refused, Trouble
from loomlog.core.copyset.storage import LogStanding
from loomlog.limits import COPYSET_LOOK_UPS_MAX
from loomlog.node.copyset.storing import Storing
from loomlog.node.workers import off_loop
from loomlog.storage.files import Files, Worker
from loomlog.storage.logsdb.store import Answered, LogsStore
from loomlog.storage.logsdb.table import LogsTable
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)

OpenLogs: TypeAlias = Callable[[str], LogsTable]
Missed: TypeAlias = Callable[[LogId, Lsn], None]

COUNT_S: Final = 5.0  # between counts of what is stored

_OPENING: Final = Refused(Trouble.OVERLOADED, "too much waits for the copies to be opened")


def _ignore(log: LogId, lsn: Lsn) -> None:
    pass


class Copies:
    """`note_made` is called when there is a LogsDB, before anything is put into it: a process that
    ends in between has lost nothing. It blocks. `missed` is called when more of a log is released
    than this node can show: see Storing."""

    def __init__(
        self,
        node_id: NodeId,
        files: Files,
        node_path: str,
        open_logs: OpenLogs,
        new_worker: Callable[[], Worker],
        free_bytes: Callable[[], int],
        now_us: Callable[[], int],
        note_made: Callable[[], None],
    ) -> None:
        self.missed: Missed = _ignore
        self.path = f"{node_path}/logs"
        self._node_id = node_id
        self._files = files
        self._node_path = node_path
        self._open_logs = open_logs
        self._new_worker = new_worker
        self._free_bytes = free_bytes
        self._now_us = now_us
        self._note_made = note_made
        self._table: LogsTable | None = None
        self._store: LogsStore | None = None
        self._storing: Storing | None = None
        self._refusal: Refused | None = None
        self._opening: asyncio.Task[None] | None = None
        self._stored_bytes = 0
        self._count_again_at = 0.0
        self._waiting: list[tuple[Callable[[Storing], None], Answered]] = []

    @property
    def are_there(self) -> bool:
        """Blocks."""
        return self._files.exists(self.path)

    @property
    def are_closed(self) -> bool:
        """They cannot be opened: what is in them is not known."""
        return self._refusal is not None

    @property
    def store(self) -> LogsStore | None:
        """None: it is not open, or cannot be."""
        return self._store

    def standing(self, log: LogId) -> LogStanding:
        return self._store.standing(log) if self._store is not None else LogStanding()

    @property
    def logs(self) -> list[LogId]:
        return self._store.logs() if self._store is not None else []

    @property
    def stored_bytes(self) -> int:
        """As of a moment ago: there may be many logs."""
        now, store = asyncio.get_running_loop().time(), self._store
        if store is not None and now >= self._count_again_at:
            self._count_again_at = now + COUNT_S
            self._stored_bytes = sum(map(store.stored_bytes, store.logs()))
        return self._stored_bytes

    def open(self) -> None:
        """What is there already. Blocks."""
        if self.are_there:
            worker = self._new_worker()
            try:
                self._open_table()
            except Exception as error:
                self._cannot_open(error)
            else:
                self._begin(worker)

    def ask(self, request: NodeRequest, done: Answered) -> None:
        """See Storing.ask."""
        self._when_open(lambda storing: storing.ask(request, done), done)

    def wait(self, read: Read, wait_s: float, done: Answered) -> Callable[[], None]:
        """See Storing.wait."""
        ends: list[Callable[[], None]] = []
        ended = False

        def end() -> None:
            nonlocal ended
            ended = True
            for each in ends:
                each()

        def begin(storing: Storing) -> None:
            if not ended:
                ends.append(storing.wait(read, wait_s, done))

        self._when_open(begin, done)
        return end

    async def opened(self) -> LogsStore | None:
        """The store, made if it is missing; None: it cannot be opened."""
        if self._store is None and self._refusal is None:
            self._open_soon()
        if self._opening is not None:
            await asyncio.shield(self._opening)
        return self._store

    def stop(self) -> None:
        """Before the workers finish."""
        if self._opening is not None:
            self._opening.cancel()
        if self._storing is not None:
            self._storing.stop()

    def close(self) -> None:
        """When the workers have finished."""
        table, self._table = self._table, None
        if table is not None:
            table.close()

    # ---- opening

    def _when_open(self, work: Callable[[Storing], None], refused: Answered) -> None:
        if self._storing is not None:
            work(self._storing)
        elif self._refusal is not None:
            refused(self._refusal)
        elif len(self._waiting) >= COPYSET_LOOK_UPS_MAX:
            refused(_OPENING)
        else:
            self._waiting.append((work, refused))
            self._open_soon()

    def _open_soon(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        worker = self._new_worker()
        try:
            await off_loop(worker, self._open_table)
            self._begin(worker)
        except Exception as error:
            self._cannot_open(error)
        finally:
            self._opening = None
        waiting, self._waiting = self._waiting, []
        for work, refused in waiting:
            self._when_open(work, refused)

    def _open_table(self) -> None:
        self._table = self._open_logs(self.path)
        self._files.sync_directory(self._node_path)
        self._note_made()

    def _begin(self, commits: Worker) -> None:
        assert self._table is not None
        look_ups, upkeep = self._new_worker(), self._new_worker()
        self._store = LogsStore(
            self._node_id, self._table, commits, look_ups, upkeep, self._free_bytes
        )
        self._storing = Storing(self._store, self._missed, self._now_us)
        self._storing.start()

    def _missed(self, log: LogId, lsn: Lsn) -> None:
        self.missed(log, lsn)

    def _cannot_open(self, error: Exception) -> None:
        logger.error("the copies at %s cannot be opened: %s", self.path, error)
        self._refusal = Refused(Trouble.DISABLED, f"its copies cannot be opened: {error}")
