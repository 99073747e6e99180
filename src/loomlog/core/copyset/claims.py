"""Decide which epoch the sender of a request must have been granted. Pure."""

from __future__ import annotations

from loomlog.core.copyset.messages import (
    Amend,
    Clean,
    NodeRequest,
    Reassign,
    Release,
    Restore,
    Seal,
    Store,
)
from loomlog.core.copyset.record import Epoch, epoch_of
from loomlog.core.copyset.storage import LogStanding


def claimed_epoch(request: NodeRequest) -> Epoch:
    """Return the epoch that the sender must have been granted; 0 if the request changes nothing. A
    request of an epoch that was never granted must change nothing: it would fence the sequencers
    of all epochs below it for good."""
    match request:
        case Store(_, record) | Amend(_, record):
            return max(epoch_of(record.first), record.recovered)
        case Release(_, lsn):
            return epoch_of(lsn)
        case Seal(_, epoch):
            return epoch + 1
        case Clean(_, seal, end):
            return max(seal + 1, end.epoch)
        case Restore(_, record, end):
            return max(end.seal + 1, end.epoch, record.epoch)
        case Reassign(_, record):
            return max(record.epoch, record.recovered)
    return 0


def taken_epoch(standing: LogStanding) -> Epoch:
    """Return the highest epoch from which the node has accepted a change."""
    return max(standing.seal + 1, standing.soft_seal + 1, epoch_of(standing.released))
