"""Fill a newcomer from a projection in force until it may join its chain. Pure."""

from __future__ import annotations

from typing import Final

from loomlog.core.backoff import Backoff
from loomlog.core.chained.chain import Projection, Replica
from loomlog.core.chained.messages import Interrupted, Steps
from loomlog.core.chained.newcomer import Newcomer, copy, decide_below
from loomlog.core.chained.reconfigure import Goal

CATCH_UP_S: Final = 0.3  # blocks that arrive in this time are copied while appends wait
EPOCHS_MAX: Final = 5  # begun only to make that last part small enough
ATTEMPTS_MAX: Final = 8  # without progress, before another node is chosen
RETRY: Final = Backoff(0.1, 2.0)


class Admission:
    """Fills a newcomer, over as many epochs as necessary, until it may join. An interrupted copy is
    continued where it ended."""

    def __init__(self, newcomer: Newcomer) -> None:
        self.newcomer = newcomer
        self._epochs = 0
        self._has_last_part = False  # the whole or some of it
        self._attempts = 0  # that failed without progress
        self._copied_before = newcomer.copied

    def catch_up(
        self, projection: Projection, source: Replica | None = None
    ) -> Steps[Interrupted | None]:
        """Copy everything below the start of the epoch: from the tail, or from another replica in
        force. Below that start all of them have the same blocks once these are decided; above it,
        only those of the tail are."""
        decided = yield from decide_below(projection, self.newcomer.copied)
        if isinstance(decided, Interrupted):
            return decided

        def note(newcomer: Newcomer) -> None:
            # Blocks above `decided` may be copied, too, but there may be holes between them.
            self.newcomer = newcomer._replace(copied=min(newcomer.copied, decided))

        tail = projection.chains[self.newcomer.replica.chain][-1]
        is_tail = source in (None, tail) or source not in projection.replicas
        origin, last = (tail, 0) if source is None or is_tail else (source, decided - 1)
        filled = yield from copy(
            projection.epoch, origin, self.newcomer, decided, last=last, note=note
        )
        if isinstance(filled, Interrupted):
            return filled
        self.newcomer = filled._replace(copied=decided)
        return None

    def next_goal(self, took_s: float) -> Goal:
        """Return the goal of the next epoch, given how long the last `catch_up` took.

        The rest is copied while appends wait. If that would take long, the next epoch only serves
        to catch up again."""
        if took_s <= CATCH_UP_S or self._epochs == EPOCHS_MAX:
            return Goal(newcomer=self.newcomer, short=False, filling=self._fill)
        self._epochs += 1
        return Goal(short=False)

    def _fill(self) -> None:
        self._has_last_part = True

    def problem(self, life: int) -> str:
        """Return why the newcomer can no longer join, given the present life of its node; "" if it
        can."""
        crashed = self.newcomer.has_crashed(life)
        return (
            f"node {self.newcomer.replica.node_id} crashed while it was filled" if crashed else ""
        )

    def retry_delay_s(self) -> float | None:
        """Return the delay before the next attempt after a failure; None: give the newcomer up."""
        if self._has_last_part:
            return None
        has_progressed = self.newcomer.copied > self._copied_before
        self._attempts = 0 if has_progressed else self._attempts + 1
        self._copied_before = self.newcomer.copied
        return RETRY.delay_s(self._attempts) if self._attempts < ATTEMPTS_MAX else None

    def percent(self, projection: Projection) -> int:
        """Return the percentage of its chain that the newcomer has."""
        copied, whole = self.newcomer.copied - projection.first, projection.start - projection.first
        return min(100, 100 * max(0, copied) // max(1, whole))
