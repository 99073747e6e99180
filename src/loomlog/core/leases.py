"""Decide how long a lease is still held, and when another holder may acquire it. Pure.

Only the epoch fences older holders: it is durable and grows with every holder. Time merely decides
when another holder may follow.
"""

from __future__ import annotations

from typing import Final, NamedTuple

EPOCHS_SKIPPED: Final = 1_000_000  # by a catch-up, for holders that the restored metadata lacks


class LeaseStanding(NamedTuple):
    """A lease at one moment. Times are on the clock of the server that keeps it."""

    holder: str  # "": nobody
    ttl_s: float
    renewed_s: float
    now_s: float

    @property
    def left_s(self) -> float:
        return max(0.0, self.renewed_s + self.ttl_s - self.now_s) if self.holder else 0.0

    def can_be_acquired_by(self, holder: str) -> bool:
        """Return whether the lease is free, expired, or held by `holder` itself, which then gets a
        new epoch."""
        return self.holder in ("", holder) or not self.left_s


def next_epoch(epoch: int, lost_epochs: int) -> int:
    """Return the epoch of the next holder: above all that were ever used, including those of lost
    metadata."""
    return max(epoch, lost_epochs) + 1


def was_restored_between(earlier: int, later: int) -> bool:
    """Return whether metadata was restored from a copy, and brought up to date, between two epochs
    of a lease."""
    return earlier // EPOCHS_SKIPPED < later // EPOCHS_SKIPPED
