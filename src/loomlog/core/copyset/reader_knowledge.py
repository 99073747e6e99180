"""The knowledge of a reader about its log, from the epoch store and from nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loomlog.core.copyset.effects import GapKind, ReadGap
from loomlog.core.copyset.evidence import Marked, loss_at, marked_at
from loomlog.core.copyset.messages import Delivered, EpochEnd, LogState
from loomlog.core.copyset.nodeset import EpochMetadata, node_of
from loomlog.core.copyset.record import (
    OFFSET_MAX,
    Epoch,
    Lsn,
    epoch_of,
    last_of,
    make,
    offset_of,
)
from loomlog.types import ShardId


class Stretch(NamedTuple):
    """Neighbouring epochs that are on the same nodes."""

    metadata: EpochMetadata
    last_epoch: Epoch  # as far as it is known


class Knowledge:
    """The facts known about the log. They only grow."""

    def __init__(self) -> None:
        self.trimmed: Lsn = 0
        self._released: Lsn = 0
        self._state: LogState | None = None
        # The end that was looked up last: there are many, and one is needed for every record.
        self._end: tuple[Epoch, EpochEnd | None] = (-1, None)

    # ---- new facts

    def learn_state(self, state: LogState) -> None:
        self.trimmed = max(self.trimmed, state.trimmed)
        old = self._state
        if old is None or (state.epoch, state.last_clean) >= (old.epoch, old.last_clean):
            self._state = state
            self._end = (-1, None)

    def learn_answer(self, answer: Delivered) -> None:
        self.trimmed = max(self.trimmed, answer.trimmed)
        self._released = max(self._released, answer.released)

    # ---- queries

    def stretch_of(self, epoch: Epoch) -> Stretch | None:
        """Return the stretch of an epoch; None if its metadata is unknown."""
        state = self._state
        if state is None or not state.history or epoch > state.epoch:
            return None
        epoch = max(epoch, state.history[0].since)  # there was nothing before
        later = [metadata.since for metadata in state.history if metadata.since > epoch]
        return Stretch(state.metadata_of(epoch), min(later) - 1 if later else state.epoch)

    def end_of(self, epoch: Epoch) -> EpochEnd | None:
        """Return the end of an epoch; None if it is not known to be recovered."""
        known, end = self._end
        if known != epoch:
            end = None if self._state is None else self._state.end_of(epoch)
            self._end = (epoch, end)
        return end

    def is_clean(self, epoch: Epoch) -> bool:
        return self._state is not None and epoch <= self._state.last_clean

    def crashed_in(self, epoch: Epoch, lives: Mapping[ShardId, int]) -> set[ShardId]:
        """Return the shards that may have forgotten records of an epoch, as far as it is known,
        given the lives of their nodes."""
        if self._state is None:
            return set()
        end = self._state.end_of(epoch)
        then = self._state.lives_in(epoch) if end is None else self._state.witnesses_of(epoch)
        crashed = {s for s, life in lives.items() if life != then.get(node_of(s), life)}
        return crashed if end is None else crashed.union(end.crashed)

    def loss_at(self, lsn: Lsn) -> ReadGap | None:
        """Return the part of a loss that is recorded in the metadata, from an LSN on."""
        epoch = epoch_of(lsn)
        loss = loss_at(self.end_of(epoch), offset_of(lsn))
        if loss is None:
            return None
        last = last_of(epoch) if loss.last == OFFSET_MAX else make(epoch, loss.last)
        return ReadGap(lsn, last, GapKind.DATALOSS, loss.exact)

    def marked_at(self, lsn: Lsn) -> Marked:
        """Return whether there is a hole, or an unknown loss, according to the metadata."""
        return marked_at(self.end_of(epoch_of(lsn)), offset_of(lsn))

    def may_be_disproved(self, epoch: Epoch) -> bool:
        """Return whether an epoch has marks that do not count, for all that is known."""
        end = self.end_of(epoch)
        return end is None or bool(end.absent or end.crashed)

    def is_outdated(self, epoch: Epoch) -> bool:
        """Return whether nodes know that an epoch is recovered, and its metadata is from before:
        recovery may have stored records on fewer nodes."""
        return epoch < epoch_of(self._released) and not self.is_clean(epoch)

    @property
    def end_of_log(self) -> Lsn | None:
        """Return the last record that there will ever be, if that is known."""
        state = self._state
        if state is None or not state.closed or state.last_clean < state.epoch - 1:
            return None
        return state.tail
