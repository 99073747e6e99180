"""Remember what was acknowledged to a writer, until its epochs are recovered with it. Pure.

Only the writer knows for certain that a record was acknowledged. Disks can forget only what was
stored shortly before a power failure, so a bounded number of the newest ranges is enough.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from loomlog.core.copyset.late_losses import revealing
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.record import Epoch, Lsn, epoch_of

RECENT_MAX: Final = 256  # records, before they are put in order
RANGES_MAX: Final = 16_384  # of an epoch; older ones are dropped
EPOCHS_MAX: Final = 64  # the same

Ranges: TypeAlias = list[tuple[Lsn, Lsn]]


class AcknowledgedRanges:
    """The LSNs that a writer got acknowledged in a segment."""

    __slots__ = ("_by_epoch", "_recent")

    def __init__(self) -> None:
        self._recent: Ranges = []
        self._by_epoch: dict[Epoch, deque[tuple[Lsn, Lsn]]] = {}

    def __bool__(self) -> bool:
        return bool(self._recent or self._by_epoch)

    def add(self, first: Lsn, last: Lsn) -> None:
        self._recent.append((first, last))
        if len(self._recent) >= RECENT_MAX:
            self._put_in_order()

    def is_over(self, epoch: Epoch) -> bool:
        """Return whether there is something of an epoch before the newest, which is `epoch` or a
        later one."""
        self._put_in_order()
        return bool(self._by_epoch) and min(self._by_epoch) < max(epoch, *self._by_epoch)

    def take(self, through: Epoch) -> Ranges:
        """Remove and return what there is of epochs up to one."""
        self._put_in_order()
        over = sorted(epoch for epoch in self._by_epoch if epoch <= through)
        return [each for epoch in over for each in self._by_epoch.pop(epoch)]

    def _put_in_order(self) -> None:
        recent, self._recent = sorted(self._recent), []
        for first, last in recent:
            ranges = self._by_epoch.setdefault(epoch_of(first), deque(maxlen=RANGES_MAX))
            if ranges and ranges[-1][0] <= first <= ranges[-1][1] + 1:
                ranges[-1] = ranges[-1][0], max(last, ranges[-1][1])
            else:
                ranges.append((first, last))
        while len(self._by_epoch) > EPOCHS_MAX:
            del self._by_epoch[min(self._by_epoch)]


def to_report(state: LogState, ranges: Ranges) -> Ranges:
    """Return the acknowledged ranges in which recovery left marks that are not known as losses."""
    return list(revealing(state, ranges))
