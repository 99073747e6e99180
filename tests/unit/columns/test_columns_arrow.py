"""Batches as Arrow, and Arrow as batches."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from columns_rig import HEADERS, NOW_US, RICH_ENTRIES, placed, rich_batch
from hypothesis import given
from hypothesis import strategies as st

from loomlog import columns
from loomlog.errors import InvalidArgument


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
    assert list(columns.decode(again).entries()) == RICH_ENTRIES


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
    entries = list(columns.decode(columns.encode_arrow(records)).entries())
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
