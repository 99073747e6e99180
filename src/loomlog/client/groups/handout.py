"""Entries that were handed to a consumer, which iterates over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import length_hint
from typing import Final

from loomlog.types import Entry, Glsn

_CHUNK: Final = 200  # entries created at once: many more would trigger garbage collections


class Handout:
    """Entries for one consumer, in chunks that it iterates over. No code runs per entry: the
    iterator of a chunk knows how far the consumer is."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = iter(entries)
        self._chunk: list[Entry] = []
        self._left: Iterator[Entry] = iter(())
        self.reached: Glsn | None = None  # as of the last `note`

    def chunks(self) -> Iterator[Iterator[Entry]]:
        while chunk := list(islice(self._entries, _CHUNK)):
            self.note()
            self._chunk, self._left = chunk, iter(chunk)
            yield self._left

    def note(self) -> Glsn | None:
        """Return the position of the entry that the consumer got last; None before the first."""
        if count := self._delivered():
            self.reached = self._chunk[count - 1].position
        return self.reached

    def stop(self) -> None:
        """Deliver no more of the entries."""
        del self._chunk[self._delivered() :]
        self._entries = iter(())

    def _delivered(self) -> int:
        """Return how many entries of this chunk the consumer has got."""
        return len(self._chunk) - length_hint(self._left)
