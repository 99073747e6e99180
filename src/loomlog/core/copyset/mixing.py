"""Numbers that look random and are the same for everybody, for choices all make alike. Pure."""

from __future__ import annotations

from typing import Final

_BITS: Final = (1 << 64) - 1


def mixed(*numbers: int) -> int:
    """64 bits that depend on all of `numbers` and on their order (rounds of splitmix64)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _BITS)) + 0x9E3779B97F4A7C15 & _BITS
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _BITS
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _BITS
        state ^= state >> 31
    return state
