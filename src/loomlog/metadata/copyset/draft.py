"""The records of copyset loglets after a rollback, from what the nodes hold. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import ClassVar

from loomlog.core.copyset.log_state import newest_state
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.copyset.catalog import PREFIX
from loomlog.metadata.copyset.record import CopysetRecord
from loomlog.metadata.offline.collector import Caller
from loomlog.metadata.rollback.draft import Draft, ProtocolDraft
from loomlog.protocol_names import COPYSET
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb


class CopysetDraft(ProtocolDraft):
    """The epochs of copyset loglets, from the copies that nodes hold."""

    protocol: ClassVar[str] = COPYSET

    def __init__(self) -> None:
        self.epochs: dict[LogId, int] = {}  # the highest of each loglet

    def add(self, caller: Caller, holdings: pb.Holdings) -> None:
        for copies in holdings.copysets:
            known = self.epochs.get(copies.loglet_id, 0)
            self.epochs[copies.loglet_id] = max(known, copies.epoch)

    def log_ids(self) -> Collection[LogId]:
        return self.epochs

    def keys_of(self, draft: Draft, log: LogRecord) -> list[str]:
        return [f"{PREFIX}{record.loglet}" for record in _records_of(draft, log)]

    def is_held(self, draft: Draft, log: LogRecord) -> bool | None:
        records = _records_of(draft, log)
        if any(record.loglet in self.epochs for record in records):
            return True
        return False if any(map(_has_run, records)) else None

    def bring(self, draft: Draft, logs: Mapping[LogId, LogRecord]) -> None:
        for key, record in draft.remaining(PREFIX, CopysetRecord):
            epoch = self.epochs.get(record.loglet, 0)
            if record.begun and epoch > record.state.epoch:
                state = newest_state(record.state, epoch, draft.nodes)
                holders = tuple(sorted({*record.holders, *draft.nodes}))
                draft.changes[key] = replace(record, state=state, holders=holders)

    def note_losses(self, draft: Draft, node: NodeRecord) -> NodeRecord:
        """Count as lost all copies that the node may have had, up to the newest epoch."""
        lost = [
            (record.loglet, max(record.state.epoch, self.epochs.get(record.loglet, 0)))
            for record in draft.decoded(PREFIX, CopysetRecord)
            if node.node_id in record.holders
        ]
        return replace(node, lost=tuple(lost))

    def unknown_loglets(self, draft: Draft) -> Collection[LogId]:
        known = {record.loglet for record in draft.decoded(PREFIX, CopysetRecord)}
        return sorted(set(self.epochs) - known)


def _records_of(draft: Draft, log: LogRecord) -> list[CopysetRecord]:
    return [r for r in draft.decoded(PREFIX, CopysetRecord) if r.log_id == log.log_id]


def _has_run(record: CopysetRecord) -> bool:
    return record.begun and record.state.epoch >= record.state.history[0].since
