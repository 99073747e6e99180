"""The states of a replica are a table; any other transition is refused."""

from __future__ import annotations

from itertools import product

import pytest

from loomlog.core.ordered.replica import START, TRANSITIONS, Event, next_state
from loomlog.types import ReplicaState

S, D, R = ReplicaState.SEALING, ReplicaState.SEALED, ReplicaState.RUNNING

MOVES = {
    (S, Event.SEALED_WHOLE, D),
    (D, Event.UNSEALED, R),
    (R, Event.SEALED_WHOLE, D),
    (R, Event.SEALED_BEHIND, S),
    (R, Event.SELF_SEALED, S),
    (D, Event.DAMAGED, S),
    (R, Event.DAMAGED, S),
}


def test_a_replica_starts_sealing() -> None:
    assert START is S


def test_the_moves_are_the_specs() -> None:
    found = {
        (state, event, after) for (state, event), after in TRANSITIONS.items() if after is not state
    }
    assert found == MOVES


@pytest.mark.parametrize(("state", "event"), [*product(ReplicaState, Event)])
def test_nothing_else_moves_a_replica(state: ReplicaState, event: Event) -> None:
    after = next_state(state, event)
    assert after in (None, state) or (state, event, after) in MOVES


def test_only_a_sealed_replica_is_unsealed() -> None:
    assert next_state(S, Event.UNSEALED) is None
    assert next_state(R, Event.UNSEALED) is None
