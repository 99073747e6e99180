"""What a reader knows of the whole log: where epochs lie and end, and what is trimmed. Pure."""

from __future__ import annotations

from typing import NamedTuple

from loomlog.core.copyset.epoch_metadata import EpochMetadata
from loomlog.core.copyset.lsn import Epoch, Lsn, Offset, epoch_of, offset_of
from loomlog.core.copyset.messages import Delivered, EpochEnd, LogState


class Stretch(NamedTuple):
    """Neighbouring epochs that lie on the same nodes."""

    metadata: EpochMetadata
    last_epoch: Epoch  # as far as it is known


class Knowledge:
    """Only ever grows."""

    def __init__(self) -> None:
        self.trimmed: Lsn = 0
        self._state: LogState | None = None
        self._ends: dict[Epoch, EpochEnd] = {}

    # ---- what is told

    def learn_state(self, state: LogState) -> None:
        self.trimmed = max(self.trimmed, state.trimmed)
        known = self._state
        if known is None or (state.epoch, state.last_clean) >= (known.epoch, known.last_clean):
            self._state = state

    def learn_answer(self, answer: Delivered) -> None:
        self.trimmed = max(self.trimmed, answer.trimmed)
        for end in answer.ends:
            known = self._ends.get(end.epoch)
            if known is None or end.precedence > known.precedence:
                self._ends[end.epoch] = end

    def forget_below(self, epoch: Epoch) -> None:
        for old in [known for known in self._ends if known < epoch]:
            del self._ends[old]

    # ---- what is known

    def stretch_of(self, epoch: Epoch) -> Stretch | None:
        """None: the metadata of this epoch is unknown."""
        state = self._state
        if state is None or not state.history or epoch > state.epoch:
            return None
        epoch = max(epoch, state.history[0].since)  # there was nothing before
        later = [metadata.since for metadata in state.history if metadata.since > epoch]
        return Stretch(state.metadata_of(epoch), min(later) - 1 if later else state.epoch)

    def end_of(self, epoch: Epoch) -> Offset | None:
        """Where the epoch ended, if it has; 0: nothing was ever there."""
        state = self._state
        if state is not None and state.history and epoch < state.history[0].since:
            return 0
        if state is not None and epoch_of(state.tail) <= epoch <= state.last_clean:
            return offset_of(state.tail) if epoch == epoch_of(state.tail) else 0
        end = self._ends.get(epoch)
        return end.last if end is not None else None

    def is_over(self, lsn: Lsn) -> bool:
        """Its epoch ended before it."""
        end = self.end_of(epoch_of(lsn))
        return end is not None and offset_of(lsn) > end

    def is_clean(self, epoch: Epoch) -> bool:
        return self._state is not None and epoch <= self._state.last_clean

    @property
    def end_of_log(self) -> Lsn | None:
        """The last record that there will ever be."""
        state = self._state
        if state is None or not state.closed or state.last_clean < state.epoch - 1:
            return None
        return state.tail
