"""Find the epoch that a request to a storage node claims. Pure.

A request of an epoch that was never granted must change nothing: it would fence the sequencers of
all epochs below it for good.
"""

from __future__ import annotations

from loomlog.core.copyset.lsn import Epoch, epoch_of
from loomlog.core.copyset.messages import Amend, Clean, NodeRequest, Release, Seal, Store
from loomlog.core.copyset.storage import LogStanding


def claimed_epoch(request: NodeRequest) -> Epoch:
    """Return the epoch that its sender must have been granted; 0 if it changes nothing."""
    match request:
        case Store(_, record) | Amend(_, record):
            return max(epoch_of(record.first), record.recovered)
        case Release(_, lsn):
            return epoch_of(lsn)
        case Seal(_, epoch):
            return epoch + 1
        case Clean(_, seal, end):
            return max(seal + 1, end.epoch)
    return 0


def taken_epoch(standing: LogStanding) -> Epoch:
    """Return the highest epoch from which the node has accepted a change."""
    return max(standing.seal + 1, standing.soft_seal + 1, epoch_of(standing.released))
