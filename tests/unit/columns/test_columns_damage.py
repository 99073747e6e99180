"""Damaged batches, and bytes that never were one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pyarrow as pa
import pytest
from columns_rig import CODECS, rich_batch
from hypothesis import given
from hypothesis import strategies as st

from loomlog import batch, columns
from loomlog.errors import Corrupt
from loomlog.limits import BATCH_BYTES_MAX


@pytest.mark.parametrize("compression", CODECS)
def test_every_flipped_bit_is_noticed(compression: str) -> None:
    encoded = rich_batch(compression)
    for bit in range(len(encoded) * 8):
        encoded[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            columns.decode(encoded)
        encoded[bit // 8] ^= 1 << bit % 8
    columns.decode(encoded)


@pytest.mark.parametrize("compression", CODECS)
def test_every_truncation_is_noticed(compression: str) -> None:
    encoded = rich_batch(compression)
    for size in range(len(encoded)):
        with pytest.raises(Corrupt):
            columns.decode(encoded[:size])


def sealed(
    body: bytes, *, count: int = 2, flags: int = 0, codec: int = 0, raw_size: int | None = None
) -> bytearray:
    """A batch with right checksums around a body that may be nonsense."""
    return batch.build(
        body,
        codec=codec,
        flags=flags,
        count=count,
        raw_size=len(body) if raw_size is None else raw_size,
        producer_id=0,
        sequence=0,
        min_timestamp_us=0,
        max_timestamp_us=0,
    )


def body_of(offsets: Sequence[int], data: bytes = b"abcdef") -> bytes:
    parts = [bytes(16), array("i", offsets).tobytes(), data]
    return b"".join(part.ljust(batch.aligned(len(part)), b"\0") for part in parts)


def test_a_body_made_by_hand_is_read() -> None:
    entries = list(columns.decode(sealed(body_of([0, 2, 6]))).entries())
    assert [entry.value for entry in entries] == [b"ab", b"cdef"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(64),
        body_of([1, 2, 6]),
        body_of([-1, 2, 6]),
        body_of([0, 7, 6]),
        body_of([0, -7, 6]),
        body_of([0, 2, -6]),
        body_of([0, 2, 65]),
        body_of([0, 2, 0x7FFFFFFF]),
        body_of([0, 2, 6]) + bytes(64),
        body_of([0, 2, 6])[:-64],
        body_of([0, 2, 6])[:-1],
    ],
)
def test_offsets_that_lie_are_corrupt_though_the_checksum_is_right(body: bytes) -> None:
    with pytest.raises(Corrupt):
        columns.decode(sealed(body))


def test_columns_that_are_promised_and_missing_are_corrupt() -> None:
    for flags in (batch.FLAG_KEYS, batch.FLAG_HEADERS):
        with pytest.raises(Corrupt):
            columns.decode(sealed(body_of([0, 2, 6]), flags=flags))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_body_must_have_the_size_it_claims(compression: str) -> None:
    raw = body_of([0, 2, 6])
    codec = CODECS.index(compression)
    packed = pa.compress(raw, codec=compression, asbytes=True)
    assert columns.decode(sealed(packed, codec=codec, raw_size=len(raw))).num_records == 2
    for wrong in (0, 1, len(raw) - 1, len(raw) + 1, len(raw) + 64, BATCH_BYTES_MAX):
        with pytest.raises(Corrupt):
            columns.decode(sealed(packed, codec=codec, raw_size=wrong))
    for cut in range(len(packed)):
        with pytest.raises(Corrupt):
            columns.decode(sealed(packed[:cut], codec=codec, raw_size=len(raw)))
    with pytest.raises(Corrupt):
        columns.decode(sealed(b"not compressed", codec=codec, raw_size=len(raw)))


@given(
    body=st.binary(max_size=512)
    | st.lists(st.integers(-9, 99), min_size=3, max_size=3).map(body_of)
    | st.lists(st.sampled_from([bytes(64), b"\1" + bytes(63), b"\xff" * 64]), max_size=9).map(
        b"".join
    ),
    count=st.integers(1, 20),
    flags=st.integers(0, 3),
    codec=st.integers(0, 2),
)
def test_nonsense_with_a_right_checksum_is_corrupt_or_harmless(
    body: bytes, count: int, flags: int, codec: int
) -> None:
    try:
        decoded = columns.decode(sealed(body, count=count, flags=flags, codec=codec))
    except Corrupt:
        return
    assert len(list(decoded.entries())) == decoded.to_arrow().num_rows == count
    decoded.to_arrow().validate(full=True)


@given(st.binary(max_size=400))
def test_random_bytes_are_no_batch(noise: bytes) -> None:
    with pytest.raises(Corrupt):
        columns.decode(noise)
