"""Converts between the types of core/copyset and wire messages. Pure.

The core's `log` is the id of a loglet; a log may have several. What makes no sense
raises InvalidArgument (a request) or Corrupt (an answer), which counts as no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from loomlog.batch import aligned, check
from loomlog.core.copyset.messages import (
    Acknowledged,
    Activate,
    Amend,
    Clean,
    Contradict,
    Delivered,
    Digest,
    Digested,
    Done,
    EpochEnd,
    EpochState,
    EpochStoreRequest,
    FindBatch,
    Finish,
    Forget,
    FoundBatch,
    GetState,
    LogState,
    NodeAnswer,
    NodeRequest,
    NotHere,
    Occupied,
    Preempted,
    Read,
    Refused,
    Release,
    Seal,
    SealedAt,
    SetClean,
    Store,
    Stored,
    Trim,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member, Trouble
from loomlog.core.copyset.record import EPOCH_MAX, OFFSET_MAX, Kind, Record, epoch_of, offset_of
from loomlog.errors import Corrupt, InvalidArgument, LoomError
from loomlog.limits import ALIGNMENT, MIB
from loomlog.types import Buffer, LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb

READ_BYTES_MAX: Final = MIB  # of one answer; the last record goes over it

_Ask = pb.CopysetRequest
_Tell = pb.CopysetAnswer
_PADDING: Final = bytes(ALIGNMENT)
_KINDS: Final = frozenset(Kind)


# ---- records


def record_to_wire(record: Record) -> pb.CopysetRecord:
    return pb.CopysetRecord(
        first=record.first,
        count=record.count,
        kind=record.kind,
        timestamp_us=record.timestamp_us,
        copyset=record.copyset,
        wave=record.wave,
        lng=record.lng,
        recovered=record.recovered,
        size=len(record.batch),
    )


def _record(message: pb.CopysetRecord, batch: Buffer) -> Record:
    """Return the record, verified with its batch."""
    first, count = message.first, message.count
    last_offset = offset_of(first) + count - 1
    if not (0 < epoch_of(first) <= EPOCH_MAX and offset_of(first) and count):
        raise Corrupt(f"there is no record of {count} entries at {first}")
    if last_offset > OFFSET_MAX or message.kind not in _KINDS:
        raise Corrupt(f"no record of kind {message.kind} with {count} entries can be at {first}")
    if len(batch):
        header = check(batch)
        if (header.first_position, header.first_llsn, header.count) != (first, first, count):
            raise Corrupt(
                f"the batch of {first} has {header.count} entries from {header.first_position} on"
            )
    return Record(
        first,
        count,
        Kind(message.kind),
        message.timestamp_us,
        tuple(message.copyset),
        message.wave,
        message.lng,
        message.recovered,
        batch,
    )


def _records(messages: Iterable[pb.CopysetRecord], payload: memoryview) -> Iterator[Record]:
    offset = 0
    for message in messages:
        batch = payload[offset : offset + message.size]
        if len(batch) != message.size:
            raise Corrupt(f"the record at {message.first} is cut off")
        yield _record(message, batch)
        offset += aligned(message.size)


def _padded(records: Sequence[Record]) -> Iterator[Buffer]:
    """Batches are padded themselves, so this adds nothing to them."""
    for record in records:
        if len(record.batch):
            yield record.batch
        if padding := -len(record.batch) % ALIGNMENT:
            yield _PADDING[:padding]


# ---- to a storage node


def request_to_wire(
    request: NodeRequest, stamp: int, *, wait_ms: int = 0
) -> tuple[pb.CopysetRequest, Buffer]:
    """Return the message and its payload. A `Read` that finds nothing may wait."""
    message = pb.CopysetRequest(loglet_id=request.log, stamp=stamp)
    match request:
        case Store(_, record, draining):
            message.kind, message.draining = _Ask.STORE, draining
            message.record.CopyFrom(record_to_wire(record))
            return message, record.batch
        case Amend(_, record):
            message.kind = _Ask.AMEND
            message.record.CopyFrom(record_to_wire(record._replace(batch=b"")))
        case Release(_, lsn):
            message.kind, message.lsn = _Ask.RELEASE, lsn
        case Seal(_, epoch, wave):
            message.kind, message.epoch, message.wave = _Ask.SEAL, epoch, wave
        case Digest():
            message.kind, message.epoch, message.lsn = _Ask.DIGEST, request.epoch, request.after
            message.seal, message.wave = request.seal, request.wave
            message.bytes_max, message.without_batches = request.bytes_max, not request.batches
        case Clean(_, seal, end):
            message.kind, message.seal = _Ask.CLEAN, seal
            message.end.CopyFrom(_end_to_wire(end))
        case Read():
            message.kind, message.lsn, message.until = _Ask.READ, request.first, request.until
            message.known_down.extend(sorted(request.known_down))
            message.everything, message.wait_ms = request.everything, wait_ms
            message.bytes_max, message.without_batches = request.bytes_max, not request.batches
        case Trim(_, lsn):
            message.kind, message.lsn = _Ask.TRIM, lsn
        case Forget():
            message.kind = _Ask.FORGET
        case FindBatch(_, producer_id, sequence):
            message.kind = _Ask.FIND
            message.producer_id, message.sequence = producer_id, sequence
        case _:
            raise InvalidArgument(f"{type(request).__name__} is nothing to ask of another node")
    return message, b""


def request_from_wire(message: pb.CopysetRequest, payload: memoryview) -> NodeRequest:
    """Return the request, with records verified and bounds checked."""
    log = message.loglet_id
    bytes_max, batches = min(message.bytes_max, READ_BYTES_MAX), not message.without_batches
    match message.kind:
        case _Ask.STORE:
            return Store(log, _sent(message, payload), message.draining)
        case _Ask.AMEND:
            return Amend(log, _sent(message, memoryview(b"")))
        case _Ask.RELEASE:
            return Release(log, message.lsn)
        case _Ask.SEAL:
            return Seal(log, message.epoch, message.wave)
        case _Ask.DIGEST:
            return Digest(
                log,
                epoch=message.epoch,
                after=message.lsn,
                seal=message.seal,
                bytes_max=bytes_max,
                batches=batches,
                wave=message.wave,
            )
        case _Ask.CLEAN:
            return Clean(log, message.seal, _end_from_wire(message.end))
        case _Ask.READ:
            return Read(
                log,
                first=message.lsn,
                until=message.until,
                bytes_max=bytes_max,
                known_down=frozenset(message.known_down),
                everything=message.everything,
                batches=batches,
            )
        case _Ask.TRIM:
            return Trim(log, message.lsn)
        case _Ask.FORGET:
            return Forget(log)
        case _Ask.FIND:
            return FindBatch(log, message.producer_id, message.sequence)
    raise InvalidArgument(f"no request of kind {message.kind} is known here: upgrade this node")


def _sent(message: pb.CopysetRequest, batch: memoryview) -> Record:
    try:
        return _record(message.record, batch)
    except LoomError as error:
        raise InvalidArgument(f"a record for log {message.loglet_id}: {error}") from None


# ---- from a storage node


def answer_to_wire(answer: NodeAnswer) -> tuple[pb.CopysetAnswer, Sequence[Buffer]]:
    """Return the message and its payload."""
    match answer:
        case Stored():
            return _Tell(kind=_Tell.STORED), ()
        case Done():
            return _Tell(kind=_Tell.DONE), ()
        case NotHere():
            return _Tell(kind=_Tell.NOT_HERE), ()
        case Preempted(seal):
            return _Tell(kind=_Tell.PREEMPTED, seal=seal), ()
        case Occupied(lsn):
            return _Tell(kind=_Tell.OCCUPIED, next_lsn=lsn), ()
        case Refused(trouble, reason):
            return _Tell(kind=_Tell.REFUSED, trouble=str(trouble), reason=reason), ()
        case SealedAt():
            return _sealed_to_wire(answer), ()
        case FoundBatch(lsns, certain):
            return _Tell(kind=_Tell.FOUND, lsns=lsns, certain=certain), ()
        case Digested(records, more, trimmed):
            heads = [record_to_wire(record) for record in records]
            digest = _Tell(kind=_Tell.DIGESTED, records=heads, more=more, trimmed=trimmed)
            return digest, list(_padded(records))
        case Delivered(records=records):
            return _delivered_to_wire(answer), list(_padded(records))


def _sealed_to_wire(answer: SealedAt) -> pb.CopysetAnswer:
    return _Tell(
        kind=_Tell.SEALED_AT,
        last_clean=answer.last_clean,
        trimmed=answer.trimmed,
        ends=[pb.CopysetEnd(epoch=e.epoch, lng=e.lng, last=e.last) for e in answer.epochs],
        lost_through=answer.lost_through,
        next_lsn=answer.newer,
    )


def _delivered_to_wire(answer: Delivered) -> pb.CopysetAnswer:
    return _Tell(
        kind=_Tell.DELIVERED,
        records=[record_to_wire(record) for record in answer.records],
        next_lsn=answer.next_lsn,
        trimmed=answer.trimmed,
        released=answer.released,
        lost_through=answer.lost_through,
        damaged=[pb.CopysetRange(first=first, last=last) for first, last in answer.damaged],
    )


def answer_from_wire(message: pb.CopysetAnswer, payload: memoryview) -> NodeAnswer:
    """Return the answer with its records verified; their batches are views into the payload."""
    match message.kind:
        case _Tell.STORED:
            return Stored()
        case _Tell.DONE:
            return Done()
        case _Tell.NOT_HERE:
            return NotHere()
        case _Tell.PREEMPTED:
            return Preempted(message.seal)
        case _Tell.OCCUPIED:
            return Occupied(message.next_lsn)
        case _Tell.REFUSED:
            return Refused(_trouble(message.trouble), message.reason)
        case _Tell.SEALED_AT:
            epochs = [EpochState(end.epoch, end.lng, end.last) for end in message.ends]
            return SealedAt(
                message.last_clean,
                message.trimmed,
                epochs,
                lost_through=message.lost_through,
                newer=message.next_lsn,
            )
        case _Tell.FOUND:
            return FoundBatch(tuple(message.lsns), message.certain)
        case _Tell.DIGESTED:
            records = list(_records(message.records, payload))
            return Digested(records, message.more, message.trimmed)
        case _Tell.DELIVERED:
            return _delivered(message, payload)
    raise Corrupt(f"no answer of kind {message.kind} is known here")


def _delivered(message: pb.CopysetAnswer, payload: memoryview) -> Delivered:
    return Delivered(
        list(_records(message.records, payload)),
        message.next_lsn,
        message.trimmed,
        message.released,
        message.lost_through,
        [(damaged.first, damaged.last) for damaged in message.damaged],
    )


def _trouble(text: str) -> Trouble:
    """Return the kind of trouble; one of a newer node counts as DISABLED."""
    return Trouble(text) if text in set(Trouble) else Trouble.DISABLED


def _end_to_wire(end: EpochEnd) -> pb.CopysetEnd:
    return pb.CopysetEnd(
        epoch=end.epoch,
        lng=end.lng,
        last=end.last,
        seal=end.seal,
        wave=end.wave,
        uncertain=not end.exact,
    )


def _end_from_wire(end: pb.CopysetEnd) -> EpochEnd:
    return EpochEnd(end.epoch, end.lng, end.last, end.seal, end.wave, not end.uncertain)


# ---- the epoch store


def store_request_to_wire(request: EpochStoreRequest) -> pb.EpochStoreRequest:
    kinds = pb.EpochStoreRequest
    match request:
        case GetState(log):
            return kinds(kind=kinds.GET, loglet_id=log)
        case Activate(log, _, expected):
            return kinds(kind=kinds.ACTIVATE, loglet_id=log, expected=expected)
        case SetClean(log, by, end):
            return kinds(kind=kinds.SET_CLEAN, loglet_id=log, by=by, end=_end_to_wire(end))
        case Finish(log, epoch, last):
            final = pb.CopysetEnd(epoch=epoch, last=last)
            return kinds(kind=kinds.FINISH, loglet_id=log, end=final)
        case Contradict(log, epoch, node, lsn):
            return kinds(kind=kinds.CONTRADICT, loglet_id=log, by=node, epoch=epoch, tail=lsn)


def store_request_from_wire(message: pb.EpochStoreRequest, node: NodeId) -> EpochStoreRequest:
    """Return a node's request to the epoch store."""
    kinds, log = pb.EpochStoreRequest, message.loglet_id
    match message.kind:
        case kinds.GET:
            return GetState(log)
        case kinds.ACTIVATE:
            return Activate(log, node, message.expected)
        case kinds.SET_CLEAN:
            return SetClean(log, message.by, _end_from_wire(message.end))
        case kinds.FINISH:
            return Finish(log, message.end.epoch, message.end.last)
        case kinds.CONTRADICT:
            return Contradict(log, message.epoch, message.by, message.tail)
    raise InvalidArgument(f"the epoch store takes no requests of kind {message.kind}")


class KnownNode(NamedTuple):
    """A node of the cluster, as the metadata repository sees it."""

    node_id: NodeId
    address: str
    alive: bool
    draining: bool = False


def state_to_wire(loglet: LogId, state: LogState, nodes: Iterable[KnownNode]) -> pb.CopysetState:
    return pb.CopysetState(
        loglet_id=loglet,
        epoch=state.epoch,
        sequencer=state.sequencer,
        history=[_epochs_to_wire(metadata) for metadata in state.history],
        last_clean=state.last_clean,
        tail=state.tail,
        closed=state.closed,
        trimmed=state.trimmed,
        ends=map(_end_to_wire, state.ends),
        told=[
            pb.CopysetEnd(epoch=each.epoch, last=each.last, uncertain=not each.final)
            for each in state.told
        ],
        stamp=state.stamp,
        nodes=[
            pb.CopysetNode(
                storage_node_id=node.node_id,
                address=node.address,
                alive=node.alive,
                draining=node.draining,
            )
            for node in nodes
        ],
    )


def state_from_wire(message: pb.CopysetState) -> tuple[LogState, Mapping[NodeId, KnownNode]]:
    """Return the state, and the nodes by their ids."""
    if not message.history:
        raise InvalidArgument(f"a state of loglet {message.loglet_id} without nodes")
    state = LogState(
        message.epoch,
        message.sequencer,
        tuple(_epochs_from_wire(epochs) for epochs in message.history),
        message.last_clean,
        message.tail,
        message.closed,
        message.trimmed,
        tuple(map(_end_from_wire, message.ends)),
        tuple(Acknowledged(each.epoch, each.last, not each.uncertain) for each in message.told),
        message.stamp,
    )
    nodes = (
        KnownNode(node.storage_node_id, node.address, node.alive, node.draining)
        for node in message.nodes
    )
    return state, {node.node_id: node for node in nodes}


def _epochs_to_wire(metadata: EpochMetadata) -> pb.CopysetEpochs:
    return pb.CopysetEpochs(
        since=metadata.since,
        nodeset=metadata.nodes,
        locations=[member.location for member in metadata.nodeset],
        replication=metadata.replication,
    )


def _epochs_from_wire(message: pb.CopysetEpochs) -> EpochMetadata:
    locations = [*message.locations, *[""] * (len(message.nodeset) - len(message.locations))]
    members = map(Member, message.nodeset, locations)
    return EpochMetadata(message.since, tuple(members), message.replication)
