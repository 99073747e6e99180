"""The body of a batch: records in, entries out."""

from __future__ import annotations

import subprocess
import sys
from array import array
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from columns_rig import CODECS, NOW_US, RICH_ENTRIES, placed, rich_batch
from hypothesis import given
from hypothesis import strategies as st

from loomlog import batch, columns
from loomlog.client.subscribe.pieces import Piece
from loomlog.client.subscribe.with_archive import Archived
from loomlog.errors import Corrupt, InvalidArgument
from loomlog.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, RECORD_BYTES_MAX
from loomlog.types import Entry

GOLDEN = Path(__file__).parents[1] / "golden"
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


# ---- the bytes --------------------------------------------------------------------


def test_the_bytes_of_version_1_never_change() -> None:
    assert placed(rich_batch()).hex(" ", 16).split(" ") == read_golden("none")


@pytest.mark.parametrize("compression", CODECS)
def test_what_version_1_wrote_can_always_be_read(compression: str) -> None:
    stored = bytes.fromhex("".join(read_golden(compression)))
    decoded = columns.decode(stored)
    assert decoded.header.codec == CODECS.index(compression)
    assert list(decoded.entries()) == RICH_ENTRIES


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
    assert list(columns.decode(shifted).entries()) == RICH_ENTRIES


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
    assert list(decoded.entries()) == expected
    assert [decoded.entry(i) for i in range(len(records))] == expected
    assert list(columns.decode(columns.encode_arrow(decoded.to_arrow())).entries()) == [
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
    entries = list(columns.decode(columns.encode(kinds, keys=kinds, timestamps_us=0)).entries())
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
    assert list(decoded.entries(2)) == RICH_ENTRIES[2:]
    assert list(decoded.entries(1, 1)) == RICH_ENTRIES[1:2]
    assert list(decoded.entries(3)) == []
    assert decoded.to_arrow(1).column("position").to_pylist() == [1002, 1003]
    assert decoded.to_arrow(1).column("value").to_pylist() == [b"", b"third" * 12]
    assert decoded.to_arrow(3).num_rows == 0
    with pytest.raises(IndexError):
        decoded.entry(3)
    with pytest.raises(IndexError):
        decoded.entry(-1)


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


def test_chosen_records_are_those_of_all_entries() -> None:
    buffer = rich_batch()
    batch.assign_place(buffer, 3, 1, 100)
    decoded = columns.decode(buffer)
    every = list(decoded.entries())
    for wanted in ([0, 1, 2], [1], [0, 2], []):
        indices = np.array(wanted, np.int64)
        assert list(decoded.chosen(indices)) == [every[index] for index in wanted]
        assert Archived(decoded.to_arrow()).chosen(indices) == [every[index] for index in wanted]
    archived, piece = Archived(decoded.to_arrow(1)), Piece(decoded, 1, 2)
    for rows in (archived, piece):
        positions, keys = rows.positions_and_keys()
        assert ([*map(int, positions)], keys.to_pylist()) == ([101, 102], [None, b""])
        assert list(rows.chosen(np.array([1]))) == every[2:]


@given(
    st.integers(0, 20), st.integers(1, 20), st.booleans(), st.lists(st.integers(0, 19), unique=True)
)
def test_chosen_records_of_one_size_are_those_of_all_entries(
    size: int, count: int, have_keys: bool, wanted: list[int]
) -> None:
    values = [bytes([number]) * size for number in range(count)]
    buffer = columns.encode(values, keys=values if have_keys else None, timestamps_us=7)
    batch.assign_place(buffer, 3, 1, 100)
    every = list(columns.decode(buffer).entries())
    for skip in (0, count // 2):
        piece = Piece(columns.decode(buffer).placed(skip, count - skip, **PLACE), 0, count - skip)
        indices = np.array(sorted(w for w in wanted if w < count - skip), np.int64)
        found = [(entry.key, entry.value) for entry in piece.chosen(indices)]
        assert found == [(every[i + skip].key, every[i + skip].value) for i in indices]


PLACE = {"position": 100, "stream": 3, "llsn": 100}


def test_choosing_records_does_not_import_pandas() -> None:
    """The import takes half a second, and a member of a group must renew its lease meanwhile."""
    program = """
import sys
import numpy as np
from loomlog import batch, columns
from loomlog.client.groups.shard_rows import ShardRows
from loomlog.client.subscribe.pieces import Piece
from loomlog.core.groups.consumption import Consumption

buffer = columns.encode([b"a", b"b"], keys=[b"k", None], timestamps_us=1, producer_id=1, sequence=1)
batch.assign_place(buffer, 1, 1, 1)
before = set(sys.modules)
consumption = Consumption("")
consumption.floors = dict.fromkeys(range(4), 0)
taken = ShardRows(Piece(columns.decode(buffer), 0, 2), 4).take(consumption, 10)
assert (len(list(taken.entries)), taken.last, taken.end) == (2, 2, 2)
print(*(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.decode().split() == []
