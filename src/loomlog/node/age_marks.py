"""The marks that a node keeps on its volumes to recognise outdated copies: the generations of its
data (metadata/nodes/registration.py), and the newest run of the metadata that it knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from loomlog.core.generation import NO_GENERATION, Generation, life_goes_on
from loomlog.core.history import Run, Seen
from loomlog.errors import NotLeader, RolledBack, Unavailable
from loomlog.node.workers import off_loop
from loomlog.storage import age_marks
from loomlog.storage.files import Files, Worker
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame

logger = logging.getLogger(__name__)

GROW_S: Final = 10.0  # a copy of the data that is younger than this may go unnoticed


class Generations:
    """The generations of the data on this node's volumes, by which the metadata repository
    recognises older copies. A volume that was left out for a while falls behind the others, but
    does not count as an older copy.

    The constructor begins a new generation of each volume, which blocks."""

    def __init__(self, files: Files, paths: Sequence[str], worker: Worker) -> None:
        self._files = files
        self._worker = worker
        marks = {path: age_marks.load_generation(files, path) for path in paths}
        self._stamps = {path: age_marks.stamp_of_origin(files, path) for path in paths}
        # Whether no writes can have been lost: the node was stopped, or only its process killed.
        self.is_clean = life_goes_on((marks[path], self._stamps[path]) for path in paths)
        self._is_known = self.is_clean  # or the metadata repository knows that they may be
        is_new_node = all(mark == NO_GENERATION for mark in marks.values())
        # A volume whose mark is unreadable may be an older copy; reporting generation 1 makes it
        # count as one. Such a volume, and a new one, get the generation of the registration.
        self._stored = {path: int(mark is None) for path, mark in marks.items()}
        self._next = {
            path: mark.number + 1
            for path, mark in marks.items()
            if mark is not None and (mark.number or is_new_node)
        }
        self._take(self._save(self._next))

    @property
    def numbers(self) -> list[int]:
        """The stored generation of each volume. It is 0 while the disk is full, which does not
        indicate an older copy, and 1 if the last one is unreadable, which does."""
        return list(self._stored.values())

    def registered(self, number: int) -> None:
        """Continue from a generation that the metadata repository knows. It now also knows if a new
        life began; the next start need not report that again. Blocking."""
        behind = [path for path in self._stored if number >= self._next.get(path, 1)]
        wanted = dict.fromkeys(behind, number)
        if not self._is_known:
            self._is_known = True
            wanted = {path: n for path, n in self._stored.items() if n} | wanted
        self._take(self._save(wanted))

    def close(self) -> None:
        """Record that everything is written, and that no writes follow. Blocking."""
        for path, number in self._stored.items():
            if number:
                self._save_one(path, Generation(number, clean=True))

    def end_life(self) -> None:
        """Record that another process has the data of this node, perhaps newer: the next start
        begins a new life. Blocking."""
        for path, number in self._stored.items():
            if number:
                self._save_one(path, Generation(number))

    async def grow(self, written: Callable[[], int]) -> None:
        """Begin a new generation every few seconds while data is written. Runs forever."""
        before = -1
        while True:
            await asyncio.sleep(GROW_S)
            if (now := written()) == before or not self._next:
                continue
            wanted = dict.fromkeys(self._next, max(self._next.values()))
            saved = await off_loop(self._worker, partial(self._save, wanted))
            self._take(saved)
            before = now if saved == wanted else -1

    def _save(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Store generations. Return those that could be stored."""
        return {
            path: number
            for path, number in wanted.items()
            if self._save_one(path, Generation(number, stamp=self._stamp(path)))
        }

    def _stamp(self, path: str) -> str:
        return self._stamps[path] if self._is_known else ""

    def _save_one(self, path: str, generation: Generation) -> bool:
        try:
            age_marks.save_generation(self._files, path, generation)
        except OSError as error:
            logger.warning("the generation of %s cannot be kept now: %s", path, error)
            return False
        return True

    def _take(self, saved: Mapping[str, int]) -> None:
        for path, number in saved.items():
            self._stored[path] = max(number, self._stored[path])
            self._next[path] = max(number + 1, self._next.get(path, 0))


class KnownRun:
    """The newest run of the metadata that this node knows, written to disk before it is confirmed.
    A metadata repository with an older run has outdated metadata (core/history.py).

    The constructor reads the files, which blocks."""

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
