"""The hash of keys: the same for one key and for a column of them."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from loomlog.columns.key_shards import shard_of_key, shards_of

KEYS = st.lists(st.none() | st.binary(max_size=40) | st.binary(max_size=600), max_size=20)


@given(KEYS, st.integers(1, 1024), st.integers(0, 5))
@example([b"", None, b"12345678", b"123456789", b"x" * 256, b"x" * 257, b"\xff" * 1000], 16, 0)
def test_a_column_and_its_keys_agree(keys: list[bytes | None], shards: int, skip: int) -> None:
    column = pa.array(keys, pa.binary()).slice(skip)
    positions = pa.array(range(100, 100 + len(column)), pa.int64())
    found = shards_of(column, positions, shards).tolist()
    assert found == [
        position % shards if key is None else shard_of_key(key, shards)
        for position, key in zip(positions.to_pylist(), keys[skip:], strict=True)
    ]


@given(st.integers(0, 300), st.integers(1, 9), st.integers(1, 1024), st.integers(0, 3))
def test_keys_of_one_size_and_their_column_agree(
    size: int, count: int, shards: int, skip: int
) -> None:
    keys = [bytes((number * 31 + at) % 256 for at in range(size)) for number in range(count + skip)]
    column = pa.array(keys, pa.binary()).slice(skip)
    found = shards_of(column, range(count), shards).tolist()
    assert found == [shard_of_key(key, shards) for key in keys[skip:]]


def test_keys_stay_where_they_are_in_every_release() -> None:
    """The numbers below are a contract: members of two releases may share a group."""
    keys = (b"", b"a", b"customer-7", b"a key of more than eight bytes")
    assert [shard_of_key(key, 16) for key in keys] == [0, 8, 2, 12]


def test_similar_keys_are_spread_evenly() -> None:
    for text in (b"%d", b"customer-%d", b"%016d"):
        keys = pa.array([text % number for number in range(16_000)], pa.binary())
        counts = Counter(shards_of(keys, range(16_000), 16).tolist())
        assert max(counts.values()) < 1150
        assert min(counts.values()) > 850
