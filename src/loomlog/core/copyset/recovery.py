"""Recover the epochs before that of a new sequencer. Pure.

    for each epoch that is not clean yet, in order, with the nodeset and replication it had:
    seal → digest what is above the last known good → settle → mutate → clean → set clean

- Readers stop at the last known good of an epoch that is not clean. So nothing else is ever seen
  than what recovery decides.
- Sealed nodes are an f-majority: no other sequencer can complete a record any more. Digested nodes
  are one: each complete record is found. The same holds for what another recovery completed, so a
  new one gets the same result, wherever the other one died.
- Nodes that are not written to keep their leftovers until they are purged (purge.py). So a node
  that does not answer costs nothing, and one that fails meanwhile only another attempt.

Recovery relies on two things: a node that lost its disk is no longer fully authoritative, and seals
itself below the newest epoch before it takes any record; a node that counts as empty or unavailable
takes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from loomlog.core.copyset.epoch_metadata import Authority
from loomlog.core.copyset.epoch_recovery import EpochRecovery, Failed
from loomlog.core.copyset.lsn import Epoch
from loomlog.core.copyset.messages import GetState, LogState, Preempted, SetClean
from loomlog.core.copyset.requests import Steps, ask_store
from loomlog.types import LogId, NodeId


@dataclass(frozen=True, slots=True)
class Recovered:
    """All epochs before the sequencer's are clean, and what it stores may be released."""

    state: LogState


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Make another attempt after a moment."""

    reason: str


Ending: TypeAlias = Recovered | Interrupted | Preempted


class Recovery:
    """The recovery of one log by one sequencer, in as many attempts as it takes."""

    def __init__(self, log: LogId, epoch: Epoch) -> None:
        """`epoch` is the one that the sequencer took."""
        self._log = log
        self._epoch = epoch
        self._attempts = 0
        self._failed: frozenset[NodeId] = frozenset()  # could not be written to, the last time

    def attempt(self, authority: Mapping[NodeId, Authority], now_us: int) -> Steps[Ending]:
        """Make one attempt, one at a time. Nodes without an authority are fully authoritative."""
        self._attempts += 1
        avoided, self._failed = self._failed, frozenset()
        state = yield from ask_store(GetState(self._log))
        while state is not None:
            if state.epoch != self._epoch:
                return Preempted(state.epoch - 1)
            epoch = state.last_clean + 1
            if epoch == self._epoch:
                return Recovered(state)
            recovery = EpochRecovery(
                self._log,
                epoch,
                state.metadata_of(epoch),
                seal=self._epoch - 1,
                wave=self._attempts,
                authority=authority,
                avoided=avoided,
            )
            end = yield from recovery.run(state.trimmed, state.told_of(epoch), now_us)
            if isinstance(end, Preempted):
                return end
            if isinstance(end, Failed):
                self._failed = end.nodes
                return Interrupted(end.reason)
            state = yield from ask_store(SetClean(self._log, self._epoch, end))
        return Interrupted("the epoch store does not answer")
