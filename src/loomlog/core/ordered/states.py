"""The states of a replica as a table (docs/design/ordered.md). Pure."""

from __future__ import annotations

from enum import StrEnum

from loomlog.types import ReplicaState

SEALING, SEALED, RUNNING = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING

START = SEALING  # for a new replica and after every restart


class Event(StrEnum):
    """An event that may change the state of a replica."""

    SEALED_WHOLE = "Seal(last committed) when own last committed = that"
    SEALED_BEHIND = "Seal(last committed) when own last committed < that"
    SELF_SEALED = "replication or the disk failed"
    UNSEALED = "Unseal"
    DAMAGED = "committed entries cannot be read, or nothing can be written"


TRANSITIONS: dict[tuple[ReplicaState, Event], ReplicaState] = {
    (SEALING, Event.SEALED_WHOLE): SEALED,
    (SEALING, Event.SEALED_BEHIND): SEALING,
    (SEALING, Event.SELF_SEALED): SEALING,
    (SEALED, Event.SEALED_WHOLE): SEALED,
    (SEALED, Event.SELF_SEALED): SEALED,
    (SEALED, Event.UNSEALED): RUNNING,
    (RUNNING, Event.SEALED_WHOLE): SEALED,
    (RUNNING, Event.SEALED_BEHIND): SEALING,
    (RUNNING, Event.SELF_SEALED): SEALING,
    (SEALING, Event.DAMAGED): SEALING,
    (SEALED, Event.DAMAGED): SEALING,
    (RUNNING, Event.DAMAGED): SEALING,
}


def next_state(state: ReplicaState, event: Event) -> ReplicaState | None:
    """Return the state after the event, or None if the table refuses it."""
    return TRANSITIONS.get((state, event))
