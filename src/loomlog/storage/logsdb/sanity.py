"""Checks requests for values that no honest peer sends and no row can hold. Pure."""

from __future__ import annotations

from typing import Final

from loomlog.core.copyset.messages import (
    Amend,
    Clean,
    EpochEnd,
    NodeRequest,
    Purge,
    Release,
    Seal,
    Store,
    Trim,
)
from loomlog.core.copyset.record import EPOCH_MAX, LSN_MAX, OFFSET_MAX, Record, epoch_of, lsn_words
from loomlog.limits import BATCH_BYTES_MAX

_NUMBER_MAX: Final = (1 << 32) - 1
_TIME_MAX_US: Final = (1 << 63) - 1


def nonsense(request: NodeRequest) -> str | None:
    """Return what is wrong with a request that changes something; None if nothing is."""
    match request:
        case Store(_, record) | Amend(_, record) if not _is_record(record):
            return f"no record can be at {lsn_words(record.first)}, or none of this kind"
        case Seal(_, epoch, wave) if not (0 <= epoch <= EPOCH_MAX and 0 <= wave <= _NUMBER_MAX):
            return f"no attempt {wave} can seal epoch {epoch}"
        case Clean(_, _, end) | Purge(_, end) if not _is_end(end):
            return f"epoch {end.epoch} cannot end like this"
        case Release(_, lsn) | Trim(_, lsn) if not 0 <= lsn <= LSN_MAX:
            return f"there is no LSN {lsn}"
    return None


def _is_record(record: Record) -> bool:
    return (
        0 < record.first <= record.last <= LSN_MAX
        and record.offset > 0
        and epoch_of(record.last) == record.epoch
        and abs(record.timestamp_us) <= _TIME_MAX_US
        and 0 <= record.wave <= _NUMBER_MAX
        and 0 <= record.lng <= OFFSET_MAX
        and 0 <= record.recovered <= EPOCH_MAX
        and all(0 <= node <= _NUMBER_MAX for node in record.copyset)
        and len(record.batch) <= BATCH_BYTES_MAX
    )


def _is_end(end: EpochEnd) -> bool:
    return (
        0 <= end.epoch <= EPOCH_MAX
        and 0 <= end.lng <= OFFSET_MAX
        and 0 <= end.last <= OFFSET_MAX
        and 0 <= end.seal <= EPOCH_MAX
        and 0 <= end.wave <= _NUMBER_MAX
    )
