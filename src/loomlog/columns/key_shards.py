"""Assigns records to the shards of a consumer group: by their keys, else by their positions.

The hash is part of the contract, since members of different releases must agree: docs/groups.md
defines it. It is computed for all keys of a batch at once, eight bytes at a time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

_WORD: Final = 8
_STEP: Final = 0x9E3779B97F4A7C15
_FACTORS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK: Final = (1 << 64) - 1
_WORDS_MAX: Final = 32  # of a key; longer keys are hashed one by one
_KEPT: Final = np.array([(1 << 8 * n) - 1 for n in range(_WORD + 1)], np.uint64)  # low n bytes

Numbers = npt.NDArray[np.uint64]


def shard_of_key(key: bytes, shards: int) -> int:
    """Return the shard of a key."""
    total = len(key)
    for start in range(0, len(key), _WORD):
        word = int.from_bytes(key[start : start + _WORD], "little")
        total += _mixed_one((word + (start // _WORD + 1) * _STEP) & _MASK)
    return _mixed_one(total & _MASK) % shards


def _mixed_one(number: int) -> int:
    number = (number ^ number >> 30) * _FACTORS[0] & _MASK
    number = (number ^ number >> 27) * _FACTORS[1] & _MASK
    return number ^ number >> 31


def shards_of(keys: Any, positions: Any, shards: int) -> npt.NDArray[np.int64]:
    """Return the shard of each record, given two columns; a key may be null."""
    count = len(positions)
    if keys.null_count == count:
        return np.asarray(positions) % shards
    numbers = (_hashes(keys) % np.uint64(shards)).astype(np.int64)
    if keys.null_count:
        missing = keys.is_null().to_numpy(zero_copy_only=False)
        numbers[missing] = np.asarray(positions)[missing] % shards
    return numbers


def _hashes(keys: Any) -> Numbers:
    _, offset_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + _WORD, np.uint8)  # padded: a word may be read at any key
    if last > first:
        data[: last - first] = np.frombuffer(data_buffer, np.uint8)[first:last]
    starts = (offsets[:-1] - first).astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    totals = lengths.astype(np.uint64)
    words = np.ndarray((last - first + 1,), np.dtype("<u8"), data.data, strides=(1,))
    _add_words(totals, words, starts, lengths)
    return _mixed(totals)


def _add_words(
    totals: Numbers, words: Any, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> None:
    """Add the mixed words of each key to its total."""
    rows = np.arange(len(totals))
    for number in range(_WORDS_MAX):
        longer = lengths > number * _WORD
        if not longer.all():
            rows, starts, lengths = rows[longer], starts[longer], lengths[longer]
            if not len(rows):
                return
        kept = _KEPT[np.minimum(lengths - number * _WORD, _WORD)]
        totals[rows] += _mixed((words[starts + number * _WORD] & kept) + _salt(number))
    for row, start, length in zip(rows, starts, lengths, strict=True):
        ends = np.arange(_WORDS_MAX * _WORD, length, _WORD, dtype=np.int64)
        kept = _KEPT[np.minimum(length - ends, _WORD)]
        salts = (ends // _WORD + 1).astype(np.uint64) * np.uint64(_STEP)
        total = _mixed((words[start + ends] & kept) + salts).sum(dtype=np.uint64)
        totals[row : row + 1] += total


def _salt(number: int) -> np.uint64:
    return np.uint64((number + 1) * _STEP & _MASK)


def _mixed(numbers: Numbers) -> Numbers:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(_FACTORS[0])
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(_FACTORS[1])
    return numbers ^ (numbers >> np.uint64(31))
