"""Files that are not needed any more, removed in the background of one replica's writes.

One file a job: removing is slow, and appends go in between. In the order given, oldest first, so
that a crash leaves no hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial

from loomlog.storage.files import Finished, Step
from loomlog.storage.ordered.journal import Channel, Journal


class Removals:
    """Files to remove, in order."""

    def __init__(self, journal: Journal, channel: Channel) -> None:
        self._journal = journal
        self.channel = channel  # where the replica writes now
        self._waiting: deque[tuple[Step, Finished]] = deque()
        self._under_way = False

    def add(self, steps: Iterable[Step], done: Finished | None = None) -> None:
        """`done` when these are gone, and all that were added before."""
        self._waiting.extend((step, _ignore) for step in steps)
        if done is not None:
            self._waiting.append((_nothing, done))
        self._next()

    def _next(self) -> None:
        if self._waiting and not self._under_way:
            self._under_way = True
            step, done = self._waiting.popleft()
            self._journal.call(self.channel, [step], partial(self._removed, done))

    def _removed(self, done: Finished, error: BaseException | None) -> None:
        self._under_way = False
        self._next()
        done(error)


def _nothing() -> None:
    """Do nothing: the files are gone."""


def _ignore(error: BaseException | None) -> None:
    """The channel keeps the error; whoever is answered next gets it."""
