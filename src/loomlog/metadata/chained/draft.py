"""The records of chained loglets after a rollback, from what the nodes hold. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import ClassVar

from loomlog.core.catch_up import Unknowable
from loomlog.core.chained.chain import Epochs, Replica, newest_projection
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.chained.catalog import PREFIX
from loomlog.metadata.chained.record import ChainedRecord
from loomlog.metadata.offline.collector import Caller
from loomlog.metadata.rollback.draft import Draft, ProtocolDraft
from loomlog.protocol_names import CHAINED
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb


class ChainedDraft(ProtocolDraft):
    """The projections of chained loglets, from the replicas that nodes hold."""

    protocol: ClassVar[str] = CHAINED

    def __init__(self) -> None:
        self.chains: dict[LogId, dict[Replica, Epochs]] = {}

    def add(self, caller: Caller, holdings: pb.Holdings) -> None:
        for ref in holdings.chain_replicas:
            replica = Replica(caller.node_id, ref.loglet_id, ref.chain, ref.birth)
            self.chains.setdefault(ref.loglet_id, {})[replica] = Epochs(ref.epoch, ref.written)

    def log_ids(self) -> Collection[LogId]:
        return self.chains

    def keys_of(self, draft: Draft, log: LogRecord) -> list[str]:
        return [f"{PREFIX}{record.loglet}" for record in _records_of(draft, log)]

    def is_held(self, draft: Draft, log: LogRecord) -> bool | None:
        records = _records_of(draft, log)
        if any(record.loglet in self.chains for record in records):
            return True
        return False if any(record.made for record in records) else None

    def bring(self, draft: Draft, logs: Mapping[LogId, LogRecord]) -> None:
        void = defaultdict(tuple, {n.node_id: n.void for n in draft.decoded("node/", NodeRecord)})
        for key, record in draft.remaining(PREFIX, ChainedRecord):
            epochs = {
                replica: each
                for replica, each in self.chains.get(record.loglet, {}).items()
                if (replica.log_id, replica.chain, replica.birth) not in void[replica.node_id]
            }
            newest = newest_projection(record.projection, epochs)
            if isinstance(newest, Unknowable):
                draft.reasons.append(f"segment {record.loglet} (chained): {newest.why}")
                continue
            draft.changes[key] = replace(record, projection=newest, joining=(), dropping=())

    def unknown_loglets(self, draft: Draft) -> Collection[LogId]:
        known = {record.loglet for record in draft.decoded(PREFIX, ChainedRecord)}
        return sorted(set(self.chains) - known)


def _records_of(draft: Draft, log: LogRecord) -> list[ChainedRecord]:
    return [r for r in draft.decoded(PREFIX, ChainedRecord) if r.log_id == log.log_id]
