"""The body of a batch: records and Arrow in, entries and Arrow out."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomlog import batch, columns
from loomlog.errors import Corrupt, InvalidArgument
from loomlog.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, RECORD_BYTES_MAX
from loomlog.types import Entry

GOLDEN = Path(__file__).parents[1] / "golden"
NOW_US = 1_700_000_000_000_000
CODECS = ["none", "lz4", "zstd"]
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


HEADERS = {"trace": b"1", "naïve": b""}


def rich_batch(compression: str = "none") -> bytearray:
    """All features at once; repetitive enough to be worth compressing."""
    return columns.encode(
        [b"first" * 12, b"", b"third" * 12],
        keys=[b"k1", None, b""],
        headers=[None, columns.encode_headers(HEADERS), None],
        timestamps_us=[NOW_US, NOW_US - 7, NOW_US + 1],
        producer_id=77,
        sequence=5,
        compression=compression,
    )


RICH_ENTRIES = [
    Entry(1001, 7, 41, NOW_US, b"k1", b"first" * 12),
    Entry(1002, 7, 42, NOW_US - 7, None, b"", HEADERS),
    Entry(1003, 7, 43, NOW_US + 1, b"", b"third" * 12),
]


def placed(buffer: bytearray) -> bytearray:
    batch.assign_llsn(buffer, stream_id=7, epoch=3, first_llsn=41)
    batch.assign_position(buffer, 1001)
    return buffer


# ---- the bytes --------------------------------------------------------------------


def test_the_bytes_of_version_1_never_change() -> None:
    assert placed(rich_batch()).hex(" ", 16).split(" ") == read_golden("none")


@pytest.mark.parametrize("compression", CODECS)
def test_what_version_1_wrote_can_always_be_read(compression: str) -> None:
    stored = bytes.fromhex("".join(read_golden(compression)))
    decoded = columns.decode(stored)
    assert decoded.header.codec == CODECS.index(compression)
    assert decoded.entries() == RICH_ENTRIES


def read_golden(compression: str) -> list[str]:
    return (GOLDEN / f"batch-{compression}-v1.hex").read_text().split()


def test_the_header_sums_up_the_body() -> None:
    header = batch.check(rich_batch())
    assert (header.count, header.flags) == (3, batch.FLAG_KEYS | batch.FLAG_HEADERS)
    assert (header.producer_id, header.sequence) == (77, 5)
    assert (header.min_timestamp_us, header.max_timestamp_us) == (NOW_US - 7, NOW_US + 1)


def test_a_plain_body_is_read_where_it_lies() -> None:
    encoded = rich_batch()
    base = pa.py_buffer(encoded).address
    for column in (columns.decode(encoded).values, columns.decode(encoded).keys):
        for buffer in column.buffers()[1:]:
            assert base <= buffer.address < base + len(encoded)
            assert (buffer.address - base) % 64 == 0


def test_a_buffer_at_an_odd_address_is_read_as_well() -> None:
    shifted = memoryview(b"?" + placed(rich_batch()))[1:]
    assert columns.decode(shifted).entries() == RICH_ENTRIES


# ---- round trips ------------------------------------------------------------------


@given(
    records=st.lists(
        st.tuples(
            st.binary(max_size=200),
            st.none() | st.binary(max_size=20),
            st.dictionaries(st.text(min_size=1, max_size=5), st.binary(max_size=9), max_size=3),
            INT64,
        ),
        min_size=1,
        max_size=80,
    ),
    compression=st.sampled_from(CODECS),
)
def test_records_come_back_as_they_went_in(
    records: list[tuple[bytes, bytes | None, dict[str, bytes], int]], compression: str
) -> None:
    values, keys, headers, timestamps = map(list, zip(*records, strict=True))
    encoded = placed(
        columns.encode(
            values,
            keys=keys,
            headers=[*map(columns.encode_headers, headers)],
            timestamps_us=timestamps,
            compression=compression,
        )
    )

    decoded = columns.decode(encoded)

    expected = [
        Entry(1001 + i, 7, 41 + i, timestamp, key, value, headers)
        for i, (value, key, headers, timestamp) in enumerate(records)
    ]
    assert decoded.num_records == len(records)
    assert decoded.entries() == expected
    assert [decoded.entry(i) for i in range(len(records))] == expected
    assert columns.decode(columns.encode_arrow(decoded.to_arrow())).entries() == [
        entry._replace(position=0, stream=0, llsn=0) for entry in expected
    ]


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=50), INT64)
def test_one_time_for_all_is_the_same_as_that_time_for_each(
    values: list[bytes], timestamp_us: int
) -> None:
    each = [timestamp_us] * len(values)
    assert columns.encode(values, timestamps_us=timestamp_us) == columns.encode(
        values, timestamps_us=each
    )


def test_every_kind_of_bytes_is_a_value_and_a_key() -> None:
    kinds: list[bytes | bytearray | memoryview] = [
        b"bytes",
        bytearray(b"array"),
        memoryview(b"view"),
        memoryview(b"every other")[::2],
        memoryview(array("i", [1])),
    ]
    entries = columns.decode(columns.encode(kinds, keys=kinds, timestamps_us=0)).entries()
    expected = [bytes(kind) for kind in kinds]
    assert [entry.value for entry in entries] == expected
    assert [entry.key for entry in entries] == expected
    assert {type(entry.value) for entry in entries} == {bytes}


@pytest.mark.parametrize("value", [b"", b"x", b"alone" * 100])
@pytest.mark.parametrize("compression", CODECS)
def test_a_lone_record_has_the_bytes_that_arrow_gives_it(value: bytes, compression: str) -> None:
    def encode(given: bytes | memoryview) -> bytearray:
        return columns.encode([given], timestamps_us=NOW_US, compression=compression)

    assert encode(value) == encode(memoryview(value))  # a view goes through Arrow


def test_keys_that_are_all_missing_take_no_room() -> None:
    plain = columns.encode([b"a", b"b"], timestamps_us=1)
    assert columns.encode([b"a", b"b"], keys=[None, None], timestamps_us=1) == plain
    assert columns.decode(plain).keys is None


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_is_left_off_where_it_does_not_pay(compression: str) -> None:
    text = columns.encode([b"again and " * 99], timestamps_us=0, compression=compression)
    assert batch.check(text).codec == CODECS.index(compression)
    assert batch.check(text).size < batch.check(text).raw_size

    noise = [Random(1).randbytes(10_000)]
    assert columns.encode(noise, timestamps_us=0, compression=compression) == columns.encode(
        noise, timestamps_us=0
    )


def test_before_the_servers_had_it_a_batch_has_no_places() -> None:
    decoded = columns.decode(rich_batch())
    assert [entry[:3] for entry in decoded.entries()] == [(0, 0, 0)] * 3
    assert decoded.entry(2)[:3] == (0, 0, 0)
    assert decoded.to_arrow().column("position").to_pylist() == [0, 0, 0]
    assert decoded.to_arrow().column("llsn").to_pylist() == [0, 0, 0]


def test_a_reader_may_start_within_a_batch() -> None:
    decoded = columns.decode(placed(rich_batch()))
    assert decoded.entries(2) == RICH_ENTRIES[2:]
    assert decoded.entries(3) == []
    assert decoded.to_arrow(1).column("position").to_pylist() == [1002, 1003]
    assert decoded.to_arrow(1).column("value").to_pylist() == [b"", b"third" * 12]
    assert decoded.to_arrow(3).num_rows == 0
    with pytest.raises(IndexError):
        decoded.entry(3)
    with pytest.raises(IndexError):
        decoded.entry(-1)


# ---- Arrow ------------------------------------------------------------------------


def test_arrow_has_the_columns_of_the_schema() -> None:
    table = columns.decode(placed(rich_batch())).to_arrow()
    table.validate(full=True)
    assert table.schema == columns.SCHEMA
    assert table.schema.names == [
        *("position", "stream", "llsn", "timestamp", "key", "value", "headers")
    ]
    assert table.slice(1, 1).to_pylist() == [
        {
            "position": 1002,
            "stream": 7,
            "llsn": 42,
            "timestamp": datetime(2023, 11, 14, 22, 13, 19, 999993, tzinfo=UTC),
            "key": None,
            "value": b"",
            "headers": columns.encode_headers(HEADERS),
        }
    ]
    assert table.column("key").to_pylist() == [b"k1", None, b""]


def test_without_keys_the_key_column_is_null() -> None:
    table = columns.decode(columns.encode([b"a", b"b"], timestamps_us=1)).to_arrow()
    assert table.schema == columns.SCHEMA
    assert table.column("key").to_pylist() == [None, None]


def test_what_was_read_can_be_appended_again() -> None:
    table = columns.decode(placed(rich_batch())).to_arrow()
    again = placed(columns.encode_arrow(table))
    assert columns.decode(again).entries() == RICH_ENTRIES


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary(3),
        pa.binary_view(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
    ],
    ids=str,
)
@pytest.mark.parametrize("start", [0, 1, 3, 9])
def test_slices_of_every_binary_type_are_written_right(kind: Any, start: int) -> None:
    texts = [f"{i:03}" for i in range(20)]
    keys = [None if i % 3 == 0 else text for i, text in enumerate(texts)]
    stamps = list(range(100, 120))
    whole = pa.record_batch(
        {
            "value": pa.array([t.encode() for t in texts]).cast(kind),
            "key": pa.array([None if k is None else k.encode() for k in keys]).cast(kind),
            "timestamp": pa.array(stamps, pa.timestamp("us")),
        }
    )

    decoded = columns.decode(columns.encode_arrow(whole.slice(start, 10)))

    wanted = slice(start, start + 10)
    assert [e.value.decode() for e in decoded.entries()] == texts[wanted]
    assert [e.key.decode() if e.key else None for e in decoded.entries()] == keys[wanted]
    assert [e.timestamp_us for e in decoded.entries()] == stamps[wanted]
    assert decoded.header.min_timestamp_us == 100 + start
    assert decoded.header.max_timestamp_us == 109 + start


def test_a_column_that_nobody_could_read_back_is_refused() -> None:
    records = pa.record_batch({"value": [b"a"], "attributes": [b"b"]})
    with pytest.raises(InvalidArgument, match="a log keeps value, key, timestamp and headers"):
        columns.encode_arrow(records, timestamps_us=NOW_US)


@given(
    st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=40),
    st.integers(0, 39),
    st.integers(1, 40),
)
def test_a_slice_gives_the_same_bytes_as_a_fresh_copy(
    keys: list[bytes | None], start: int, length: int
) -> None:
    start = min(start, len(keys) - 1)
    wanted = keys[start : start + length]
    values = [key or b"" for key in keys]
    whole = pa.record_batch(
        {"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())}
    )
    assert columns.encode_arrow(whole.slice(start, length), timestamps_us=NOW_US) == columns.encode(
        [key or b"" for key in wanted], keys=wanted, timestamps_us=NOW_US
    )


@pytest.mark.parametrize(
    ("kind", "given_", "expected"),
    [
        (pa.int64(), [5, -5], [5, -5]),
        (pa.timestamp("s"), [5, -5], [5_000_000, -5_000_000]),
        (pa.timestamp("ms", tz="UTC"), [5, 6], [5_000, 6_000]),
        (pa.timestamp("us", tz="Europe/Berlin"), [5, 6], [5, 6]),
        (pa.timestamp("ns"), [5_999, 6_000], [5, 6]),
    ],
    ids=str,
)
def test_timestamps_of_every_unit_become_microseconds(
    kind: Any, given_: list[int], expected: list[int]
) -> None:
    records = pa.record_batch(
        {"value": pa.array([b"a", b"b"]), "timestamp": pa.array(given_, kind)}
    )
    entries = columns.decode(columns.encode_arrow(records)).entries()
    assert [entry.timestamp_us for entry in entries] == expected


def two(**more: Any) -> Any:
    return pa.record_batch({"value": pa.array([b"a", b"b"]), **more})


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (pa.record_batch({"value": pa.array([b"a", None])}), "1 values are null"),
        (pa.record_batch({"value": pa.array([1, 2])}), "must be binary or string, not int64"),
        (pa.record_batch({"data": pa.array([b"a"])}), "no column `value`"),
        (two(key=pa.array([1, 2])), "column key must be binary"),
        (two(timestamp=pa.array([1, None], pa.timestamp("us"))), "1 timestamps are null"),
        (two(timestamp=pa.array(["a", "b"])), "must be a timestamp, not string"),
        (two(timestamp=pa.array([1 << 60, 0], pa.timestamp("s"))), "timestamp in microseconds"),
        (two(colour=pa.array([1, 2])), "colour"),
        (
            pa.RecordBatch.from_arrays([pa.array([b"a"])] * 2, names=["value", "value"]),
            "each once",
        ),
        (two().slice(0, 0), "at least one record"),
        ([b"a"], "RecordBatch is needed, not list"),
    ],
)
def test_arrow_that_cannot_be_a_batch_is_refused(records: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        columns.encode_arrow(records, timestamps_us=NOW_US)


def test_arrow_needs_a_time_from_somewhere() -> None:
    with pytest.raises(InvalidArgument, match="timestamp"):
        columns.encode_arrow(two())


def test_arrow_with_broken_offsets_is_refused_before_it_is_read() -> None:
    offsets = pa.py_buffer(array("i", [0, 9, 3]))
    broken = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with pytest.raises(InvalidArgument, match="not valid"):
        columns.encode_arrow(pa.record_batch({"value": broken}), timestamps_us=0)


# ---- what may be appended ---------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "at least one record"),
        (["text"], "must be bytes, not str"),
        ([b"a", None], "must be bytes, not NoneType"),
        ([b"a", 1], "must be bytes, not int"),
        (b"abc", "must be bytes, not int"),
        ("abc", "must be bytes, not str"),
        ([array("b", [1])], "must be bytes, not array"),
    ],
)
def test_values_that_are_no_bytes_are_refused(values: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        columns.encode(values, timestamps_us=0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"keys": [b"a"]}, "key: 1 given for 2 values"),
        ({"keys": [b"a", "b"]}, "key must be bytes, not str"),
        ({"headers": [b"a"] * 3}, "headers: 3 given for 2 values"),
        ({"timestamps_us": [1]}, "timestamps_us: 1 given for 2 values"),
        ({"timestamps_us": [1, None]}, "timestamps_us must be"),
        ({"timestamps_us": [1, 2.5]}, "timestamps_us must be"),
        ({"timestamps_us": 1.5}, "timestamps_us must be"),
        ({"timestamps_us": 1 << 63}, "timestamps_us must be"),
        ({"timestamps_us": [0, -1 << 64]}, "timestamps_us must be"),
        ({"compression": "gzip"}, "use one of none, lz4, zstd"),
    ],
)
def test_what_goes_with_the_values_must_fit_them(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        columns.encode([b"a", b"b"], **{"timestamps_us": 0, **more})


def test_a_record_up_to_the_limit_is_taken_and_one_above_is_not() -> None:
    largest = bytes(RECORD_BYTES_MAX)
    assert batch.check(columns.encode([largest], timestamps_us=0)).size <= BATCH_BYTES_MAX
    with pytest.raises(InvalidArgument, match=r"value 1 has 16777217 bytes"):
        columns.encode([b"small", largest + b"!"], timestamps_us=0)
    with pytest.raises(InvalidArgument, match=r"key 0 has 16777217 bytes"):
        columns.encode([b"small"], keys=[largest + b"!"], timestamps_us=0)


def test_a_batch_above_the_limit_is_refused_even_if_it_would_compress() -> None:
    half = bytes(BATCH_BYTES_MAX // 2)
    with pytest.raises(InvalidArgument, match="append fewer records"):
        columns.encode([half, half], timestamps_us=0, compression="zstd")
    with pytest.raises(InvalidArgument, match="append fewer at once"):
        columns.encode([b""] * (BATCH_RECORDS_MAX + 1), timestamps_us=0)


def test_a_batch_of_the_most_records_is_taken() -> None:
    encoded = columns.encode([b"x"] * BATCH_RECORDS_MAX, timestamps_us=0)
    assert columns.decode(encoded).num_records == BATCH_RECORDS_MAX


# ---- damage -----------------------------------------------------------------------


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
    entries = columns.decode(sealed(body_of([0, 2, 6]))).entries()
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
    assert len(decoded.entries()) == decoded.to_arrow().num_rows == count
    decoded.to_arrow().validate(full=True)


@given(st.binary(max_size=400))
def test_random_bytes_are_no_batch(noise: bytes) -> None:
    with pytest.raises(Corrupt):
        columns.decode(noise)


# ---- headers


@pytest.mark.parametrize(
    "headers", [{"a": "text"}, {1: b""}, {"": b""}, {"x" * 70_000: b""}, [b"a"], {"\ud800": b""}]
)
def test_headers_that_are_none(headers: Any) -> None:
    with pytest.raises(InvalidArgument, match="headers must be a dict from short texts to bytes"):
        columns.encode_headers(headers)


def test_large_headers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="above the limit of 65536"):
        columns.encode_headers({"a": bytes(70_000)})
    assert columns.encode_headers({}) is None


@given(st.binary(max_size=30))
def test_any_bytes_are_headers_or_corrupt(data: bytes) -> None:
    try:
        headers = columns.decode_headers(data)
    except Corrupt:
        with pytest.raises(InvalidArgument, match="column headers"):
            columns.encode_arrow(
                pa.record_batch({"value": [b""], "headers": [data]}), timestamps_us=0
            )
    else:
        assert isinstance(headers, dict)
