"""The kernel of a simulation: a virtual clock, one queue of events, one source of chance.

Everything happens in events, which run one after the other in (time, sequence number) order, so a
run is a function of its seed. Nothing here may use real time, real randomness, or an order that
depends on `id()` or hash randomisation. `World` knows no process, network or disk; these schedule
events here and `note` their actions, which determine the fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from struct import Struct

INSTANT_EVENTS_MAX = 100_000  # events without time moving on: a loop that never waits
STEPS_MAX = 20_000_000  # a bound on any run, so that a livelock ends as an error

_STAMP = Struct("<dI")

Trace = Callable[[str], None]


class SimulationError(Exception):
    """A simulation failed; the message names the seed and the virtual time."""


class Stalled(SimulationError):  # noqa: N818 - it says what happened
    """Nothing is scheduled, but the simulation has not ended."""


class Overdue(SimulationError):  # noqa: N818
    """The condition was not met within the allowed virtual time."""


class Runaway(SimulationError):  # noqa: N818
    """The simulation took too many steps: a task spins."""


class Failed(SimulationError):  # noqa: N818
    """A simulated process raised an unhandled exception (see `__cause__`)."""


class World:
    """Virtual time and the queue of events."""

    def __init__(self, seed: int, *, trace: Trace | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0.0
        self.steps = 0  # events and callbacks run so far
        self._queue: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._sequence = 0
        self._failure: Failed | None = None
        self._failure_raised = False
        self._trace = trace
        self._digest = hashlib.blake2b(digest_size=8)

    def at(self, when: float, callback: Callable[..., object], *args: object) -> None:
        """Run `callback(*args)` at virtual time `when`, or now if that has passed."""
        self._sequence += 1
        heappush(self._queue, (max(when, self.now), self._sequence, callback, args))

    def after(self, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        self.at(self.now + delay_s, callback, *args)

    def chance(self, probability: float) -> bool:
        return probability > 0.0 and self.random.random() < probability

    def note(self, who: str, what: str, *details: object) -> None:
        """Add an event to the trace. Details must have the same text in every run."""
        self._digest.update(repr((self.now, who, what, details)).encode())
        if self._trace is not None:
            self._trace(f"{self.now:12.6f} {who:<10} {what} {' '.join(map(str, details))}".rstrip())

    @property
    def traced(self) -> bool:
        return self._trace is not None

    def tell(self, who: str, text: str) -> None:
        """Add a remark to the trace for people; it is not part of the run."""
        if self._trace is not None:
            self._trace(f"{self.now:12.6f} {who:<10} {text}")

    def stamp(self, who: bytes, count: int) -> None:
        """Add a value to the fingerprint, but not to the trace."""
        self._digest.update(_STAMP.pack(self.now, count) + who)

    @property
    def fingerprint(self) -> str:
        """A value that is equal for two runs with the same events at the same times."""
        return self._digest.hexdigest()

    def fail(self, who: str, message: str, cause: BaseException | None) -> None:
        """End the run with an error; the first one counts."""
        if self._failure is None:
            self._failure = Failed(self._located(f"{who}: {message}"))
            self._failure.__cause__ = cause

    def raise_failure(self, *, again: bool = True) -> None:
        """Raise the error given to `fail`, if any; unless `again`, only once."""
        if self._failure is not None and (again or not self._failure_raised):
            self._failure_raised = True
            raise self._failure

    def clear(self) -> None:
        """Drop all scheduled events."""
        self._queue.clear()

    def run(
        self,
        until: float | Callable[[], bool],
        *,
        timeout_s: float = 3600.0,
        steps_max: int = STEPS_MAX,
    ) -> None:
        """Run to a virtual time, or until a condition holds.

        Raise `Overdue` if the condition does not hold after `timeout_s` of virtual time, and
        `Stalled` if no event is left.
        """
        if callable(until):
            self._run(until, self.now + timeout_s, self.steps + steps_max)
            if not until():
                raise self._not_reached()
        else:
            self._run(None, until, self.steps + steps_max)
            self.now = max(self.now, until)

    def _run(self, done: Callable[[], bool] | None, deadline: float, steps_end: int) -> None:
        queue = self._queue
        events_at_instant = 0
        self.raise_failure()
        while queue and queue[0][0] <= deadline and not (done is not None and done()):
            when, _, callback, args = heappop(queue)
            events_at_instant = events_at_instant + 1 if when == self.now else 0
            self.now = when
            self.steps += 1
            callback(*args)
            if self._failure is not None:
                self.raise_failure()
            if events_at_instant > INSTANT_EVENTS_MAX:
                raise Runaway(self._located(f"{events_at_instant} events at one instant"))
            if self.steps > steps_end:
                raise Runaway(self._located("the allowed number of steps is used up"))

    def _not_reached(self) -> SimulationError:
        if self._queue:
            return Overdue(self._located("what the run waited for did not happen in time"))
        return Stalled(self._located("nothing is scheduled any more"))

    def _located(self, message: str) -> str:
        return f"seed {self.seed}, t={self.now:.6f}: {message}"
