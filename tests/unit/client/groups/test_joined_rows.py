"""Small batches that are searched together give the same entries as one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomlog import batch, columns
from loomlog.client.groups.fetcher import PieceFetcher
from loomlog.client.groups.joined_rows import JoinedRows, ready_rows
from loomlog.client.subscribe.pieces import Piece, Shown
from loomlog.errors import Corrupt, LoomError
from loomlog.types import Gap

Record: TypeAlias = tuple[bytes | None, bytes, bytes | None, int]
RECORDS = st.tuples(
    st.none() | st.binary(max_size=20),
    st.binary(max_size=10),
    st.none() | st.just(columns.encode_headers({"trace": b"1"})),
    st.integers(0, 100),
)


def piece(records: list[Record], first: int) -> Piece:
    keys, values, headers, times = zip(*records, strict=True)
    buffer = columns.encode(values, keys=keys, headers=headers, timestamps_us=times)
    batch.assign_place(buffer, stream_id=first % 3 + 1, epoch=1, first=first)
    batch.assign_llsn(buffer, stream_id=first % 3 + 1, epoch=1, first_llsn=first // 2 + 1)
    return Piece(columns.decode(buffer), 0, len(records))


@given(st.lists(st.lists(RECORDS, min_size=1, max_size=4), min_size=1, max_size=6), st.data())
def test_joined_rows_are_those_of_the_pieces(
    batches: list[list[Record]], data: st.DataObject
) -> None:
    pieces, first = [], 1
    for records in batches:
        whole = piece(records, first)
        skip = data.draw(st.integers(0, len(records) - 1))
        rows = data.draw(st.integers(1, len(records) - skip))
        pieces.append(Piece(whole.batch, skip, rows))
        first += len(records) + data.draw(st.integers(0, 2))  # perhaps with a gap
    joined = JoinedRows(pieces)
    every = [entry for each in pieces for entry in each.entries()]
    positions, keys = joined.positions_and_keys()
    assert positions.tolist() == [entry.position for entry in every]
    found = [None] * len(every) if keys is None else keys.to_pylist()
    assert found == [entry.key for entry in every]
    wanted = sorted(data.draw(st.sets(st.integers(0, len(every) - 1), min_size=1)))
    assert list(joined.chosen(np.array(wanted))) == [every[index] for index in wanted]


class Ready:
    """Pieces that have all arrived, and errors."""

    def __init__(self, shown: Sequence[Shown | LoomError]) -> None:
        self._shown = deque(shown)

    async def next(self) -> Shown | None:
        return self.next_ready()

    def next_ready(self) -> Shown | None:
        found = self._shown.popleft() if self._shown else None
        if isinstance(found, LoomError):
            raise found
        return found

    def close(self) -> None: ...


def test_large_batches_are_searched_alone_and_in_order() -> None:
    def rows(count: int, first: int) -> Piece:
        return piece([(b"k", b"v", None, 0)] * count, first)

    async def searched() -> list[tuple[int, int]]:
        shown: list[Shown] = [rows(2, 1), Gap(3, 4, "hole"), rows(1, 5)]
        shown += [rows(1000, 6), rows(3, 1006)]
        reader = PieceFetcher(lambda start: Ready(shown), asyncio.Event())
        reader.begin(1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = []
        while (ready := ready_rows(reader)) is not None:
            positions, _ = ready.positions_and_keys()
            found.append((int(positions[0]), len(positions)))
        reader.close()
        return found

    assert asyncio.run(searched()) == [(1, 3), (6, 1000), (1006, 3)]


def test_a_closed_reader_forgets_what_was_put_back() -> None:
    async def after_close() -> object:
        reader = PieceFetcher(lambda start: Ready([]), asyncio.Event())
        reader.put_back(piece([(b"k", b"v", None, 0)], 1))
        reader.close()
        return reader.ready()

    assert asyncio.run(after_close()) is None


def test_an_error_comes_after_the_rows_before_it() -> None:
    async def searched() -> int:
        rows = [piece([(b"k", b"v", None, 0)] * 2, first) for first in (1, 3)]
        reader = PieceFetcher(lambda start: Ready([*rows, Corrupt("damaged")]), asyncio.Event())
        reader.begin(1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = ready_rows(reader)
        assert found is not None
        with pytest.raises(Corrupt, match="damaged"):
            ready_rows(reader)
        reader.close()
        return len(found.positions_and_keys()[0])

    assert asyncio.run(searched()) == 4
