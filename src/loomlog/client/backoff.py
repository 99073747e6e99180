"""How long to wait before the next attempt: exponential, bounded, with jitter."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.01  # about a round trip with a sync
LONGEST_S: Final = 0.5  # a stream that runs again is noticed within this
_DOUBLINGS_MAX: Final = 10


def delay_s(attempts: int, rng: random.Random) -> float:
    """Before attempt number `attempts` + 1; jitter keeps clients from marching in step."""
    doubled = FIRST_S * float(1 << min(attempts, _DOUBLINGS_MAX))
    return min(doubled, LONGEST_S) * (0.5 + rng.random())
