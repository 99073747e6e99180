"""The generation of this node's data: the metadata repository recognises older copies by it
(metadata/nodes/registration.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from loomlog.node.workers import off_loop
from loomlog.storage import age_marks
from loomlog.storage.files import Files, Worker

logger = logging.getLogger(__name__)

GROW_S: Final = 10.0  # a copy of the data that is younger than this may go unnoticed


class Generation:
    """Begins a new generation when it is made; that blocks. `number` is the one on disk. It is 0
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
        """Begin a new generation every few seconds while something is written, for ever."""
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
