"""Exactly-once delivery explored without a cluster: every order of what can happen to one or two
batches. The last tests break one rule each, and the exploration has to object."""

from __future__ import annotations

from typing import Any

import pytest
from delivery_world import ModelStream, Shape, Violation, explore

from loomlog.client.loglets.ordered.resolver import Resolver
from loomlog.core.delivery import (
    AT_ONCE,
    DOUBTFUL,
    EXACTLY_ONCE,
    QUEUED,
    RETRYING,
    SENT,
    SETTLED,
    WAITING,
    Action,
    Event,
    Progress,
    Rules,
)

SHAPES = [
    Shape(cuts=2),
    Shape(refusals=1, disconnected=True),
    Shape(rejections=1, disconnected=True),
    Shape(forgotten=1, silences=1, cancels=1),
    Shape(batches=2),
    Shape(batches=2, refusals=1, cancels=1, epochs=0),
    Shape(streams=2),
    Shape(batches=3, epochs=0, cuts=0),  # one more than may be in flight
]

# Used by carriers that find out within an attempt what became of a batch: chained, copyset.
NOT_OF_ORDERED = {(WAITING, Event.DECLINED), (SENT, Event.SENT), (SENT, Event.DECLINED)}


async def test_whatever_happens_a_batch_is_appended_once_or_its_caller_knows() -> None:
    used = set()
    for shape in SHAPES:
        exploration = explore(shape, EXACTLY_ONCE)
        assert ("appended",) * shape.batches in exploration.outcomes
        used |= exploration.used
    assert set(EXACTLY_ONCE) - used == NOT_OF_ORDERED


async def test_at_once_never_says_that_what_is_stored_was_not_appended() -> None:
    explore(Shape(silences=1, twice=True), AT_ONCE)


FLAWS = {
    "a lost batch is attempted again": (SENT, Event.LOST, RETRYING, Action.RETRY, Shape()),
    "a refused repeat is attempted again": (
        *(DOUBTFUL, Event.REFUSED, RETRYING, Action.RETRY),
        Shape(refusals=1, epochs=0),
    ),
    "a rejected repeat is given up": (
        *(DOUBTFUL, Event.REJECTED, SETTLED, Action.NONE),
        Shape(rejections=1, epochs=0),
    ),
    "a sent batch fails at its deadline": (SENT, Event.OVERDUE, SETTLED, Action.FAIL, Shape()),
    "a sent batch fails with its client": (SENT, Event.CLOSED, SETTLED, Action.FAIL, Shape()),
    "an absent batch succeeds": (DOUBTFUL, Event.ABSENT, SETTLED, Action.SUCCEED, Shape()),
    "a refused batch is forgotten": (
        *(SENT, Event.REFUSED, RETRYING, Action.NONE),
        Shape(refusals=1, epochs=0),
    ),
    "a queued batch outlives its log": (
        *(QUEUED, Event.LOG_GONE, QUEUED, Action.NONE),
        Shape(batches=3, epochs=0, cuts=0),
    ),
}


def is_found(shape: Shape, rules: Rules = EXACTLY_ONCE) -> bool:
    try:
        explore(shape, rules)
    except Violation:
        return True
    return False


@pytest.mark.parametrize("flaw", FLAWS)
async def test_a_table_with_a_wrong_rule_is_found(flaw: str) -> None:
    state, event, after, action, shape = FLAWS[flaw]
    assert not is_found(shape)
    assert is_found(shape, {**EXACTLY_ONCE, (state, event): (after, action)})


async def test_a_batch_that_forgets_its_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier attempt may have appended the batch if retry="at-once"."""
    advance = Progress.advance

    def forgetful(self: Progress, event: Event, why: str = "") -> Action:
        return advance(self, event, "")

    monkeypatch.setattr(Progress, "advance", forgetful)
    assert is_found(Shape(epochs=0, twice=True), AT_ONCE)


async def test_a_resolver_that_asks_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing batch may still arrive as long as the epoch lasts."""
    monkeypatch.setattr(Resolver, "_of_past_epochs", lambda self: self._attempts())
    assert is_found(Shape())


async def test_a_stream_that_does_not_recognise_repeats_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def take(self: ModelStream, connection: Any) -> None:
        request_id, sent = connection.requests.pop(0)
        self.taken.append((sent._replace(epoch=self.epoch), connection, request_id))

    monkeypatch.setattr(ModelStream, "arrive", take)
    assert is_found(Shape())
