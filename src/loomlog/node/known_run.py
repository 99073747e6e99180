"""The newest run of the metadata that this node knows: written to disk before it is confirmed.

A metadata repository with an older run went back in time, see core/history.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loomlog.core.history import Run, Seen
from loomlog.errors import NotLeader, RolledBack, Unavailable
from loomlog.node.workers import off_loop
from loomlog.storage import age_marks
from loomlog.storage.files import Files, Worker
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame


class KnownRun:
    """Reads the file when it is made; that blocks."""

    def __init__(self, files: Files, paths: Sequence[str], worker: Worker) -> None:
        self._files = files
        self._paths = paths
        self._worker = worker
        self._seen = age_marks.load_run(files, paths)
        self._noting = asyncio.Lock()

    def to_wire(self) -> pb.NoteRun:
        (number, run_id), revision = self._seen
        return pb.NoteRun(number=number, id=run_id, revision=revision)

    async def note(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        """Handle an order of the metadata repository."""
        order = frame.note_run
        told = Seen(Run(order.number, order.id), order.revision)
        async with self._noting:
            if told.run.number < self._seen.run.number:
                raise NotLeader(
                    f"run {self._seen.run.number} of the metadata has begun, {order.number} is over"
                )
            if told.run.number == self._seen.run.number and told.run != self._seen.run:
                raise RolledBack(f"this node knows another run {order.number} of the metadata")
            if told.run != self._seen.run or told.revision > self._seen.revision:
                await self._save(told)
                self._seen = told
        return pb.Frame(done=pb.Done())

    async def _save(self, told: Seen) -> None:
        try:
            await off_loop(self._worker, lambda: age_marks.save_run(self._files, self._paths, told))
        except OSError as error:
            raise Unavailable(f"the disk failed: {error}") from error
