"""The records of streams after a rollback, from what the nodes hold. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from loomlog.core.history import Unknowable
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.core.packed import HeldReplica
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.offline.collector import Caller
from loomlog.metadata.ordered.records import PREFIX
from loomlog.metadata.rollback.draft import Draft, ProtocolDraft
from loomlog.protocol_names import ORDERED
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import held_from_wire


class OrderedDraft(ProtocolDraft):
    """The streams of logs, from the replicas that nodes hold."""

    protocol: ClassVar[str] = ORDERED
    # Streams without a segment would remain when the rounds are rebuilt.
    can_drop_segments: ClassVar[bool] = False

    def __init__(self) -> None:
        self.streams: dict[StreamId, dict[NodeId, HeldReplica]] = {}
        self.log_of: dict[StreamId, LogId] = {}
        self.trimmed: dict[tuple[StreamId, NodeId], Glsn] = {}
        self.unopened: dict[StreamId, set[NodeId]] = {}  # have a replica, but cannot read it
        self._highest: set[tuple[LogId, StreamId]] = set()  # of all that is on disks

    def add(self, caller: Caller, holdings: pb.Holdings) -> None:
        for message in caller.registration.uncommit_reports:
            held = self.streams.setdefault(message.log_stream_id, {})
            held[caller.node_id] = held_from_wire(message)
        for each in holdings.streams:
            self.log_of[each.log_stream_id] = each.log_id
            self.trimmed[each.log_stream_id, caller.node_id] = each.trimmed
        for stream_id in caller.registration.conditions.unserved:
            self.unopened.setdefault(stream_id, set()).add(caller.node_id)
        request = caller.registration
        self._highest.add((request.highest_log_id, request.highest_stream_id))

    def log_ids(self) -> Collection[LogId]:
        return {*self.log_of.values(), *(log_id for log_id, _ in self._highest)}

    def stream_ids(self) -> Collection[StreamId]:
        return {*self.streams, *self.unopened, *(stream_id for _, stream_id in self._highest)}

    def keys_of(self, draft: Draft, log: LogRecord) -> list[str]:
        return [_key(stream.stream_id) for stream in self._of_log(draft, log)]

    def _of_log(self, draft: Draft, log: LogRecord) -> list[StreamRecord]:
        return [s for s in draft.decoded(PREFIX, StreamRecord) if s.log_id == log.log_id]

    def is_held(self, draft: Draft, log: LogRecord) -> bool | None:
        streams = self._of_log(draft, log)
        if any(map(self._is_held, streams)):
            return True
        has_run = any(stream.epoch > 1 or not stream.sealed for stream in streams)
        return False if has_run else None

    def _is_held(self, stream: StreamRecord) -> bool:
        replicas = self.streams.get(stream.stream_id, {})
        if stream.stream_id in self.unopened:
            return True
        return any(replica.stamp == stream.stamp for replica in replicas.values())

    def bring(self, draft: Draft, logs: Mapping[LogId, LogRecord]) -> None:
        known = {stream.stream_id: stream for stream in draft.decoded(PREFIX, StreamRecord)}
        all_logs = {log.log_id for log in draft.decoded("log/", LogRecord)}
        for stream_id in sorted({*known, *self.streams, *self.unopened}):
            stream = known.get(stream_id)
            held = self.streams.get(stream_id, {})
            if stream is not None:
                held = {n: replica for n, replica in held.items() if replica.stamp == stream.stamp}
            log_id = stream.log_id if stream else self.log_of.get(stream_id, 0)
            if not held and _key(stream_id) in draft.changes:
                continue
            if stream is not None and (stream.taken_back or log_id not in all_logs):
                # Data on nodes stays there, for cleanup.
                counts = stream.entries_gone and log_id in logs
                left = stream.without_holders(stream.holders) if counts else None
                draft.changes[_key(stream_id)] = left
                continue
            if why := self._why_unknown(stream_id, held, logs.get(log_id)):
                draft.reasons.append(why)
                continue
            has_run = stream is not None and (stream.epoch > 1 or not stream.sealed)
            if has_run and not held and log_id in logs:
                assert stream is not None
                if stream.ends_when_trimmed and draft.whole.issuperset(stream.replicas):
                    # If it was not, the rebuild of the rounds misses untrimmed positions.
                    draft.changes[_key(stream_id)] = None
                    name = logs[log_id].name
                    draft.notes.append(f"log {name}: stream {stream_id} was removed since")
                    continue
                draft.reasons.append(
                    f"stream {stream_id} of log {logs[log_id].name}: no node that came has "
                    "anything of it; start those that have it; if it was removed or trimmed after "
                    "the copy was made, only a newer copy of the metadata helps"
                )
                continue
            if log_id not in logs:
                draft.has_unknown = True
                draft.notes.append(
                    f"stream {stream_id} on node {_names(held)} is of log {log_id}, which is "
                    "not known any more: it stays there, and cannot be read"
                )
                continue
            if stream is None:
                stream = _added(logs[log_id], stream_id, held)
            newest = stream.as_held(
                {node: replica.report for node, replica in held.items()},
                {node: replica.birth for node, replica in held.items()},
            )
            if isinstance(newest, Unknowable):
                draft.reasons.append(f"stream {stream_id}: {newest.why}")
                continue
            if stream_id not in known:
                name = logs[log_id].name
                draft.notes.append(f"log {name}: stream {stream_id} was added since: taken in")
            draft.changes[_key(stream_id)] = newest

    def _why_unknown(
        self, stream_id: StreamId, held: Collection[NodeId], log: LogRecord | None
    ) -> str:
        """Return why replicas that cannot be opened may know more than those `held`; "" if they do
        not: an append needs more replicas than cannot be opened, or the log is not known."""
        unopened = self.unopened.get(stream_id, set()).difference(held)
        if not unopened or (held and (log is None or len(unopened) < log.replicas_least)):
            return ""
        where = f"stream {stream_id}" + (f" of log {log.name}" if log else "")
        return (
            f"{where} has a replica on node {_names(unopened)} that cannot be opened and may be "
            "the newest: the log of the node says why; put it back in order, or, if it is not "
            "needed, move it out of the volume, and start the node again"
        )

    def trims(self, draft: Draft) -> Mapping[LogId, Glsn]:
        trims: dict[LogId, Glsn] = {}
        for (stream_id, node), position in self.trimmed.items():
            stream = draft.changes.get(_key(stream_id))
            held = self.streams.get(stream_id, {}).get(node)
            if isinstance(stream, StreamRecord) and held and held.stamp == stream.stamp:
                trims[stream.loglet] = max(position, trims.get(stream.loglet, 0))
        return trims

    def seal_changed(self, draft: Draft) -> None:
        """Mark streams as sealed if their replicas may not know of the change."""
        known = {stream.stream_id: stream for stream in draft.decoded(PREFIX, StreamRecord)}
        for key, after in list(draft.changes.items()):
            if isinstance(after, StreamRecord):
                draft.changes[key] = after.sealed_unless_same(known.get(after.stream_id))


def _added(log: LogRecord, stream_id: StreamId, held: Mapping[NodeId, HeldReplica]) -> StreamRecord:
    """Adopt a stream that was added to a log since the copy was made."""
    loglet, stamp = log.layout.active.loglet, next(iter(held.values())).stamp
    return StreamRecord(stream_id, log.log_id, loglet, (), epoch=0, sealed=True, stamp=stamp)


def _key(stream_id: StreamId) -> str:
    return f"{PREFIX}{stream_id}"


def _names(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
