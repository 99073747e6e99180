"""Decide when a node that does not recover a log is replaced, and by which it is not. Pure.

The node may be the reason: its disk fails, or it cannot reach the nodeset while others can. Or the
log cannot be recovered anywhere; then every attempt costs an epoch for nothing. So each attempt in
a row gets twice as long as the one before, and a node that failed is avoided for a while: for
twice as long each time that it fails again. This is kept in memory: another leader of the metadata
does not know it.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final, NamedTuple

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.log_state import awaited, can_be_recovered, is_recovered
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.record import Epoch
from loomlog.types import LogId, NodeId, ShardId

PATIENCE: Final = Backoff(60.0, 3600.0)  # until a node without progress is replaced
AVOIDED: Final = Backoff(600.0, 86_400.0)  # after it was, if there are others
AGAIN: Final = Backoff(0.05, 600.0)  # between attempts that fail at once


class _Wait(NamedTuple):
    """For a sequencer that has not recovered a log yet. Its next epoch is no progress."""

    sequencer: NodeId
    last_clean: Epoch
    since_s: float


class _Failure(NamedTuple):
    times: int
    until_s: float  # it is avoided


def can_go_on(
    state: LogState, there: Collection[ShardId], given_up: Collection[ShardId] = ()
) -> bool:
    """Return whether recovery waits for no other shards than those that are there, nor another
    sequencer would."""
    waits = set(awaited(state, there, state.epoch - 1)).difference(given_up)
    return not waits and can_be_recovered(state, there, given_up)


class Replacements:
    """The logs that are not recovered, since when, and the nodes that failed to do it."""

    def __init__(self) -> None:
        self._waits: dict[LogId, _Wait] = {}
        self._attempts: dict[LogId, int] = {}  # that failed in a row
        self._failed: dict[LogId, dict[NodeId, _Failure]] = {}  # the latest is the last one

    def look(self, log: LogId, state: LogState, is_possible: bool, now_s: float) -> float | None:
        """Note how a log is, and return in how many seconds its sequencer is due to be replaced;
        None if it is not waited for. A recovery `is_possible` if enough nodes are there."""
        if is_recovered(state):
            self._attempts.pop(log, None)
            self._forgive(log, state.sequencer)
        if is_recovered(state) or not (is_possible and state.sequencer):
            self._waits.pop(log, None)
            return None
        wait = self._waits.get(log)
        if wait is None or wait[:2] != (state.sequencer, state.last_clean):
            wait = self._waits[log] = _Wait(state.sequencer, state.last_clean, now_s)
        return max(0.0, self._due_s(log, wait) - now_s)

    def is_due(self, log: LogId, state: LogState, now_s: float) -> bool:
        """Return whether the sequencer of a log is due to be replaced."""
        wait = self._waits.get(log)
        is_same = wait is not None and wait[:2] == (state.sequencer, state.last_clean)
        return wait is not None and is_same and self._due_s(log, wait) <= now_s

    def failed(self, log: LogId, state: LogState, now_s: float) -> bool:
        """Note that the sequencer did not recover a log in its time, or gave up: it is due to be
        replaced. Return False if that is known."""
        node = state.sequencer
        noted = _Wait(node, state.last_clean, -inf)
        if self._waits.get(log) == noted:
            return False
        self._waits[log] = noted
        failures = self._failed.setdefault(log, {})
        times = failures[node].times if node in failures else 0
        failures.pop(node, None)
        failures[node] = _Failure(times + 1, now_s + AVOIDED.delay_s(times))
        self.interrupted(log)
        return True

    def interrupted(self, log: LogId) -> None:
        """Note that an attempt failed, perhaps not because of its node."""
        self._attempts[log] = self._attempts.get(log, 0) + 1

    def delay_s(self, log: LogId) -> float:
        """Return the delay after an attempt that failed at once."""
        return AGAIN.delay_s(self._attempts.get(log, 1) - 1)

    def avoided(self, log: LogId, now_s: float) -> list[NodeId]:
        """Return the nodes that should not sequence a log; the one that failed last comes last."""
        failures = self._failed.get(log, {})
        return [node for node, failure in failures.items() if failure.until_s > now_s]

    def chosen(self, log: LogId, node: NodeId) -> None:
        """Called when an operator has chosen the node: it gets another chance."""
        self._forgive(log, node)

    def forget(self, log: LogId) -> None:
        """Called when a log is deleted."""
        for memory in (self._waits, self._attempts, self._failed):
            memory.pop(log, None)

    def _forgive(self, log: LogId, node: NodeId) -> None:
        if (failures := self._failed.get(log)) is not None:
            failures.pop(node, None)
            if not failures:
                del self._failed[log]

    def _due_s(self, log: LogId, wait: _Wait) -> float:
        return wait.since_s + PATIENCE.delay_s(self._attempts.get(log, 0))
