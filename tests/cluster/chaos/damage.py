"""The faults of a bad network: flips, cuts, delays, loses, doubles and swaps them."""

from __future__ import annotations

import random
from enum import StrEnum

DELAY_S_MAX = 0.2


class Damage(StrEnum):
    FLIP = "flip"  # one bit
    CUT = "cut"  # the connection ends in the middle
    DELAY = "delay"
    LOSE = "lose"  # a piece does not come, and the connection goes on
    DOUBLE = "double"  # a piece comes twice
    SWAP = "swap"  # two pieces change places


class Damager:
    """Damages a share of the chunks that pass, while `rate` is above 0."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.kinds: tuple[Damage, ...] = tuple(Damage)
        self.rate = 0.0
        self.counts = dict.fromkeys(Damage, 0)

    def choose(self) -> Damage | None:
        """Return what happens to the next chunk; None: it passes as it is."""
        if not self.rate or self._random.random() >= self.rate:
            return None
        kind = self._random.choice(self.kinds)
        self.counts[kind] += 1
        return kind

    def delay_s(self) -> float:
        return self._random.uniform(0, DELAY_S_MAX)

    def damaged(self, data: bytes, kind: Damage) -> bytes:
        """Return the bytes as they arrive."""
        choose = self._random.randrange
        first, last = sorted(choose(len(data) + 1) for _ in range(2))
        piece = data[first:last]
        match kind:
            case Damage.FLIP:
                flipped = bytearray(data)
                flipped[choose(len(data))] ^= 1 << choose(8)
                return bytes(flipped)
            case Damage.CUT:
                return data[:first]
            case Damage.LOSE:
                return data[:first] + data[last:]
            case Damage.DOUBLE:
                return data[:last] + piece + data[last:]
            case Damage.SWAP:
                return piece + data[:first] + data[last:]
        return data
