"""A reader's knowledge of the whole log: epochs, their ends, and the trim point. Pure."""

from __future__ import annotations

from typing import NamedTuple

from loomlog.core.copyset.epoch_metadata import EpochMetadata
from loomlog.core.copyset.lsn import Epoch, Lsn
from loomlog.core.copyset.messages import Delivered, EpochEnd, LogState


class Stretch(NamedTuple):
    """Neighbouring epochs that are on the same nodes."""

    metadata: EpochMetadata
    last_epoch: Epoch  # as far as it is known


class Knowledge:
    """The facts known about the log. They only grow."""

    def __init__(self) -> None:
        self.trimmed: Lsn = 0
        self._state: LogState | None = None

    # ---- new facts

    def learn_state(self, state: LogState) -> None:
        self.trimmed = max(self.trimmed, state.trimmed)
        known = self._state
        if known is None or (state.epoch, state.last_clean) >= (known.epoch, known.last_clean):
            self._state = state

    def learn_answer(self, answer: Delivered) -> None:
        self.trimmed = max(self.trimmed, answer.trimmed)

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
        return None if self._state is None else self._state.end_of(epoch)

    def is_clean(self, epoch: Epoch) -> bool:
        return self._state is not None and epoch <= self._state.last_clean

    @property
    def end_of_log(self) -> Lsn | None:
        """Return the last record that there will ever be, if that is known."""
        state = self._state
        if state is None or not state.closed or state.last_clean < state.epoch - 1:
            return None
        return state.tail
