"""Decide what a storage node does with restored copies. Pure.

Restored copies belong to recovered epochs, so seals do not matter. They keep their precedence, and
never replace another record, a newer copy, or what is trimmed. A node refuses requests of an older
version than it knows, from the metadata repository or from any request: they may name shards that
lost their copies since.
"""

from __future__ import annotations

from typing import TypeAlias

from loomlog.core.copyset import storage
from loomlog.core.copyset.evidence import knows_of_loss
from loomlog.core.copyset.messages import (
    NotHere,
    Occupied,
    Purge,
    Reassign,
    Restore,
    Stored,
    Superseded,
)
from loomlog.core.copyset.record import Record, is_occupied
from loomlog.core.copyset.storage import Change, Erase, LogStanding, Put, Records, Rewrite
from loomlog.types import ShardId

RestoreRequest: TypeAlias = Restore | Reassign
RestoreAnswer: TypeAlias = Stored | NotHere | Occupied | Superseded


def decide(
    request: RestoreRequest, standing: LogStanding, records: Records, me: ShardId, version: int
) -> tuple[RestoreAnswer, list[Change]]:
    """Return the answer, and the changes that must be durable before it is given. `version` is the
    newest that the node knows."""
    record = request.record
    if request.version < version:
        return Superseded(version), []
    if record.last <= standing.trimmed:
        return Stored(), []
    if isinstance(request, Reassign):
        return _reassign(record, records)
    return _restore(request, standing, records, me)


def _reassign(record: Record, records: Records) -> tuple[RestoreAnswer, list[Change]]:
    copies = [copy for copy in _overlapping(record, records) if copy.is_copy_of(record)]
    if not copies:
        return NotHere(), []
    if copies[0].precedence > record.precedence or copies[0].copyset == record.copyset:
        return Stored(), []
    return Stored(), [Rewrite(copies[0]._replace(copyset=record.copyset))]


def _restore(
    request: Restore, standing: LogStanding, records: Records, me: ShardId
) -> tuple[RestoreAnswer, list[Change]]:
    record, end = request.record, request.end
    changes: list[Change] = []
    if records.end_of(end.epoch) is None:
        if knows_of_loss(end, me, standing.lng_of(end.epoch)):
            return NotHere(), []  # it has to purge the epoch itself, to report what is lost
        # A purge after this would delete the restored copy. Nothing is to be purged if the epoch
        # was clean because no copy of it was here, but where there are copies there is an end.
        changes = [*storage.decide(Purge(request.log, end), standing, records, me)[1]] or [end]
    erased = [change for change in changes if isinstance(change, Erase)]
    copies = [
        copy
        for copy in _overlapping(record, records)
        if not any(erase.first <= copy.first <= erase.last for erase in erased)
    ]
    if any(not copy.is_copy_of(record) for copy in copies):
        return Occupied(record.first), changes
    if is_occupied(record, copies, records.load):
        return Occupied(record.first), changes
    if any(copy.precedence >= record.precedence for copy in copies):
        # Keep it: shards that it names may rely on it. It changes once others have the record.
        return Stored(), changes
    return Stored(), [*changes, Put(record)]


def _overlapping(record: Record, records: Records) -> list[Record]:
    return [*records.heads(record.first, record.last, 2)]
