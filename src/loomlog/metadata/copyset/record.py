"""The record of a loglet of protocol `copyset`, as the metadata store keeps it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loomlog.core.copyset.messages import Acknowledged, EpochEnd, LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.types import LogId, NodeId, StreamId


@dataclass(frozen=True, slots=True)
class CopysetRecord:
    """A loglet of protocol `copyset`. It outlives its segment until no node has anything of it."""

    loglet: LogId
    log_id: LogId
    stream_id: StreamId  # of the one stream that its segment shows
    state: LogState  # without an epoch until the segment begins
    begun: bool = False
    holders: tuple[NodeId, ...] = ()  # were in a nodeset once: they may have something of it

    def __post_init__(self) -> None:
        """Convert the plain values of a stored record."""
        object.__setattr__(self, "state", _log_state(self.state))


def _log_state(state: LogState | dict[str, Any]) -> LogState:
    if isinstance(state, LogState):
        return state
    history = [
        EpochMetadata(since, tuple(Member(*member) for member in nodeset), replication)
        for since, nodeset, replication in state.get("history", ())
    ]
    ends = tuple(EpochEnd(**end) for end in state.get("ends", ()))
    told = tuple(Acknowledged(*fields) for fields in state.get("told", ()))
    return LogState(**{**state, "history": tuple(history), "ends": ends, "told": told})
