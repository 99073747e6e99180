"""Entries on their way to a consumer that iterates over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import length_hint
from typing import Final

from loomlog.types import Entry, Glsn

_CHUNK: Final = 200  # entries made at once: of many more the garbage collector takes notice


class Handout:
    """Entries that one consumer gets one by one, in chunks that it iterates over. Nothing is done
    for each entry: the iterator of a chunk knows how far it is, and ends where the chunk ends."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = iter(entries)
        self._chunk: list[Entry] = []
        self._left: Iterator[Entry] = iter(())
        self.reached: Glsn | None = None  # before this chunk

    def chunks(self) -> Iterator[Iterator[Entry]]:
        while chunk := list(islice(self._entries, _CHUNK)):
            self.note()
            self._chunk, self._left = chunk, iter(chunk)
            yield self._left

    def note(self) -> Glsn | None:
        """Return the position of the entry that the consumer got last; None before the first."""
        if given := self._given():
            self.reached = self._chunk[given - 1].position
        return self.reached

    def stop(self) -> None:
        """Hand out no more of them."""
        del self._chunk[self._given() :]
        self._entries = iter(())

    def _given(self) -> int:
        return len(self._chunk) - length_hint(self._left)
