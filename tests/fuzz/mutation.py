"""Changes bytes at random, all from one seed: what a fuzzer feeds to decoders."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

_NUMBERS = (0, 1, 2, 63, 64, 127, 128, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_LARGE = (1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_TEXTS = (b"{}", b"[]", b"null", b'""', b"-1", b"1e999", b"NaN", b"\xff\xfe", b"\\ud800", b"\0")
_TOKENS = (
    *(number.to_bytes(4, "little") for number in _NUMBERS),
    *(number.to_bytes(8, order) for number in (*_NUMBERS, *_LARGE) for order in ("little", "big")),
    *_TEXTS,
)
_PIECE_MAX = 64


class Mutator:
    """Makes one input of another. Most changes are single; some are many at once."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def mutate(self, data: bytes, others: Sequence[bytes]) -> bytes:
        """Return `data` changed; `others` are inputs that pieces may come from."""
        choice, changed = self.random, bytearray(data)
        rounds = 1
        while choice.random() < 0.4:
            rounds += 1
        for _ in range(rounds):
            self._change(changed, others)
        return bytes(changed)

    def _change(self, data: bytearray, others: Sequence[bytes]) -> None:
        choice = self.random
        # Heads decide most: half of all changes are near the beginning.
        size = len(data)
        at = int(size * choice.random() ** 3) if size else 0
        length = choice.randrange(1, _PIECE_MAX)
        match choice.randrange(9):
            case 0 | 1 if size:
                data[at] ^= 1 << choice.randrange(8)
            case 2 if size:
                data[at] = choice.randrange(256)
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = data[at : at + length]
            case 5:
                token = choice.choice(_TOKENS)
                data[at : at + len(token)] = token
            case 6:
                data[at:at] = choice.choice(_TOKENS)
            case 7:
                other = choice.choice(others)
                begin = choice.randrange(len(other) + 1)
                data[at : at + length] = other[begin : begin + length]
            case _:
                del data[at:]
