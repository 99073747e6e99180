"""Where a time begins, by halves in every chain, as far as timestamps grow with positions. Pure.

Made for trimming: what is in doubt counts as young. A position that was handed out and is not
written yet is in doubt, so in a log that goes on a chain answers for no more than its last block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from loomlog.batch import read_header
from loomlog.core.chained.block import Block
from loomlog.core.chained.messages import Ask, Fetch, Fetched, Steps
from loomlog.core.chained.outcomes import Stop, first_stop
from loomlog.core.chained.projection import Projection, Replica
from loomlog.types import Glsn

_ONE_BLOCK: Final = 1  # byte: junk has none, and comes with the block behind it


def find_time(
    projection: Projection, timestamp_us: int, first: Glsn, last: Glsn, *, ended: bool
) -> Steps[Glsn | Stop]:
    """A position from `first` to one past `last`, before which every entry is older; `ended`: what
    is not written up to `last` never will be."""
    searches = [_Search(chain[-1], first, last) for chain in projection.chains]
    while pending := [search for search in searches if search.low <= search.high]:
        requests = [Fetch(projection.epoch, search.probe, _ONE_BLOCK) for search in pending]
        answers = yield [Ask(s.tail, r) for s, r in zip(pending, requests, strict=True)]
        if (stop := first_stop(answers, Fetched)) is not None:
            return stop
        for search, answer in zip(pending, answers, strict=True):
            assert isinstance(answer, Fetched)
            search.learn(answer, timestamp_us)
    return min((last + 1, *(found for s in searches if (found := s.kept_from(ended=ended)))))


class _Search:
    """In one chain. All blocks below `low` are older, and none above `high` is of interest."""

    def __init__(self, tail: Replica, first: Glsn, last: Glsn) -> None:
        self.tail = tail
        self.low = first
        self.high = last
        self.young: Glsn = 0  # where the first block begins that is known not to be older
        self.probe = self._middle()

    def _middle(self) -> Glsn:
        return (self.low + self.high) // 2

    def learn(self, answer: Fetched, timestamp_us: int) -> None:
        block = _first_batch(answer.blocks)
        if block is None and answer.more:
            self.probe = answer.blocks[-1].end
            return
        middle = self._middle()
        if block is None or block.first > self.high:
            self.high = middle - 1
        elif read_header(block.batch).max_timestamp_us < timestamp_us:
            self.low = block.end
        else:
            self.young = max(block.first, self.low)
            self.high = min(middle, block.first) - 1
        self.probe = self._middle()

    def kept_from(self, *, ended: bool) -> Glsn:
        """0: it has nothing to say, all of it is older."""
        return self.young or (0 if ended else self.low)


def _first_batch(blocks: Sequence[Block]) -> Block | None:
    return next((block for block in blocks if not block.is_junk), None)
