"""A request that waits for more: it looks at once and whenever something has changed, and is
answered when there is something to send or its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from loomlog.net.turns import Turns

Answer = TypeVar("Answer")


class LongPoll(Generic[Answer]):
    def __init__(
        self,
        turns: Turns,
        look: Callable[[Callable[[Answer], None]], None],
        is_nothing: Callable[[Answer], bool],
        wait_s: float,
        done: Callable[[Answer], None],
        forget: Callable[[], None],
        nothing: Answer | None = None,
    ) -> None:
        """`nothing`: the answer when the time is over; None: look once more for one."""
        self._turns = turns
        self._look = look
        self._is_nothing = is_nothing
        self._done = done
        self._forget = forget
        self._nothing = nothing
        self._looking = False
        self._queued = False  # for its turn to look
        self._changed = False  # since it began to look
        self._late = False
        self._ended = False
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_is_over)

    def look(self) -> None:
        self._changed = self._looking
        if not self._looking:
            self._looking = self._queued = True
            self._turns.take(self._begin)

    def _begin(self) -> None:
        self._queued = False
        if self._ended:
            self._turns.end()
        else:
            self._look(self._looked)

    def end(self) -> None:
        """End without an answer. May be called twice."""
        if not self._ended:
            self._ended = True
            self._timer.cancel()
            self._forget()

    def _looked(self, answer: Answer) -> None:
        self._looking = False
        self._take(answer)
        self._turns.end()

    def _take(self, answer: Answer) -> None:
        if self._ended:
            return
        if self._late or not self._is_nothing(answer):
            self.end()
            self._done(answer)
        elif self._changed:
            self.look()

    def _time_is_over(self) -> None:
        self._late = True
        if self._nothing is None:
            self.look()
        elif not self._looking or self._queued:
            self.end()
            self._done(self._nothing)
