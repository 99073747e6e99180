"""Rows of publications whose staging log has lost some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from loomlog.batch import Header, read_header
from loomlog.client.subscribe.pieces import Piece, Referred, Stored
from loomlog.client.subscribe.references import WithoutReferences
from loomlog.columns import encode
from loomlog.columns.reader import decode
from loomlog.errors import DataLoss, NotFound, Trimmed
from loomlog.references import Range, Reference
from loomlog.types import Gap, Glsn, Llsn, StreamId

STAGING = "events.staged"
FIRST: Glsn = 1001  # of the log that is read


class Staging:
    """Streams of a staging log, of which some rows are lost and the first ones may be trimmed."""

    def __init__(self, lost: set[tuple[StreamId, Llsn]], trimmed: Llsn = 0) -> None:
        self.lost = lost
        self.trimmed = trimmed
        self.opened = 0

    def open(self, staging: str, stream: StreamId, first: Llsn) -> StagedPieces:
        assert staging == STAGING
        self.opened += 1
        return StagedPieces(self, stream, first)

    def has(self, stream: StreamId, llsn: Llsn) -> bool:
        return stream > 0 and llsn > self.trimmed and (stream, llsn) not in self.lost


class StagedPieces:
    """Three rows at a time, and gaps where rows are lost."""

    def __init__(self, staging: Staging, stream: StreamId, first: Llsn) -> None:
        self._staging = staging
        self._stream = stream
        self._at = first

    async def next(self) -> Stored:
        await asyncio.sleep(0)
        if self._stream == 0:
            raise NotFound("there is no such stream")
        if self._at <= self._staging.trimmed:
            raise Trimmed("it was trimmed")
        first, is_there = self._at, self._has(self._at)
        rows = next(n for n in range(1, 4) if n == 3 or self._has(first + n) != is_there)
        self._at += rows
        if not is_there:
            return Gap(first, first + rows - 1, "dataloss")
        return piece([self.value(first + n) for n in range(rows)], first)

    def next_ready(self) -> Stored | None:
        return None

    def close(self) -> None:
        pass

    def value(self, llsn: Llsn) -> bytes:
        return value_of(self._stream, llsn)

    def _has(self, llsn: Llsn) -> bool:
        return self._staging.has(self._stream, llsn)


def value_of(stream: StreamId, llsn: Llsn) -> bytes:
    return b"%d:%d" % (stream, llsn)


def piece(values: list[bytes], first_llsn: Llsn) -> Piece:
    content = bytes(encode(values, timestamps_us=1))
    header = read_header(content)._replace(first_llsn=first_llsn, first_position=first_llsn)
    return Piece(decode(content, header), 0, len(values))


class Published:
    """Pieces with one reference, at FIRST."""

    def __init__(self, ranges: tuple[Range, ...], skip: int) -> None:
        reference = Reference(STAGING, "w", 1, 1, ranges)
        header: Header = piece([b""], 1).header._replace(
            first_position=FIRST, first_llsn=7, stream_id=9, count=reference.rows
        )
        self._piece: Stored | None = Referred(header, reference, skip, reference.rows - skip)

    async def next(self) -> Stored | None:
        return self.next_ready()

    def next_ready(self) -> Stored | None:
        found, self._piece = self._piece, None
        return found

    def close(self) -> None:
        self._piece = None


def reader(
    staging: Staging, *ranges: Range, skip: int = 0, gaps: bool = True, head: Glsn = 1
) -> WithoutReferences:
    async def first_kept() -> Glsn:
        return head

    return WithoutReferences(Published(ranges, skip), "events", first_kept, staging.open, gaps=gaps)


async def seen(pieces: WithoutReferences) -> dict[Glsn, bytes | None]:
    """Return what is at each position; None: it is lost."""
    found: dict[Glsn, bytes | None] = {}
    while (item := await pieces.next()) is not None:
        if isinstance(item, Gap):
            assert (item.kind, item.exact) == ("dataloss", True)
            found.update(dict.fromkeys(range(item.first, item.last + 1)))
        else:
            found.update((entry.position, entry.value) for entry in item.entries())
    return found


def expected(
    staging: Staging, ranges: tuple[Range, ...], skip: int = 0
) -> Iterator[tuple[Glsn, bytes | None]]:
    rows = [(part.stream, llsn) for part in ranges for llsn in range(part.first, part.end)]
    for index, (stream, llsn) in enumerate(rows):
        if index >= skip:
            value = value_of(stream, llsn) if staging.has(stream, llsn) else None
            yield FIRST + index, value


@pytest.mark.parametrize("seed", range(200))
async def test_exactly_the_rows_are_lost_that_the_staging_log_lost(seed: int) -> None:
    random = Random(seed)
    ranges = tuple(
        Range(random.randint(0 if seed % 5 == 0 else 1, 2), random.randint(1, 30), rows)
        for rows in (random.randint(1, 12) for _ in range(random.randint(1, 6)))
    )
    every = [(stream, llsn) for stream in (1, 2) for llsn in range(1, 50)]
    share = random.choice((0.0, 0.1, 0.5, 1.0))
    lost = {row for row in every if random.random() < share}
    staging = Staging(lost, random.choice((0, 0, 8, 20)))
    skip = random.randrange(sum(part.rows for part in ranges))
    found = await seen(reader(staging, *ranges, skip=skip))
    assert found == dict(expected(staging, ranges, skip))


async def test_without_gaps_the_error_says_where_to_continue_in_the_log_that_is_read() -> None:
    ranges = (Range(1, 1, 4), Range(2, 1, 4))
    staging = Staging({(1, 3), (1, 4)})
    pieces = reader(staging, *ranges, gaps=False)
    first = await pieces.next()
    assert isinstance(first, Piece)
    assert first.last_position == FIRST + 1
    with pytest.raises(
        DataLoss,
        match=r"^positions 1003 to 1004 of log 'events' are rows of log 'events.staged' \(stream 1,"
        r" LLSN 3 to 4\) that are gone: continue at 1005, or ask for gaps, too \(gaps=True, ",
    ):
        await pieces.next()
    rest = reader(staging, *ranges, gaps=False, skip=4)
    assert await seen(rest) == dict(expected(staging, ranges, 4))


async def test_rows_that_were_trimmed_with_their_reference_are_trimmed() -> None:
    pieces = reader(Staging(set(), trimmed=9), Range(1, 1, 4), head=FIRST + 1)
    with pytest.raises(Trimmed, match="position 1001 of log 'events' was trimmed while"):
        await pieces.next()


async def test_what_is_trimmed_of_many_rows_is_found_with_few_questions() -> None:
    staging = Staging(set(), trimmed=70_000)
    pieces = reader(staging, Range(1, 1, 100_000))
    assert await pieces.next() == Gap(FIRST, FIRST + 69_999, "dataloss")
    assert staging.opened < 20
