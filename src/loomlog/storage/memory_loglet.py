"""A loglet that is nothing but a list: protocol "memory", for tests and notebooks.

The shortest way to read what core/loglet.py asks of a protocol. It lives as long as its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from loomlog.core.loglet import Tail
from loomlog.errors import InvalidArgument, NotYetWritten, Sealed, Trimmed
from loomlog.types import Buffer, Entry, Glsn


class MemoryLoglet:
    """Positions from `start` on, without gaps."""

    def __init__(self, start: Glsn = 1, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._head = start  # the first position kept
        self._entries: list[Entry] = []
        self._sealed = False

    @property
    def _end(self) -> Glsn:
        return self._head + len(self._entries)

    async def append(self, values: Sequence[Buffer]) -> Glsn:
        if self._sealed:
            raise Sealed(f"this loglet is sealed at {self._end - 1}: append to its successor")
        first, now_us = self._end, int(self._clock() * 1_000_000)
        self._entries += [
            Entry(position, 1, position, now_us, None, bytes(value))
            for position, value in enumerate(values, first)
        ]
        return first

    async def read(self, position: Glsn) -> Entry:
        if position < self._head:
            raise Trimmed(f"position {position} was trimmed; the first one kept is {self._head}")
        if position >= self._end:
            raise NotYetWritten(f"position {position} is not written; the last is {self._end - 1}")
        return self._entries[position - self._head]

    async def tail(self) -> Tail:
        return Tail(self._end - 1, self._sealed)

    async def trim(self, position: Glsn) -> None:
        if position >= self._end:
            raise InvalidArgument(f"{position} is above the tail {self._end - 1}")
        del self._entries[: max(0, position + 1 - self._head)]
        self._head = max(self._head, position + 1)

    async def seal(self) -> Glsn:
        self._sealed = True
        return self._end - 1
