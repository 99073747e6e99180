"""Rates of a cluster, from two looks at its status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from loomlog.types import NodeId
from loomlog.wire.info import ClusterStatus

_JUMP: Final = 1 << 31  # positions: a new epoch, no appends


class Look(NamedTuple):
    """The status at a moment, and how long the answer took."""

    time_s: float  # since 1970
    status: ClusterStatus
    took_s: float


class Rates(NamedTuple):
    """Events and bytes in a second."""

    time_s: float
    entries: float  # appended
    stored_bytes: float  # on all nodes together
    rounds: float  # of commits
    metadata_ms: float  # until the metadata repository answered
    logs: Mapping[str, float]  # entries appended, by log
    nodes: Mapping[NodeId, float]  # bytes written, by node

    @property
    def charted(self) -> tuple[float, ...]:
        """The values that charts show."""
        return self[:5]


NO_RATES: Final = Rates(0, 0, 0, 0, 0, {}, {})


def rates(before: Look, after: Look) -> Rates:
    """Return the rates between two looks; 0 for what was counted from the start again."""
    passed_s = max(after.time_s - before.time_s, 0.001)
    tails = {log.id: log.reached for log in before.status.logs}
    logs = {
        log.name: _grown(tails.get(log.id, log.reached), log.reached, _JUMP) / passed_s
        for log in after.status.logs
    }
    stored = {node.id: node.stored_bytes for node in before.status.nodes}
    nodes = {
        node.id: _grown(stored[node.id] or 0, node.stored_bytes or 0) / passed_s
        for node in after.status.nodes
        if stored.get(node.id) is not None
    }
    return Rates(
        after.time_s,
        sum(logs.values()),
        sum(nodes.values()),
        _grown(before.status.rounds, after.status.rounds) / passed_s,
        1000 * after.took_s,
        {name: rate for name, rate in logs.items() if rate},
        nodes,
    )


def _grown(before: int, after: int, jump: int | None = None) -> int:
    grown = max(0, after - before)
    return 0 if jump is not None and grown >= jump else grown
