"""Finding where the last entries of a log begin: consecutive positions, holes, bridges between
epochs."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator

import pytest

from loomlog.client.last_entries import find_last
from loomlog.types import Entry, Gap, Glsn


class Positions:
    """A log with entries at these positions, which counts how much is read."""

    def __init__(self, positions: set[Glsn]) -> None:
        self._positions = sorted(positions)
        self.reads = 0
        self.entries = 0

    async def rows(self, first: Glsn, last: Glsn) -> AsyncGenerator[Entry | Gap, None]:
        self.reads += 1
        before = first
        for position in self._positions:
            if first <= position <= last:
                if before < position:
                    yield Gap(before, position - 1, "hole")
                self.entries += 1
                yield Entry(position, 1, position, 0, None, b"")
                before = position + 1


async def test_consecutive_positions_need_one_read() -> None:
    log = Positions(set(range(1, 1001)))
    assert await find_last(10, 1, 1000, log.rows) == 991
    assert (log.reads, log.entries) == (1, 10)


async def test_a_bridge_between_epochs_is_crossed_without_reading_the_epoch_before() -> None:
    log = Positions({*range(1, 50_001), 2**32 + 1, 2**32 + 2})
    assert await find_last(10, 1, 2**32 + 2, log.rows) == 49_993
    assert log.reads < 100
    assert log.entries < 100


@pytest.mark.parametrize("count", [1, 3])
async def test_a_log_without_entries_begins_behind_its_tail(count: int) -> None:
    assert await find_last(count, 1, 0, Positions(set()).rows) == 1
    assert await find_last(count, 8, 7, Positions(set()).rows) == 8
    assert await find_last(count, 5, 9, Positions(set()).rows) == 10  # holes only


async def test_of_a_shorter_log_all_entries_are_found() -> None:
    assert await find_last(10, 3, 6, Positions({4, 6}).rows) == 4


@pytest.mark.parametrize("seed", range(50))
async def test_with_any_gaps_it_is_the_same_as_counting_back(seed: int) -> None:
    rng = random.Random(seed)
    tail = rng.choice([30, 300, 2**40])
    positions = {rng.randint(1, tail) for _ in range(rng.randint(1, 60))} | {tail}
    count = rng.randint(1, 70)
    expected = sorted(positions)[-count:][0]
    assert await find_last(count, 1, tail, Positions(positions).rows) == expected
