"""The header and the integrity of a batch: what every server relies on."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from loomlog import batch
from loomlog.errors import Corrupt, InvalidArgument, VersionMismatch
from loomlog.limits import ALIGNMENT, BATCH_BYTES_MAX, BATCH_RECORDS_MAX

GOLDEN = Path(__file__).parent / "golden" / "batch-header-v1.hex"


def make(body: bytes = b"body", *, count: int = 3, sequence: int = 9) -> bytearray:
    return batch.build(
        body,
        codec=batch.CODEC_NONE,
        flags=batch.FLAG_KEYS,
        count=count,
        raw_size=len(body),
        producer_id=0x1122334455667788,
        sequence=sequence,
        min_timestamp_us=-5,
        max_timestamp_us=1_700_000_000_000_000,
    )


def forge(buffer: bytearray, offset: int, layout: str, value: int) -> bytearray:
    """A header whose CRC is right and whose content is not: a writer's bug, or malice."""
    struct.pack_into("<" + layout, buffer, offset, value)
    struct.pack_into("<I", buffer, 124, crc32c(memoryview(buffer)[:124]))
    return buffer


def test_a_batch_says_what_was_put_into_it() -> None:
    built = make(b"x" * 100)

    header = batch.check(built)

    assert header == batch.Header(
        codec=0,
        flags=batch.FLAG_KEYS,
        size=256,
        count=3,
        body_size=100,
        raw_size=100,
        body_crc=crc32c(bytes(built[128:])),
        producer_id=0x1122334455667788,
        sequence=9,
        min_timestamp_us=-5,
        max_timestamp_us=1_700_000_000_000_000,
        first_position=0,
        first_llsn=0,
        stream_id=0,
        epoch=0,
    )
    assert built[128:228] == b"x" * 100
    assert built[228:] == bytes(28)


def test_the_bytes_of_version_1_never_change() -> None:
    built = make()
    before = batch.read_header(built)
    batch.assign_llsn(built, stream_id=7, epoch=3, first_llsn=41)
    assert batch.with_llsn(before, 7, 3, 41) == batch.read_header(built)
    batch.assign_position(built, 1001)
    assert built.hex(" ", 16).split(" ") == GOLDEN.read_text().split()


@given(st.binary(max_size=300))
def test_every_size_is_padded_to_the_alignment(body: bytes) -> None:
    built = make(body)
    assert len(built) % ALIGNMENT == 0
    assert len(built) - batch.HEADER_BYTES - len(body) < ALIGNMENT
    assert batch.check(built).body_size == len(body)


def test_without_numbers_there_is_no_last_number() -> None:
    header = batch.check(make())
    assert (header.last_llsn, header.last_position) == (0, 0)


def test_servers_fill_in_places_and_touch_nothing_else() -> None:
    before = make()
    after = bytearray(before)

    batch.assign_llsn(after, stream_id=7, epoch=3, first_llsn=41)
    header = batch.check(after)
    assert (header.stream_id, header.epoch, header.first_llsn, header.last_llsn) == (7, 3, 41, 43)
    assert header.first_position == 0

    batch.assign_position(memoryview(after), 1001)
    header = batch.check(after)
    assert (header.first_position, header.last_position) == (1001, 1003)
    assert (header.stream_id, header.epoch, header.first_llsn) == (7, 3, 41)

    assert header._replace(stream_id=0, epoch=0, first_llsn=0, first_position=0) == batch.check(
        before
    )
    assert after[batch.HEADER_BYTES :] == before[batch.HEADER_BYTES :]


def test_a_place_is_both_at_once() -> None:
    one_by_one, at_once = make(), make()
    batch.assign_llsn(one_by_one, stream_id=7, epoch=3, first_llsn=41)
    batch.assign_position(one_by_one, 41)
    batch.assign_place(at_once, stream_id=7, epoch=3, first=41)
    assert at_once == one_by_one


# ---- damage -----------------------------------------------------------------------


def test_every_flipped_bit_is_noticed() -> None:
    built = make()
    for bit in range(len(built) * 8):
        built[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            batch.check(built)
        with pytest.raises(Corrupt):
            batch.split(built)
        built[bit // 8] ^= 1 << bit % 8
    batch.check(built)


def test_every_truncation_is_noticed() -> None:
    built = make()
    for size in range(len(built)):
        with pytest.raises(Corrupt):
            batch.check(built[:size])
        if size:
            with pytest.raises(Corrupt):
                batch.split(built[:size])


def test_bytes_too_many_are_noticed() -> None:
    with pytest.raises(Corrupt):
        batch.check(make() + bytes(64))


@given(st.binary(max_size=400))
def test_random_bytes_are_no_batch(noise: bytes) -> None:
    with pytest.raises(Corrupt):
        batch.check(noise)


@given(st.binary(min_size=124, max_size=124), st.binary(max_size=128))
def test_a_random_header_with_a_right_checksum_is_refused_too(noise: bytes, rest: bytes) -> None:
    forged = b"LMB1" + noise[4:]
    forged += struct.pack("<I", crc32c(forged)) + rest
    with pytest.raises((Corrupt, VersionMismatch)):
        batch.check(forged)


def test_another_version_is_told_apart_from_damage() -> None:
    with pytest.raises(VersionMismatch, match="version 2"):
        batch.check(forge(make(), 4, "B", 2))


@pytest.mark.parametrize(
    ("field", "offset", "layout", "value"),
    [
        ("unknown codec", 5, "B", 3),
        ("unknown flag", 6, "H", 8),
        ("a reference with keys", 6, "H", 5),
        ("size below the header", 8, "I", 64),
        ("size not aligned", 8, "I", 193),
        ("size above the limit", 8, "I", BATCH_BYTES_MAX + 64),
        ("no records", 12, "I", 0),
        ("too many records", 12, "I", BATCH_RECORDS_MAX + 1),
        ("body beyond the batch", 16, "I", 65),
        ("body of almost 4 GiB", 16, "I", 0xFFFFFFFF),
        ("raw size of a plain body", 20, "I", 5),
        ("timestamps the wrong way round", 48, "q", 1 << 62),
        ("positions beyond int64", 64, "Q", (1 << 63) - 1),
        ("LLSNs beyond int64", 72, "Q", (1 << 64) - 1),
        ("stream beyond int32", 80, "I", 1 << 31),
    ],
)
def test_a_header_that_contradicts_itself_is_corrupt(
    field: str, offset: int, layout: str, value: int
) -> None:
    with pytest.raises(Corrupt, match="contradicts"):
        batch.read_header(forge(make(), offset, layout, value))


def test_a_compressed_body_may_not_claim_to_grow_without_bound() -> None:
    built = forge(make(), 5, "B", batch.CODEC_ZSTD)
    batch.read_header(built)
    with pytest.raises(Corrupt, match="contradicts"):
        batch.read_header(forge(built, 20, "I", BATCH_BYTES_MAX + 1))


# ---- joined batches ---------------------------------------------------------------


def test_joined_batches_come_apart_without_a_copy() -> None:
    batches = [make(b"a" * size, sequence=size) for size in (0, 1, 64, 65, 1000)]
    joined = bytearray().join(batches)

    parts = batch.split(joined)

    assert [header.sequence for header, _ in parts] == [0, 1, 64, 65, 1000]
    assert [bytes(view) for _, view in parts] == [bytes(one) for one in batches]
    assert all(view.obj is joined for _, view in parts)
    assert batch.split(b"") == []


def test_parts_of_a_joined_buffer_take_their_positions_in_place() -> None:
    joined = make(b"one") + make(b"two")
    for number, (_, view) in enumerate(batch.split(joined)):
        batch.assign_position(view, 10 + 3 * number)
    assert [header.first_position for header, _ in batch.split(joined)] == [10, 13]


def test_damage_in_a_later_batch_spoils_the_whole_buffer() -> None:
    joined = make(b"one") + make(b"two")
    joined[-1] ^= 1
    with pytest.raises(Corrupt):
        batch.split(joined)
    with pytest.raises(Corrupt, match="cut off"):
        batch.split((make(b"one") + make(b"two"))[:-1])


def test_a_header_is_read_at_an_offset_and_without_its_body() -> None:
    joined = make(sequence=1) + make(sequence=2)
    second = len(joined) // 2
    assert batch.read_header(joined, second).sequence == 2
    assert batch.read_header(joined[: second + batch.HEADER_BYTES], second).sequence == 2
    with pytest.raises(Corrupt):
        batch.read_header(joined, second + 64)
    with pytest.raises(Corrupt):
        batch.read_header(joined, len(joined))


# ---- limits -----------------------------------------------------------------------


def test_what_no_reader_would_accept_is_not_built() -> None:
    with pytest.raises(InvalidArgument, match="above the limit"):
        make(bytes(BATCH_BYTES_MAX))
    with pytest.raises(InvalidArgument):
        make(count=0)
    with pytest.raises(InvalidArgument):
        make(sequence=1 << 64)


def test_servers_do_not_load_arrow_for_it() -> None:
    program = (
        "import sys, loomlog.batch; sys.exit(len({'pyarrow', 'numpy'}.intersection(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
