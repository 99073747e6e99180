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

_WORDS: Final = np.dtype("<u8")
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_MULTIPLIERS: Final = (np.uint64(_FACTORS[0]), np.uint64(_FACTORS[1]))

Numbers = npt.NDArray[np.uint64]


def shard_of_key(key: bytes, shards: int) -> int:
    """Return the shard of a key."""
    total = len(key)
    for start in range(0, len(key), _WORD):
        word = int.from_bytes(key[start : start + _WORD], "little")
        total += word * _weight(start // _WORD)
    return _mixed_one(total & _MASK) % shards


def _weight(number: int) -> int:
    """Return the factor of a word, which is odd: so no two words give the same product."""
    return _mixed_one((number + 1) * _STEP & _MASK) | 1


def _mixed_one(number: int) -> int:
    number = (number ^ number >> 30) * _FACTORS[0] & _MASK
    number = (number ^ number >> 27) * _FACTORS[1] & _MASK
    return number ^ number >> 31


_WEIGHTS: Final = np.array([_weight(number) for number in range(_WORDS_MAX)], np.uint64)


def shards_of(keys: Any, positions: Any, shards: int) -> npt.NDArray[np.int64]:
    """Return the shard of each record, given two columns; a key, or all, may be null."""
    if keys is None or keys.null_count == len(positions):
        return np.asarray(positions) % shards
    hashes = _hashes(keys)
    if shards & shards - 1:
        hashes -= hashes // np.uint64(shards) * np.uint64(shards)  # faster than numpy's remainder
    else:
        hashes &= np.uint64(shards - 1)
    numbers = hashes.view(np.int64)
    if keys.null_count:
        valid = np.unpackbits(np.frombuffer(keys.buffers()[0], np.uint8), bitorder="little")
        missing = valid[keys.offset : keys.offset + len(keys)] == 0
        numbers[missing] = np.asarray(positions)[missing] % shards
    return numbers


def _hashes(keys: Any) -> Numbers:
    _, offset_buffer, data = keys.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    lengths = offsets[1:] - offsets[:-1]
    size = int(lengths[0])
    if _WORD <= size <= _WORDS_MAX * _WORD and (lengths == size).all():
        return _mixed(_totals_of_equal_keys(data, int(offsets[0]), len(lengths), size))
    totals = lengths.astype(np.uint64)
    _add_words(totals, data, offsets, lengths.astype(np.int64))
    return _mixed(totals)


def _totals_of_equal_keys(data: Any, first: int, count: int, size: int) -> Numbers:
    """Return the weighted sums of the words of each key; all keys have the same size."""
    shape, steps = (count,), (size,)
    totals = np.full(shape, size, np.uint64)
    for number, at in enumerate(range(0, size, _WORD)):
        missing = max(0, at + _WORD - size)  # bytes of the last word, which is read further ahead
        words = np.ndarray(shape, _WORDS, data, first + at - missing, steps)
        if missing:
            words = words >> np.uint64(8 * missing)
        totals += words * _WEIGHTS[number]
    return totals


def _add_words(
    totals: Numbers, data: Any, offsets: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]
) -> None:
    """Add the weighted words of each key to its total."""
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(last - first + _WORD, np.uint8)  # a word may be read at any key
    if last > first:
        padded[: last - first] = np.frombuffer(data, np.uint8)[first:last]
    words = np.ndarray((last - first + 1,), _WORDS, padded.data, strides=(1,))
    starts = (offsets[:-1] - first).astype(np.int64)
    rows = np.arange(len(totals))
    for number in range(_WORDS_MAX):
        longer = lengths > number * _WORD
        if not longer.all():
            rows, starts, lengths = rows[longer], starts[longer], lengths[longer]
            if not len(rows):
                return
        kept = _KEPT[np.minimum(lengths - number * _WORD, _WORD)]
        totals[rows] += (words[starts + number * _WORD] & kept) * _WEIGHTS[number]
    for row, start, length in zip(rows, starts, lengths, strict=True):
        ends = np.arange(_WORDS_MAX * _WORD, length, _WORD, dtype=np.int64)
        kept = _KEPT[np.minimum(length - ends, _WORD)]
        weights = _mixed((ends // _WORD + 1).astype(np.uint64) * np.uint64(_STEP)) | np.uint64(1)
        totals[row : row + 1] += ((words[start + ends] & kept) * weights).sum(dtype=np.uint64)


def _mixed(numbers: Numbers) -> Numbers:
    """Mix the numbers in place: allocating would cost as much again."""
    shifted = numbers >> _SHIFTS[0]
    numbers ^= shifted
    numbers *= _MULTIPLIERS[0]
    np.right_shift(numbers, _SHIFTS[1], out=shifted)
    numbers ^= shifted
    numbers *= _MULTIPLIERS[1]
    np.right_shift(numbers, _SHIFTS[2], out=shifted)
    numbers ^= shifted
    return numbers
