"""Converts between the types of core/copyset and wire messages. Pure.

The core's `log` is the id of a loglet; a log may have several. An invalid request raises
InvalidArgument, an invalid answer Corrupt, which counts as no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from loomlog.batch import check_at
from loomlog.core.copyset import messages as core
from loomlog.core.copyset.messages import EpochStoreRequest, LogState, NodeAnswer, NodeRequest
from loomlog.core.copyset.nodeset import EpochMetadata, Member, Trouble, index_of, node_of
from loomlog.core.copyset.presumption import Presume, Presumption
from loomlog.core.copyset.record import (
    EPOCH_MAX,
    OFFSET_MAX,
    Epoch,
    Kind,
    Record,
    epoch_of,
    offset_of,
)
from loomlog.errors import Corrupt, InvalidArgument, LoomError
from loomlog.limits import SEND_BUFFER_BYTES
from loomlog.types import Buffer, LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.payload import padded, with_batches
from loomlog.wire.shapes import Family, Field, Parts, Shape, negated, nested, repeated

READ_BYTES_MAX: Final = SEND_BUFFER_BYTES  # of one answer; the last record may exceed it

_Ask = pb.CopysetRequest
_Tell = pb.CopysetAnswer
_Store = pb.EpochStoreRequest
_KINDS: Final = frozenset(Kind)
_NO_BATCH: Final = memoryview(b"")


# ---- records

_RECORD: Final = Shape(
    Record,
    pb.CopysetRecord,
    "first",
    "count",
    Field("kind", lambda message, _: Kind(message.kind)),
    "timestamp_us",
    Field("copyset", lambda message, _: tuple(message.copyset)),
    "wave",
    "lng",
    "recovered",
    Field("size", lambda _, batch: batch, len),
)


def _record(message: pb.CopysetRecord, batch: memoryview) -> Record:
    """Return the record, verified with its batch."""
    first, count = message.first, message.count
    offset = offset_of(first)
    if not (0 < epoch_of(first) <= EPOCH_MAX and offset and count):
        raise Corrupt(f"there is no record of {count} entries at {first}")
    if offset + count - 1 > OFFSET_MAX or message.kind not in _KINDS:
        raise Corrupt(f"no record of kind {message.kind} with {count} entries can be at {first}")
    if batch:
        check_at(batch, first, count)
    return _RECORD.from_wire(message, batch)


def _records(message: pb.CopysetAnswer, payload: memoryview) -> list[Record]:
    return [_record(head, batch) for head, batch in with_batches(message.records, payload)]


def _records_to_wire(records: Iterable[Record]) -> Iterator[pb.CopysetRecord]:
    return map(_RECORD.to_wire, records)


# ---- to a storage node


def _sent(message: pb.CopysetRequest, batch: memoryview) -> Record:
    try:
        return _record(message.record, batch)
    except LoomError as error:
        raise InvalidArgument(f"a record for log {message.loglet_id}: {error}") from None


def _sent_bare(message: pb.CopysetRequest, _: memoryview) -> Record:
    return _sent(message, _NO_BATCH)


def _bare_to_wire(record: Record) -> pb.CopysetRecord:
    return _RECORD.to_wire(record._replace(batch=b""))


def _ranges(name: str, collect: Callable[[Iterable[tuple[int, int]]], object]) -> Field:
    return Field(
        name,
        lambda message, _: collect((part.first, part.last) for part in getattr(message, name)),
        lambda ranges: [pb.CopysetRange(first=first, last=last) for first, last in ranges],
    )


_END: Final = Shape(
    core.EpochEnd,
    pb.CopysetEnd,
    "epoch",
    "lng",
    "last",
    "seal",
    "wave",
    negated("uncertain"),
    _ranges("found", tuple),
    Field("crashed", lambda message, _: tuple(message.crashed), list),
    Field("absent", lambda message, _: tuple(message.absent), list),
    _ranges("lost", tuple),
)
_BYTES_MAX: Final = Field("bytes_max", lambda message, _: min(message.bytes_max, READ_BYTES_MAX))
_BATCHES: Final = negated("without_batches")
_KNOWN_DOWN: Final = Field("known_down", lambda message, _: frozenset(message.known_down), sorted)

_REQUESTS: Final = Family[NodeRequest, pb.CopysetRequest](
    pb.CopysetRequest,
    {
        _Ask.STORE: (core.Store, "loglet_id", Field("record", _sent, _RECORD.to_wire), "draining"),
        _Ask.AMEND: (core.Amend, "loglet_id", Field("record", _sent_bare, _bare_to_wire)),
        _Ask.RELEASE: (core.Release, "loglet_id", "lsn"),
        _Ask.SEAL: (core.Seal, "loglet_id", "epoch", "wave", "recovered"),
        _Ask.DIGEST: (
            core.Digest,
            "loglet_id",
            "epoch",
            "lsn",
            "seal",
            _BYTES_MAX,
            _BATCHES,
            "wave",
        ),
        _Ask.CLEAN: (core.Clean, "loglet_id", "seal", nested("end", _END)),
        _Ask.READ: (
            core.Read,
            "loglet_id",
            "lsn",
            "until",
            _BYTES_MAX,
            _KNOWN_DOWN,
            "everything",
            _BATCHES,
        ),
        _Ask.TRIM: (core.Trim, "loglet_id", "lsn"),
        _Ask.FORGET: (core.Forget, "loglet_id"),
        _Ask.RESTORE: (
            core.Restore,
            "loglet_id",
            Field("record", _sent, _RECORD.to_wire),
            nested("end", _END),
            "version",
        ),
        _Ask.REASSIGN: (
            core.Reassign,
            "loglet_id",
            Field("record", _sent_bare, _bare_to_wire),
            "version",
        ),
        _Ask.FIND: (core.FindBatch, "loglet_id", "producer_id", "sequence"),
    },
    more=("stamp", "shard"),
)


_WITH_BATCHES: Final = (core.Store, core.Restore)


def request_to_wire(
    shard: ShardId,
    request: NodeRequest,
    stamp: int,
    wait_ms: int = 0,
    into: pb.CopysetRequest | None = None,
) -> tuple[pb.CopysetRequest, Buffer]:
    """Return the message to the node of a shard, which is `into` if that is given, and its payload.
    A `Read` that finds nothing may wait."""
    message = pb.CopysetRequest() if into is None else into
    _REQUESTS.fill[type(request)](message, request, stamp, index_of(shard))
    if wait_ms:
        message.wait_ms = wait_ms
    return message, request.record.batch if isinstance(request, _WITH_BATCHES) else b""


def request_from_wire(message: pb.CopysetRequest, payload: memoryview) -> NodeRequest:
    """Return the request, with records verified and bounds checked."""
    decode = _REQUESTS.from_wire.get(message.kind)
    if decode is None:
        raise InvalidArgument(f"no request of kind {message.kind} is known here: upgrade this node")
    return decode(message, payload)


# ---- from a storage node


def _trouble(message: pb.CopysetAnswer, _: memoryview) -> Trouble:
    """Return the kind of trouble; one of a newer node counts as DISABLED."""
    return Trouble(message.trouble) if message.trouble in set(Trouble) else Trouble.DISABLED


_EPOCH: Final = Shape(core.EpochState, pb.CopysetEnd, "epoch", "lng", "last")
_RECORDS: Final = Field("records", _records, _records_to_wire)

_ANSWERS: Final = Family[NodeAnswer, pb.CopysetAnswer](
    pb.CopysetAnswer,
    {
        _Tell.STORED: (core.Stored,),
        _Tell.DONE: (core.Done,),
        _Tell.NOT_HERE: (core.NotHere,),
        _Tell.PREEMPTED: (core.Preempted, "seal"),
        _Tell.OCCUPIED: (core.Occupied, "next_lsn"),
        _Tell.SUPERSEDED: (core.Superseded, "version"),
        _Tell.REFUSED: (core.Refused, Field("trouble", _trouble), "reason"),
        _Tell.SEALED_AT: (
            core.SealedAt,
            "last_clean",
            "trimmed",
            repeated("ends", _EPOCH),
            "lost_through",
            "next_lsn",
            "life",
        ),
        _Tell.FOUND: (
            core.FoundBatch,
            Field("lsns", lambda message, _: tuple(message.lsns)),
            "certain",
        ),
        _Tell.DIGESTED: (core.Digested, _RECORDS, "more", "trimmed"),
        _Tell.DELIVERED: (
            core.Delivered,
            _RECORDS,
            "next_lsn",
            "trimmed",
            "released",
            "lost_through",
            _ranges("damaged", list),
            "life",
        ),
    },
)


_WITH_RECORDS: Final = (core.Digested, core.Delivered)


def answer_to_wire(
    answer: NodeAnswer, into: pb.CopysetAnswer | None = None
) -> tuple[pb.CopysetAnswer, Sequence[Buffer]]:
    """Return the message, which is `into` if that is given, and its payload."""
    message = pb.CopysetAnswer() if into is None else into
    _ANSWERS.fill[type(answer)](message, answer)
    if isinstance(answer, _WITH_RECORDS):
        return message, list(padded(record.batch for record in answer.records))
    return message, ()


def answer_frame(request_id: int, answer: NodeAnswer) -> tuple[pb.Frame, Sequence[Buffer]]:
    """Return the answer to a request, and its payload."""
    frame = pb.Frame()
    frame.id, frame.reply = request_id, True
    return frame, answer_to_wire(answer, frame.copyset_answer)[1]


def answer_from_wire(message: pb.CopysetAnswer, payload: memoryview) -> NodeAnswer:
    """Return the answer with its records verified; their batches are views into the payload."""
    decode = _ANSWERS.from_wire.get(message.kind)
    if decode is None:
        raise Corrupt(f"no answer of kind {message.kind} is known here")
    return decode(message, payload)


# ---- the epoch store

# The node is known from the connection: it takes an epoch only for itself.
_ASKING_NODE: Final = Parts({}, lambda _, node: node)

_STORE_REQUESTS: Final = Family[EpochStoreRequest, pb.EpochStoreRequest](
    pb.EpochStoreRequest,
    {
        _Store.GET: (core.GetState, "loglet_id"),
        _Store.ACTIVATE: (core.Activate, "loglet_id", _ASKING_NODE, "expected"),
        _Store.SET_CLEAN: (core.SetClean, "loglet_id", "by", nested("end", _END)),
        _Store.USE_SHORT: (
            core.UseShort,
            "loglet_id",
            "by",
            "epoch",
            Field("shards", lambda message, _: tuple(message.shards)),
        ),
        _Store.PRESUME: (Presume, "loglet_id", "by", "epoch", "wave", "lng", "tail"),
        _Store.FINISH: (core.Finish, "loglet_id", "epoch", "tail"),
        _Store.MISS: (core.Miss, "loglet_id", "epoch", "tail"),
        _Store.CONTRADICT: (core.Contradict, "loglet_id", "epoch", "by", "tail"),
    },
)


def store_request_to_wire(request: EpochStoreRequest) -> pb.EpochStoreRequest:
    message = pb.EpochStoreRequest()
    _STORE_REQUESTS.fill[type(request)](message, request)
    return message


def store_request_from_wire(message: pb.EpochStoreRequest, node: NodeId) -> EpochStoreRequest:
    """Return a node's request to the epoch store."""
    decode = _STORE_REQUESTS.from_wire.get(message.kind)
    if decode is None:
        raise InvalidArgument(f"the epoch store takes no requests of kind {message.kind}")
    return decode(message, node)


class KnownNode(NamedTuple):
    """A node of the cluster, as the metadata repository sees it."""

    node_id: NodeId
    address: str
    alive: bool
    draining: bool = False
    full: str = ""  # why shards of it take no new records for lack of space
    full_shards: tuple[int, ...] = ()  # by index


def _epochs(message: pb.CopysetEpochs) -> EpochMetadata:
    locations = [*message.locations, *[""] * (len(message.nodeset) - len(message.locations))]
    members = map(Member, message.nodeset, locations)
    short = tuple(tuple(each.shards) for each in message.short)
    return EpochMetadata(message.since, tuple(members), message.replication, short)


def _epochs_to_wire(metadata: EpochMetadata) -> pb.CopysetEpochs:
    return pb.CopysetEpochs(
        since=metadata.since,
        nodeset=metadata.shards,
        locations=[member.location for member in metadata.nodeset],
        replication=metadata.replication,
        short=[pb.ShortCopyset(shards=shards) for shards in metadata.short],
    )


_NODE: Final = Shape(
    KnownNode,
    pb.CopysetNode,
    "storage_node_id",
    "address",
    "alive",
    "draining",
    "full",
    Field("full_shards", lambda message, _: tuple(message.full_shards), list),
)
_ACKNOWLEDGED: Final = Shape(
    core.Acknowledged, pb.CopysetEnd, "epoch", "last", negated("uncertain")
)
_TAKER: Final = Shape(core.Taker, pb.CopysetTaker, "epoch", "storage_node_id")
_LIFE: Final = Shape(core.Life, pb.CopysetLife, "epoch", "storage_node_id", "life")
_PRESUMPTION: Final = Shape(
    Presumption, pb.CopysetPresumption, "epoch", "by", "wave", "lng", "good"
)
_STATE: Final = Shape(
    LogState,
    pb.CopysetState,
    "epoch",
    "sequencer",
    Field(
        "history",
        lambda message, _: tuple(map(_epochs, message.history)),
        lambda history: map(_epochs_to_wire, history),
    ),
    "last_clean",
    "tail",
    "closed",
    "trimmed",
    repeated("ends", _END, tuple),
    repeated("told", _ACKNOWLEDGED, tuple),
    "stamp",
    "least",
    repeated("takers", _TAKER, tuple),
    repeated("lives", _LIFE, tuple),
    repeated("witnesses", _LIFE, tuple),
    repeated("presumed", _PRESUMPTION, tuple),
    "chosen",
    more=("loglet_id", "nodes"),
)


def state_to_wire(loglet: LogId, state: LogState, nodes: Iterable[KnownNode]) -> pb.CopysetState:
    return _STATE.to_wire(state, loglet, map(_NODE.to_wire, nodes))


def gone_shards(message: pb.CopysetState) -> dict[ShardId, Epoch]:
    """Return the absent shards that lost their copies, with the last affected epoch."""
    alive = {node.storage_node_id for node in message.nodes if node.alive}
    lost = [each for each in message.rebuilt if each.lost and node_of(each.shard) not in alive]
    return {each.shard: each.epoch for each in lost}


def state_from_wire(message: pb.CopysetState) -> tuple[LogState, Mapping[NodeId, KnownNode]]:
    """Return the state, and the nodes by their ids."""
    if not message.history:
        raise InvalidArgument(f"a state of loglet {message.loglet_id} without nodes")
    nodes = map(_NODE.from_wire, message.nodes)
    return _STATE.from_wire(message), {node.node_id: node for node in nodes}
