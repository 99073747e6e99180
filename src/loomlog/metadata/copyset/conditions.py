"""What is the matter with a copyset loglet, in words. Pure."""

from __future__ import annotations

from loomlog.core.copyset.log_state import is_recovered
from loomlog.core.copyset.messages import LogState


def condition(state: LogState, there: int, size: int, reason: str, trouble: str) -> str:
    """How many nodes of its nodeset are missed, what is not recovered, what is under way; empty:
    all is well."""
    words = []
    if there < size and not state.closed:
        words.append(f"{there} of {size} nodes of the nodeset are alive")
        if there < state.history[-1].replication:
            words.append(f"appends wait for {state.history[-1].replication} of them")
    if not is_recovered(state):
        first, last = state.last_clean + 1, state.epoch - 1
        span = f"epoch {first} is" if first == last else f"epochs {first} to {last} are"
        words.append(f"{span} not recovered yet")
    if reason:
        words.append(f"gets a new epoch: {reason}")
    if trouble:
        words.append(trouble)
    return "; ".join(words)
