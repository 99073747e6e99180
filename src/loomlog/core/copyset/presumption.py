"""Remember that the recovery of an epoch did not know everything. Pure.

After a while recovery does without nodes that may have records which all others have forgotten, and
marks the places where it finds none (recovery.py). If it dies before the epoch is clean, such a
node may be back when the next one begins. Nobody has seen the marks by then, so they need not
count: the next recovery finds the records of the node, and learns its LNG.

So the epoch store notes it before the first mark is written, and also if all nodes are there but
some have crashed: they forget their LNGs (last known good offsets) when they learn that the
epoch is clean, and to the next recovery others may be absent. Until the epoch is clean

- all above the lowest LNG is looked at, and no mark is believed, unless a node that may have it is
  not written to: all nodes must end up with the same;
- no attempt but the newest may end the epoch, since they may decide otherwise;
- a record that was acknowledged, as far as any node knew, and is not found, is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from loomlog.core.copyset.record import Epoch, Offset
from loomlog.types import LogId


class Presumption(NamedTuple):
    """The attempts to recover an epoch that did without nodes which may have what all others have
    forgotten. What they marked counts only when the epoch is clean: the next attempt may know
    better."""

    epoch: Epoch
    by: Epoch  # of the sequencer whose attempt is the newest
    wave: int  # of that attempt
    lng: Offset  # there are no marks up to it
    good: Offset  # all up to it was acknowledged, as far as some node knew


@dataclass(frozen=True, slots=True)
class Presume:
    """LogState: an attempt to recover an epoch is about to leave marks above `lng` without nodes
    that may have what all others have forgotten, or after one that did so. All up to `good` was
    acknowledged. Unchanged if the newest epoch is no longer `by`."""

    log: LogId
    by: Epoch
    epoch: Epoch
    wave: int
    lng: Offset
    good: Offset
