"""The events of rebuilding that are due, and when."""

from __future__ import annotations

import pytest

from loomlog.core.copyset.rebuild.events import (
    Abort,
    Acknowledged,
    Event,
    Mode,
    NeedsRebuild,
    Refill,
    Status,
    Undrain,
    Unrecoverable,
)
from loomlog.core.copyset.rebuild.triggers import (
    ShardFacts,
    due_event,
    forgotten_event,
    is_restored,
)

RESTORE, RELOCATE = NeedsRebuild(1, Mode.RESTORE), NeedsRebuild(1, Mode.RELOCATE)
HERE, AWAY, LONG_AWAY = ShardFacts(True), ShardFacts(False, 5.0), ShardFacts(False, 60.0)
LOST = ShardFacts(True, lost=7)
SETTLED = LOST._replace(covered=7)
DRAINED = HERE._replace(leaves=True)
NO_COPIES = HERE._replace(has_copies=False)


@pytest.mark.parametrize(
    ("status", "facts", "event"),
    [
        (Status.INTACT, HERE, None),
        (Status.INTACT, AWAY, None),
        (Status.INTACT, LONG_AWAY, RESTORE),
        (Status.INTACT, LONG_AWAY._replace(has_copies=False), None),
        (Status.INTACT, AWAY._replace(given_up=True, leaves=True), RESTORE),
        (Status.INTACT, LOST, Unrecoverable(1)),
        (Status.INTACT, SETTLED, None),
        (Status.INTACT, DRAINED, RELOCATE),
        (Status.INTACT, DRAINED._replace(in_use=True), None),
        (Status.INTACT, DRAINED._replace(has_copies=False), None),
        (Status.RESTORING, LONG_AWAY, None),
        (Status.RESTORING, HERE, Abort(1)),
        (Status.RESTORING, LOST, Unrecoverable(1)),
        (Status.RESTORING, SETTLED, Refill(1)),
        (Status.RESTORING, LONG_AWAY._replace(lost=7, covered=7), None),
        (Status.RESTORING, LONG_AWAY._replace(lost=7), Unrecoverable(1)),
        (Status.RESTORING, LONG_AWAY._replace(given_up=True), Unrecoverable(1)),
        (Status.LOST, LONG_AWAY._replace(lost=7, covered=7), None),
        (Status.LOST, SETTLED, Refill(1)),
        (Status.LOST, SETTLED._replace(leaves=True), None),
        (Status.REFILLING, SETTLED, None),
        (Status.REFILLING, LOST._replace(covered=6), Unrecoverable(1)),
        (Status.REFILLING, LONG_AWAY._replace(lost=7, covered=7), RESTORE),
        (Status.REFILLING, SETTLED._replace(leaves=True), None),
        (Status.RELOCATING, DRAINED, None),
        (Status.RELOCATING, HERE, Undrain(1)),
        (Status.RELOCATING, LONG_AWAY._replace(leaves=True), RESTORE),
        (Status.RELOCATING, DRAINED._replace(lost=7), Unrecoverable(1)),
        (Status.EMPTY, LONG_AWAY._replace(has_copies=False), None),
        (Status.EMPTY, LONG_AWAY, RESTORE),
        (Status.EMPTY, LONG_AWAY._replace(in_use=True), None),
        (Status.EMPTY, LOST, Unrecoverable(1)),
        (Status.EMPTY, NO_COPIES._replace(lost=7), None),
        (Status.EMPTY, SETTLED, Acknowledged(1)),
        (Status.EMPTY, HERE, Acknowledged(1)),
        (Status.DRAINED, DRAINED, None),
        (Status.DRAINED, HERE, Undrain(1)),
        (Status.DRAINED, SETTLED, Undrain(1)),
        (Status.DRAINED, LOST, Unrecoverable(1)),
        (Status.DRAINED, NO_COPIES._replace(lost=7, leaves=True), None),
    ],
)
def test_an_event_is_due_when_the_facts_ask_for_it(
    status: Status, facts: ShardFacts, event: Event | None
) -> None:
    assert due_event(1, status, facts, 60.0) == event


@pytest.mark.parametrize("status", Status)
def test_a_loss_is_restored_when_that_was_rebuilt(status: Status) -> None:
    """A rebuilt shard may have received copies since, and lost them again."""
    is_rebuilt = status in (Status.EMPTY, Status.DRAINED)
    assert not is_restored(status, LOST)
    assert not is_restored(status, LOST._replace(covered=6))
    assert is_restored(status, SETTLED) is (is_rebuilt or status is Status.INTACT)
    assert is_restored(status, NO_COPIES._replace(lost=7)) is is_rebuilt


def test_nothing_is_kept_of_a_shard_whose_node_left() -> None:
    assert forgotten_event(1, Status.INTACT) is None
    assert forgotten_event(1, Status.EMPTY) == Acknowledged(1)
    assert forgotten_event(1, Status.DRAINED) == Undrain(1)
    assert forgotten_event(1, Status.RESTORING) == Abort(1)
