"""Marks of age that a node keeps on its volumes: the generation of its data, and the newest run of
the metadata that it knows. Older data (metadata/nodes/registration.py) and older metadata are
recognised by them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from loomlog.core.history import Run, Seen
from loomlog.errors import NotLeader, RolledBack, Unavailable
from loomlog.node.workers import off_loop
from loomlog.storage import age_marks
from loomlog.storage.files import Files, Worker
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame

logger = logging.getLogger(__name__)

GROW_S: Final = 10.0  # a copy of the data that is younger than this may go unnoticed


class Generation:
    """The generation of this node's data: the metadata repository recognises older copies by it.

    Begins a new generation when it is made; that blocks. `number` is the one on disk. It is 0
    while the disk is full or the last one is not known, which is no sign of an older copy."""

    def __init__(self, files: Files, paths: Sequence[str], worker: Worker) -> None:
        self._files = files
        self._paths = paths
        self._worker = worker
        found = age_marks.load_generation(files, paths)
        self._next = 0 if found is None else found + 1  # 0: not known until the node registers
        self.number = 0
        try:
            self.raise_to(self._next)
        except OSError as error:
            logger.warning("the generation of this node's data cannot be kept now: %s", error)

    def raise_to(self, number: int) -> None:
        """Continue from a generation that the metadata repository knows. Blocking."""
        if number >= max(self._next, 1):
            self._save(number)
            self._saved(number)

    async def grow(self, written: Callable[[], int]) -> None:
        """Begin a new generation every few seconds while something is written, forever."""
        before = -1
        while True:
            await asyncio.sleep(GROW_S)
            if (now := written()) == before or not self._next:
                continue
            number = self._next
            try:
                await off_loop(self._worker, partial(self._save, number))
            except OSError as error:
                logger.debug("the generation of this node's data cannot be kept now: %s", error)
                continue
            self._saved(number)
            before = now

    def _save(self, number: int) -> None:
        age_marks.save_generation(self._files, self._paths, number)

    def _saved(self, number: int) -> None:
        self.number, self._next = max(number, self.number), max(number + 1, self._next)


class KnownRun:
    """The newest run of the metadata that this node knows: written to disk before it is confirmed.
    A metadata repository with an older run went back in time, see core/history.py.

    Reads the file when it is made; that blocks."""

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
        announced = Seen(Run(order.number, order.id), order.revision)
        async with self._noting:
            if announced.run.number < self._seen.run.number:
                raise NotLeader(
                    f"run {self._seen.run.number} of the metadata has begun, {order.number} is over"
                )
            if announced.run.number == self._seen.run.number and announced.run != self._seen.run:
                raise RolledBack(f"this node knows another run {order.number} of the metadata")
            if announced.run != self._seen.run or announced.revision > self._seen.revision:
                await self._save(announced)
                self._seen = announced
        return pb.Frame(done=pb.Done())

    async def _save(self, run: Seen) -> None:
        try:
            await off_loop(self._worker, lambda: age_marks.save_run(self._files, self._paths, run))
        except OSError as error:
            raise Unavailable(f"the disk failed: {error}") from error
