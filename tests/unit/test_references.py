"""References: one batch that stands for rows of another log."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from loomlog import batch, references
from loomlog.errors import Corrupt, InvalidArgument, VersionMismatch
from loomlog.limits import REFERENCE_RECORDS_MAX
from loomlog.references import Range, Reference

GOLDEN = Path(__file__).parent / "golden" / "reference-v1.hex"

SAMPLE = Reference(
    staging="events.staged",
    writer="query-é",
    sequence=300,
    needed_from=70_000,
    ranges=(Range(7, 1000, 5), Range(2, 1, 1), Range(7, 1005, 70_000), Range(7, 3, 2)),
)


def encoded(reference: Reference = SAMPLE) -> bytearray:
    return references.encode(
        reference, producer_id=0x1122334455667788, min_timestamp_us=-5, max_timestamp_us=9
    )


def around(body: bytes, *, count: int = SAMPLE.rows, sequence: int = 300) -> bytearray:
    """A sound batch around a body that need not be."""
    return batch.build(
        body,
        codec=batch.CODEC_NONE,
        flags=batch.FLAG_REFERENCE,
        count=count,
        raw_size=len(body),
        producer_id=1,
        sequence=sequence,
        min_timestamp_us=0,
        max_timestamp_us=0,
    )


ranges = st.builds(
    Range,
    st.integers(0, (1 << 31) - 1),
    st.integers(1, 1 << 62),
    st.integers(1, REFERENCE_RECORDS_MAX // 8),
)


@given(
    st.builds(
        Reference,
        st.text(max_size=20),
        st.text(max_size=20),
        st.integers(1, 1 << 60),
        st.integers(1, 1 << 60),
        st.lists(ranges, min_size=1, max_size=8).map(tuple),
    )
)
def test_a_reference_comes_back_as_it_was(reference: Reference) -> None:
    header, found = references.decode(encoded(reference))
    assert found == reference
    assert header.count == reference.rows
    assert header.sequence == reference.sequence
    assert header.flags == batch.FLAG_REFERENCE


def test_the_bytes_of_version_1_never_change() -> None:
    assert encoded().hex(" ", 16).split(" ") == GOLDEN.read_text().split()
    assert references.decode(bytes.fromhex(GOLDEN.read_text()))[1] == SAMPLE


def test_it_is_small() -> None:
    """Two tasks take turns on a stream: a thousand batches each."""
    many = tuple(Range(3, 1 + 14_000 * n, 7_000) for n in range(1_000))
    assert len(references.encode_body(SAMPLE._replace(ranges=many))) < 6_100


def test_it_may_stand_for_as_many_rows_as_a_count_can_say_and_no_more() -> None:
    most = SAMPLE._replace(ranges=(Range(1, 1, REFERENCE_RECORDS_MAX),))
    assert references.decode(encoded(most))[0].count == REFERENCE_RECORDS_MAX
    for rows in (0, REFERENCE_RECORDS_MAX + 1):
        with pytest.raises(InvalidArgument, match=f"{rows} rows"):
            encoded(SAMPLE._replace(ranges=(Range(1, 1, rows),)))


def test_a_flipped_bit_anywhere_is_found() -> None:
    whole = bytes(encoded())
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        with pytest.raises((Corrupt, VersionMismatch)):
            references.decode(damaged)


def test_a_body_that_is_cut_off_or_goes_on_is_corrupt() -> None:
    body = references.encode_body(SAMPLE)
    for size in range(len(body)):
        with pytest.raises(Corrupt):
            references.decode(around(body[:size]))
    with pytest.raises(Corrupt, match="parts end"):
        references.decode(around(body + b"\0"))


def test_another_version_is_told_apart_from_damage() -> None:
    with pytest.raises(VersionMismatch, match="version 2"):
        references.decode(around(b"\x02" + references.encode_body(SAMPLE)[1:]))


@pytest.mark.parametrize(
    "wrong", [Range(1, 0, 5), Range(1, 5, 0), Range(1 << 31, 1, 5), Range(1, (1 << 63) - 1, 5)]
)
def test_rows_that_no_stream_has_are_corrupt(wrong: Range) -> None:
    body = references.encode_body(SAMPLE._replace(ranges=(wrong,)))
    with pytest.raises(Corrupt, match="no stream has"):
        references.decode(around(body, count=5))


@pytest.mark.parametrize(("count", "sequence"), [(SAMPLE.rows + 1, 300), (SAMPLE.rows, 301)])
def test_a_header_that_says_otherwise_is_corrupt(count: int, sequence: int) -> None:
    with pytest.raises(Corrupt, match="the header says"):
        references.decode(around(references.encode_body(SAMPLE), count=count, sequence=sequence))


def test_rows_are_no_reference() -> None:
    rows = encoded()
    rows[6] = batch.FLAG_KEYS
    rows[12:16] = (1).to_bytes(4, "little")
    rows[124:128] = crc32c(bytes(rows[:124])).to_bytes(4, "little")
    with pytest.raises(Corrupt, match="no reference"):
        references.decode(rows)


@given(st.binary(max_size=200))
def test_noise_is_corrupt(noise: bytes) -> None:
    with pytest.raises((Corrupt, VersionMismatch)):
        references.decode(around(b"\x01\x00" + noise))


# ---- parts ------------------------------------------------------------------------


def rows_of(pieces: list[Range]) -> list[tuple[int, int]]:
    return [(piece.stream, n) for piece in pieces for n in range(piece.first, piece.end)]


@given(st.integers(0, 12), st.integers(0, 14))
def test_clipping_takes_the_wanted_rows_and_no_others(skip: int, rows: int) -> None:
    whole = SAMPLE._replace(ranges=(Range(1, 10, 4), Range(2, 5, 1), Range(1, 14, 7)))
    wanted = rows_of(list(whole.ranges))[skip : skip + rows]
    assert rows_of(list(whole.clipped(skip, rows))) == wanted


def test_ranges_that_touch_become_one() -> None:
    parts = [Range(1, 1, 2), Range(1, 3, 2), Range(2, 5, 1), Range(1, 5, 1), Range(1, 7, 1)]
    assert list(references.joined(parts)) == [
        Range(1, 1, 4),
        Range(2, 5, 1),
        Range(1, 5, 1),
        Range(1, 7, 1),
    ]
    assert list(references.joined([])) == []
