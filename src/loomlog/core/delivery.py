"""The life of a batch that a client appends: a table of states and events. Pure.

Invariants:
- a batch is attempted again only if it was certainly not appended; retry="at-once" breaks this
  rule, in one row of the table;
- a batch whose answer was lost stays with its attempt until it is known whether it was appended;
- every batch is settled once, and never fails as "not appended" if it may have been appended;
- a refused batch is not sent again if too little time is left to wait for the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias


class State(StrEnum):
    """The states of a batch."""

    QUEUED = "waits in its lane for a stream with room"
    WAITING = "an attempt has begun, and has certainly not appended it so far"
    SENT = "it may be appended at any moment"
    DOUBTFUL = "the answer was lost, and the attempt finds out whether it was appended"
    RETRYING = "certainly not appended by its last attempt; waits before the next one"
    SETTLED = "its callers know what became of it"


class Event(StrEnum):
    """The events in the life of a batch."""

    PICKED = "a stream has room for it"
    SENT = "the attempt sends it, for the first time or again"
    DECLINED = "all that was sent was refused, and the attempt continues"
    APPENDED = "it is appended"
    REFUSED = "it is not appended: another attempt may help"
    REJECTED = "it is not appended, and another attempt would not help"
    CONFLICT = "it is nowhere, and something stands behind the position that it expected"
    LOST = "no answer will come"
    ABSENT = "the attempt found out that it was not appended"
    UNKNOWN = "whether it was appended can no longer be found out"
    RESTED = "the back-off is over"
    OVERDUE = "its deadline has passed"
    CLOSED = "the client is closed"
    LOG_GONE = "the log cannot be found or used"


class Action(StrEnum):
    """The actions that the driver carries out."""

    NONE = "nothing"
    START = "start an attempt"
    AWAIT = "wait for the answer as long as for a new one"
    RESOLVE = "find out whether it was appended"
    RETRY = "queue it after a back-off"
    REQUEUE = "put it at the head of its lane"
    SUCCEED = "tell the callers the positions"
    FAIL = "tell the callers that it was not appended"
    FAIL_AS_UNKNOWN = "tell the callers that it may or may not have been appended"


QUEUED, WAITING, SENT = State.QUEUED, State.WAITING, State.SENT
DOUBTFUL, RETRYING, SETTLED = State.DOUBTFUL, State.RETRYING, State.SETTLED

Rules: TypeAlias = Mapping[tuple[State, Event], tuple[State, Action]]

EXACTLY_ONCE: Final[Rules] = {
    (QUEUED, Event.PICKED): (WAITING, Action.START),
    (QUEUED, Event.REJECTED): (SETTLED, Action.FAIL),
    (QUEUED, Event.OVERDUE): (SETTLED, Action.FAIL),
    (QUEUED, Event.CLOSED): (SETTLED, Action.FAIL),
    (QUEUED, Event.LOG_GONE): (SETTLED, Action.FAIL),
    #
    (WAITING, Event.SENT): (SENT, Action.NONE),
    (WAITING, Event.DECLINED): (WAITING, Action.NONE),
    (WAITING, Event.REFUSED): (RETRYING, Action.RETRY),
    (WAITING, Event.REJECTED): (SETTLED, Action.FAIL),
    (WAITING, Event.CONFLICT): (SETTLED, Action.FAIL),
    (WAITING, Event.OVERDUE): (SETTLED, Action.FAIL),
    (WAITING, Event.CLOSED): (SETTLED, Action.FAIL),
    (WAITING, Event.LOG_GONE): (WAITING, Action.NONE),
    #
    (SENT, Event.SENT): (SENT, Action.NONE),
    (SENT, Event.DECLINED): (WAITING, Action.NONE),
    (SENT, Event.APPENDED): (SETTLED, Action.SUCCEED),
    (SENT, Event.REFUSED): (RETRYING, Action.RETRY),
    (SENT, Event.REJECTED): (SETTLED, Action.FAIL),
    (SENT, Event.CONFLICT): (SETTLED, Action.FAIL),
    (SENT, Event.LOST): (DOUBTFUL, Action.RESOLVE),
    (SENT, Event.ABSENT): (QUEUED, Action.REQUEUE),
    (SENT, Event.UNKNOWN): (SETTLED, Action.FAIL_AS_UNKNOWN),
    (SENT, Event.OVERDUE): (SETTLED, Action.FAIL_AS_UNKNOWN),
    (SENT, Event.CLOSED): (SETTLED, Action.FAIL_AS_UNKNOWN),
    (SENT, Event.LOG_GONE): (SENT, Action.NONE),  # its answer may still come
    #
    (DOUBTFUL, Event.SENT): (DOUBTFUL, Action.AWAIT),
    (DOUBTFUL, Event.APPENDED): (SETTLED, Action.SUCCEED),
    # A refusal now says nothing about the first attempt.
    (DOUBTFUL, Event.REFUSED): (DOUBTFUL, Action.RESOLVE),
    (DOUBTFUL, Event.REJECTED): (DOUBTFUL, Action.RESOLVE),
    # Unlike other refusals: whoever compares positions has looked for the batch before.
    (DOUBTFUL, Event.CONFLICT): (SETTLED, Action.FAIL),
    (DOUBTFUL, Event.LOST): (DOUBTFUL, Action.RESOLVE),
    (DOUBTFUL, Event.ABSENT): (QUEUED, Action.REQUEUE),
    (DOUBTFUL, Event.UNKNOWN): (SETTLED, Action.FAIL_AS_UNKNOWN),
    (DOUBTFUL, Event.OVERDUE): (SETTLED, Action.FAIL_AS_UNKNOWN),
    (DOUBTFUL, Event.CLOSED): (SETTLED, Action.FAIL_AS_UNKNOWN),
    (DOUBTFUL, Event.LOG_GONE): (SETTLED, Action.FAIL_AS_UNKNOWN),
    #
    (RETRYING, Event.RESTED): (QUEUED, Action.REQUEUE),
    (RETRYING, Event.OVERDUE): (SETTLED, Action.FAIL),
    (RETRYING, Event.CLOSED): (SETTLED, Action.FAIL),
    (RETRYING, Event.LOG_GONE): (RETRYING, Action.NONE),  # it fails when it is queued again
}

AT_ONCE: Final[Rules] = {**EXACTLY_ONCE, (SENT, Event.LOST): (RETRYING, Action.RETRY)}
"""A batch whose answer was lost is appended again, and may then be in the log twice."""


FAIL_FAST: Final[Rules] = {
    **EXACTLY_ONCE,
    (WAITING, Event.REFUSED): (SETTLED, Action.FAIL),
    (SENT, Event.REFUSED): (SETTLED, Action.FAIL),
    (SENT, Event.ABSENT): (SETTLED, Action.FAIL),
    (DOUBTFUL, Event.ABSENT): (SETTLED, Action.FAIL),
}
"""A batch gets one attempt only."""


ANSWER_S: Final = 0.5  # the last attempt gets at least this, or a tenth of the whole time


def rest_s(pause_s: float, left_s: float, timeout_s: float, took_s: float) -> float | None:
    """Return how long a refused batch rests before its next attempt.

    That is `pause_s`, or less if there would be no time left for an answer otherwise. None means
    that there is no time in any case: the batch should fail with the refusal at its deadline. If it
    were sent once more, it would be unknown then whether it was appended. `left_s` is the rest of
    the whole `timeout_s`, and `took_s` how long the refusal took to arrive."""
    latest_s = left_s - max(min(ANSWER_S, timeout_s / 10), 2 * took_s)
    return min(pause_s, latest_s) if latest_s >= pause_s / 2 else None


# The events that change nothing but the state: no attempt fails by them.
_SMOOTH: Final = frozenset({Event.PICKED, Event.SENT, Event.APPENDED})


class Progress:
    """The progress of a batch."""

    __slots__ = ("_rules", "attempts", "loss", "state")

    def __init__(self, rules: Rules = EXACTLY_ONCE) -> None:
        self._rules = rules
        self.state = QUEUED
        self.attempts = 0  # those that have ended
        self.loss = ""  # why an answer was lost; outside DOUBTFUL, of an earlier attempt

    def advance(self, event: Event, why: str = "") -> Action:
        """Change the state and return the action to take. Raise KeyError if the event cannot happen
        in this state."""
        before = self.state
        self.state, action = self._rules[before, event]
        if event in _SMOOTH:
            return action
        if event is Event.LOST:
            self.loss = why
        elif event in (Event.ABSENT, Event.CONFLICT) and before is DOUBTFUL:
            self.loss = ""
        if before is not RETRYING and self.state in (RETRYING, QUEUED):
            self.attempts += 1
        if action is Action.FAIL and self.loss:
            return Action.FAIL_AS_UNKNOWN
        return action
