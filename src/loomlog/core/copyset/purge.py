"""Remove records that a recovery made void while this node was away. Pure.

Until then the node shows nothing of later epochs: `storage.epoch_to_purge` says when it is time.
After each purge the release that waits for it is decided again.
"""

from __future__ import annotations

from dataclasses import dataclass

from loomlog.core.copyset.lsn import Epoch, last_of
from loomlog.core.copyset.messages import Done, EpochEnd, GetState, NodeRequest, Purge, Trim
from loomlog.core.copyset.requests import Round, Steps, ask_store
from loomlog.core.requests import Ask
from loomlog.types import LogId, NodeId


@dataclass(frozen=True, slots=True)
class Purged:
    end: EpochEnd


@dataclass(frozen=True, slots=True)
class NotPurged:
    """Try again after a moment."""

    reason: str


def purge(log: LogId, epoch: Epoch, me: NodeId) -> Steps[Purged | NotPurged]:
    """Learn the result of an epoch from the epoch store, and carry it out on this node."""
    state = yield from ask_store(GetState(log))
    if state is None:
        return NotPurged("the epoch store does not answer")
    end = state.end_of(epoch)
    if end is None:
        return NotPurged(f"epoch {epoch} is not recovered yet")
    requests: list[NodeRequest] = [Purge(log, end)]
    if last_of(epoch) <= state.trimmed:
        # Its end is forgotten: the node must know of the trim before it calls the epoch empty.
        requests.insert(0, Trim(log, state.trimmed))
    for request in requests:
        [answer] = yield Round([Ask(me, request)])
        if not isinstance(answer, Done):
            return NotPurged("this node does not answer")
    return Purged(end)
