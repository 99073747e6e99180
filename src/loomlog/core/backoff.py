"""Back-off between attempts: exponential, bounded, with optional jitter. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

LATENESS: Final = 0.2
_DOUBLINGS_MAX: Final = 30  # keeps numbers small; `max_s` bounds every delay long before


class Chance(Protocol):
    """A `random.Random`."""

    def random(self) -> float: ...


class Backoff(NamedTuple):
    """Delays that double from `first_s` up to `max_s`."""

    first_s: float
    max_s: float

    def delay_s(self, attempts: int, rng: Chance | None = None) -> float:
        """Return the delay after attempt number `attempts`, counted from 0. With `rng` it is varied
        by half, which keeps many clients from retrying in step."""
        delay_s = min(self.first_s * float(1 << min(attempts, _DOUBLINGS_MAX)), self.max_s)
        return delay_s if rng is None else delay_s * (0.5 + rng.random())

    def late_s(self, waited_s: float, rng: Chance | None = None) -> float:
        """Return the delay before checking again for something awaited for `waited_s`: a fifth of
        that, so it is noticed late by at most a fifth, within the same bounds."""
        delay_s = min(max(self.first_s, waited_s * LATENESS), self.max_s)
        return delay_s if rng is None else delay_s * (0.5 + rng.random())
