"""Draft the records of metadata that match the data on the storage nodes. Pure.

catch_up.py asks the nodes and writes the records. Anything unknown is a reason to refuse; a
harmless loss is a note for the operator. Each protocol drafts its own records; metadata/registry.py
lists the drafts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, Generic, TypeVar

from loomlog.core.transactions import DECISIONS_LOG
from loomlog.metadata.catalog.records import (
    CountersRecord,
    LeaseRecord,
    LogletRecord,
    LogRecord,
    MetadataRecord,
    NodeRecord,
    decode,
    log_key,
    node_key,
)
from loomlog.metadata.logs import decisions
from loomlog.metadata.logs.decisions import DecisionNote
from loomlog.metadata.offline.collector import Caller
from loomlog.metadata.rollback.register_notes import register_notes
from loomlog.metadata.store.contract import StoredItem
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb

_R = TypeVar("_R", bound=MetadataRecord)
_L = TypeVar("_L", bound=LogletRecord)

NUMBERS_ABOVE: Final = 100  # ids that were used and deleted since, and that no node knows now


class Draft:
    """The records that change, one kind after the other."""

    def __init__(
        self,
        items: Mapping[str, StoredItem],
        protocols: Sequence[ProtocolDraft],
        nodes: Collection[NodeId],
        lease_epochs: int = 0,
    ) -> None:
        """`lease_epochs`: the highest epoch that any lease may have had."""
        self._items = items
        self._lease_epochs = lease_epochs
        self._protocols = protocols
        self.nodes = frozenset(nodes)
        self.changes: dict[str, MetadataRecord | None] = {}
        self.notes: list[str] = []
        self.reasons: list[str] = []
        # Nodes of the copy that came with their data, and those of them that came with all volumes.
        self.same: frozenset[NodeId] = frozenset()
        self.whole: frozenset[NodeId] = frozenset()
        self.dropped: set[LogId] = set()  # loglets of completely trimmed segments
        self.has_unknown = False  # nodes have data of unknown logs

    def make(
        self,
        came: Mapping[NodeId, NodeRecord],
        leave: Collection[LogId],
        deleted: Collection[str],
    ) -> None:
        """Draft all records. `leave`: loglets of newer logs; `deleted`: logs deleted since."""
        self._raise_numbers()
        self._adopt_nodes(came)
        logs = {log.log_id: log for log in self.decoded("log/", LogRecord)}
        for log in logs.values():
            if log.unfinished:  # its creation may have finished since: a start would undo it
                self.changes[log_key(log.name)] = replace(log, unfinished=False)
        for log in [log for log in logs.values() if not self._is_anywhere(log)]:
            del logs[log.log_id]
            self._drop(log, deleted)
        self._raise_trims(logs)  # nodes have no data of completely trimmed segments
        self._enlist(logs)
        for protocol in self._protocols:
            protocol.bring(self, logs)
        self._raise_trims(logs)  # some protocols know them only now
        for protocol in self._protocols:
            self._look_at_unknown(protocol, logs, leave)
        if self.has_unknown:
            self.notes.append(
                "if there were transactions or publications, and the copy is older than the first "
                "one, then the log of decisions or a staging log is not known any more either: "
                "entries that depend on it are lost, and only a newer copy of the metadata helps"
            )
        self._end_leases()
        if self.keys("register/") or self.keys("lease/"):
            self.notes.append(
                "registers, checkpoints and leases are as in the copy: what was changed since is "
                "lost, every version is new, and no lease has a holder"
            )
        self.notes += register_notes(self._items, [self.log(log.name) for log in logs.values()])

    def doubt_ends(self, outdated: Mapping[NodeId, str], gone: Collection[NodeId]) -> None:
        """Refuse to end logs whose last entries only nodes with older copies of their data, and
        nodes that are `gone`, may have had. Such entries may have been on any of these nodes."""
        count = len({*outdated, *gone})
        names = [log.name for log in self._logs_left() if count >= log.replicas_least]
        if outdated and names:
            whys = [f"node {node} may be: {why}" for node, why in sorted(outdated.items())]
            self.reasons.append(
                f"where log {', '.join(names)} ends is known only if no node is an older copy; "
                f"{'; '.join(whys)}: start it with its newest data, or, for each node N that was "
                "only away, add --was-away N"
            )

    def _logs_left(self) -> Iterator[LogRecord]:
        for log in self.decoded("log/", LogRecord):
            changed = self.changes.get(log_key(log.name), log)
            if isinstance(changed, LogRecord):
                yield changed

    def seal_changed(self) -> None:
        """Called after the rounds were rebuilt from these records."""
        for protocol in self._protocols:
            protocol.seal_changed(self)

    # ---- numbers and nodes

    def _raise_numbers(self) -> None:
        own = next(iter(self.decoded("counters", CountersRecord)), CountersRecord())
        logs = [log_id for protocol in self._protocols for log_id in protocol.log_ids()]
        streams = [stream for protocol in self._protocols for stream in protocol.stream_ids()]
        self.changes["counters"] = CountersRecord(
            max((own.log_id, *logs)) + NUMBERS_ABOVE, max((own.stream_id, *streams)) + NUMBERS_ABOVE
        )

    def _adopt_nodes(self, came: Mapping[NodeId, NodeRecord]) -> None:
        known = {node.node_id: node for node in self.decoded("node/", NodeRecord)}
        self.same = frozenset(
            node
            for node, record in came.items()
            if node in known and known[node].node_secret == record.node_secret
        )
        self.whole = frozenset(
            node for node in self.same if {*came[node].shards}.issuperset(known[node].shards)
        )
        for node, record in came.items():
            before = known.get(node)
            if before is not None and node in self.same:
                # It may have crashed since.
                self.changes[node_key(node)] = replace(before, life=before.life + 1)
                continue
            after = record
            for protocol in self._protocols if before is not None else ():
                after = protocol.note_losses(self, after)
            self.changes[node_key(node)] = after
            self.notes.append(
                f"node {node} was {'replaced' if before else 'added'} since: taken in"
            )

    # ---- logs

    def _is_anywhere(self, log: LogRecord) -> bool:
        """Return whether a node has data of a log, which is the case if it ever took an append."""
        found = [protocol.is_held(self, log) for protocol in self._protocols]
        return any(found) or all(each is None for each in found)

    def _drop(self, log: LogRecord, deleted: Collection[str]) -> None:
        """Forget a log only if an operator confirms that it was deleted, because nodes may be
        missing."""
        if log.name not in deleted:
            self.reasons.append(
                f"log {log.name}: no node that came has anything of it; start those that have it, "
                f"or, if it was deleted after the copy was made, add --deleted {log.name}"
            )
            return
        self.changes[log_key(log.name)] = None
        for protocol in self._protocols:
            self.changes.update(dict.fromkeys(protocol.keys_of(self, log)))
        self.notes.append(f"log {log.name} was deleted since: it is not known any more")

    def _raise_trims(self, logs: Mapping[LogId, LogRecord]) -> None:
        """Trim logs as far as a node did: it had an order, and readers can no longer get those
        entries."""
        trims: dict[LogId, Glsn] = {}
        droppable = {each.protocol for each in self._protocols if each.can_drop_segments}
        for protocol in self._protocols:
            trims |= protocol.trims(self)
        for name in [log.name for log in logs.values()]:
            log = self.log(name)
            found = [
                trims[segment.loglet]
                if segment.end is None
                else min(trims[segment.loglet], segment.end)
                for segment in log.segments
                if trims.get(segment.loglet, 0) >= segment.start
            ]
            trimmed = log.trim(max(found, default=0))
            if trimmed == log:
                continue
            words = f"log {name} was trimmed up to position {trimmed.trimmed} since"
            gone = set(log.segments).difference(trimmed.segments)
            if all(segment.settings.protocol in droppable for segment in gone):
                self.changes[log_key(name)] = trimmed
                self.dropped.update(segment.loglet for segment in gone)
                self.notes.append(f"{words}: so it is again")
            elif (again := f"{words}: trim it again") not in self.notes:
                self.notes.append(again)

    def log(self, name: str) -> LogRecord:
        """Return the newest draft of a log."""
        changed = self.changes.get(log_key(name))
        if isinstance(changed, LogRecord):
            return changed
        return decode(LogRecord, log_key(name), self._items[log_key(name)].value)

    def _look_at_unknown(
        self, protocol: ProtocolDraft, logs: Mapping[LogId, LogRecord], leave: Collection[LogId]
    ) -> None:
        """Refuse unknown loglets, which may be segments of known logs."""
        for loglet in protocol.unknown_loglets(self):
            which = f"segment {loglet} ({protocol.protocol})"
            self.has_unknown = True
            if loglet in leave or not logs:
                self.notes.append(
                    f"{which} is of a log that is not known any more: it stays on its nodes, and "
                    "cannot be read"
                )
            else:
                self.reasons.append(
                    f"{which} is not known: if its log was created after the copy was made, add "
                    f"--leave {loglet}; if it is part of a log that was switched since, only a "
                    "newer copy of the metadata helps"
                )

    def _enlist(self, logs: Mapping[LogId, LogRecord]) -> None:
        """Keep decisions for all logs, because any of them may have had transactions since the
        copy."""
        for log_id in logs if log_key(DECISIONS_LOG) in self._items else ():
            if (key := f"{decisions.PREFIX}{log_id}") not in self._items:
                self.changes[key] = DecisionNote()

    # ---- leases

    def _end_leases(self) -> None:
        for key in self.keys("lease/"):
            lease = decode(LeaseRecord, key, self._items[key].value)
            epoch = max(lease.epoch, self._lease_epochs)  # shows those who look that it was lost
            self.changes[key] = replace(lease, holder="", epoch=epoch)

    # ---- records of the copy

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self._items if key.startswith(prefix)]

    def decoded(self, prefix: str, kind: type[_R]) -> Iterator[_R]:
        return (decode(kind, key, self._items[key].value) for key in self.keys(prefix))

    def remaining(self, prefix: str, kind: type[_R]) -> list[tuple[str, _R]]:
        """Return the records without a drafted change, by key."""
        keys = [key for key in self.keys(prefix) if key not in self.changes]
        return [(key, decode(kind, key, self._items[key].value)) for key in keys]


class ProtocolDraft(ABC):
    """The records of one protocol after a rollback, from the data on the nodes."""

    protocol: ClassVar[str]
    can_drop_segments: ClassVar[bool] = True  # the vmr removes the rest of them when it starts

    @abstractmethod
    def add(self, caller: Caller, holdings: pb.Holdings) -> None:
        """Add the holdings of one node."""

    @abstractmethod
    def log_ids(self) -> Collection[LogId]:
        """Return the numbers of logs and loglets that nodes know."""

    def stream_ids(self) -> Collection[StreamId]:
        """Return the numbers of streams that nodes know."""
        return ()

    @abstractmethod
    def keys_of(self, draft: Draft, log: LogRecord) -> list[str]:
        """Return the keys of the records of a log."""

    @abstractmethod
    def is_held(self, draft: Draft, log: LogRecord) -> bool | None:
        """Return whether a node has data of a log; None if it never ran."""

    @abstractmethod
    def bring(self, draft: Draft, logs: Mapping[LogId, LogRecord]) -> None:
        """Draft the records of this protocol."""

    @abstractmethod
    def trims(self, draft: Draft) -> Mapping[LogId, Glsn]:
        """Return the position up to which a node has trimmed each loglet, as far as it is known.
        Called before and after `bring`."""

    def note_losses(self, draft: Draft, node: NodeRecord) -> NodeRecord:
        """Return the record of a node that was replaced, with its losses added."""
        return node

    def unknown_loglets(self, draft: Draft) -> Collection[LogId]:
        """Return the loglets that nodes hold and no record names."""
        return ()

    def seal_changed(self, draft: Draft) -> None:  # noqa: B027 - most have nothing to seal
        """Mark changed streams as sealed if their nodes may not know of the change."""


class LogletDraft(ProtocolDraft, Generic[_L]):
    """The draft of a protocol with a record for each loglet, whose keys begin with `prefix`."""

    def __init__(self, prefix: str, kind: type[_L], held: Collection[LogId]) -> None:
        """`held` are the loglets on nodes; `add` extends it."""
        self._prefix = prefix
        self._kind = kind
        self._held = held
        self.trimmed: dict[LogId, Glsn] = {}

    @abstractmethod
    def has_run(self, record: _L) -> bool:
        """Return whether nodes must have data of a loglet."""

    def records(self, draft: Draft) -> Iterator[_L]:
        return draft.decoded(self._prefix, self._kind)

    def remaining(self, draft: Draft) -> list[tuple[str, _L]]:
        return draft.remaining(self._prefix, self._kind)

    def add_trim(self, loglet: LogId, position: Glsn) -> None:
        self.trimmed[loglet] = max(position, self.trimmed.get(loglet, 0))

    def trims(self, draft: Draft) -> Mapping[LogId, Glsn]:
        return self.trimmed

    def _records_of(self, draft: Draft, log: LogRecord) -> list[_L]:
        return [record for record in self.records(draft) if record.log_id == log.log_id]

    def log_ids(self) -> Collection[LogId]:
        return self._held

    def keys_of(self, draft: Draft, log: LogRecord) -> list[str]:
        return [f"{self._prefix}{record.loglet}" for record in self._records_of(draft, log)]

    def is_held(self, draft: Draft, log: LogRecord) -> bool | None:
        records = self._records_of(draft, log)
        if any(record.loglet in self._held for record in records):
            return True
        return False if any(map(self.has_run, records)) else None

    def unknown_loglets(self, draft: Draft) -> Collection[LogId]:
        return sorted(set(self._held) - {record.loglet for record in self.records(draft)})
