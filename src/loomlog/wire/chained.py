"""Converts between the types of core/chained and wire messages. Pure.

The core's `log_id` is the id of a loglet; a log may have several. An invalid request raises
InvalidArgument. Answers raise no errors: one of an unknown kind becomes `Lost`, and one that
cannot be decoded `Refused`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

from loomlog.batch import check_at
from loomlog.core.chained import messages as core
from loomlog.core.chained.chain import Block, Extent, Projection, Replica, junk
from loomlog.core.chained.messages import Answer, Request, Ticket
from loomlog.core.requests import Lost
from loomlog.errors import InvalidArgument, LoomError
from loomlog.limits import MIB, POSITION_MAX
from loomlog.types import Buffer, Glsn, LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.payload import padded, with_batches
from loomlog.wire.shapes import Family, Field, Parts, Shape, repeated

FETCH_BYTES_MAX: Final = MIB  # of one answer; the last block may exceed it

_Ask = pb.ChainRequest
_Tell = pb.ChainAnswer

# Of the metadata repository, over the connection that a node made to it.
ORDERS: Final = frozenset({_Ask.TRIM, _Ask.SEAL, _Ask.CREATE, _Ask.PULL, _Ask.REMOVE})


def _block(
    first: Glsn, count: int, batch: memoryview, acknowledged: tuple[Glsn, ...] = ()
) -> Block:
    """Return the block; raise an error if its batch does not match its place."""
    if not batch:
        return junk(first, count)
    header = check_at(batch, first, count)
    return Block(first, count, header.producer_id, header.sequence, batch, acknowledged)


# ---- to a replica


def _block_sent(message: pb.ChainRequest, payload: memoryview) -> Block:
    acknowledged = _acknowledged(message, payload)
    try:
        return _block(message.position, message.count, payload, acknowledged)
    except LoomError as error:
        raise InvalidArgument(f"a block for {message.position}: {error}") from None


def _acknowledged(message: pb.ChainRequest, _: memoryview) -> tuple[Glsn, ...]:
    """Return the addresses of blocks that were acknowledged."""
    if not message.acknowledged:
        return ()
    addresses = message.acknowledged[:]
    if len(addresses) > core.ACKNOWLEDGED_MAX:
        raise InvalidArgument(f"{len(addresses)} acknowledged blocks are too many at a time")
    if min(addresses) < 1 or max(addresses) > POSITION_MAX:
        raise InvalidArgument("a block was acknowledged where none can be")
    return tuple(addresses)


def _source(message: pb.ChainRequest, _: memoryview) -> Replica:
    source = message.source
    return Replica(source.storage_node_id, message.loglet_id, message.chain, source.birth)


def _source_to_wire(source: Replica) -> pb.ChainReplica:
    return pb.ChainReplica(storage_node_id=source.node_id, birth=source.birth)


def _before_us(message: pb.ChainRequest, _: memoryview) -> int | None:
    return message.before_us if message.HasField("before_us") else None


def _limit(limit_max: int) -> Field:
    return Field("limit", lambda message, _: max(1, min(message.limit, limit_max)))


_REQUESTS: Final = Family[Request, pb.ChainRequest](
    pb.ChainRequest,
    {
        _Ask.WRITE: (
            core.Write,
            "epoch",
            Parts(
                {"position": "first", "count": "count", "acknowledged": "acknowledged"}, _block_sent
            ),
            None,  # most clusters need no proofs
        ),
        _Ask.READ: (core.Read, "epoch", "position", "with_acknowledged"),
        _Ask.BEFORE: (core.Before, "epoch", "position"),
        _Ask.LIST: (
            core.List,
            "epoch",
            "position",
            _limit(core.LIST_MAX),
            Field("before_us", _before_us),
            "without_junk",
            "with_acknowledged",
        ),
        _Ask.MEASURE: (core.Measure, "epoch", "position", "last", _limit(core.LIST_MAX)),
        _Ask.FETCH: (core.Fetch, "epoch", "position", _limit(FETCH_BYTES_MAX), "salvage", "last"),
        _Ask.CHECK: (core.Check, "epoch"),
        _Ask.END: (core.FindEnd, "epoch"),
        _Ask.ACKNOWLEDGE: (core.Acknowledge, "epoch", Field("acknowledged", _acknowledged)),
        _Ask.TRIM: (core.Trim, "epoch", "position"),
        _Ask.SEAL: (core.Seal, "epoch", "salvage"),
        _Ask.CREATE: (core.Create,),
        _Ask.PULL: (
            core.Pull,
            "epoch",
            Field("source", _source, _source_to_wire),
            "position",
            _limit(FETCH_BYTES_MAX),
            "salvage",
            "last",
        ),
        _Ask.REMOVE: (core.Remove,),
    },
    more=("loglet_id", "chain", "birth"),
)


def request_to_wire(
    replica: Replica, request: Request, wait_ms: int = 0, into: pb.ChainRequest | None = None
) -> tuple[pb.ChainRequest, Buffer]:
    """Return the message, which is `into` if that is given, and its payload. A `Fetch` that finds
    nothing may wait."""
    message = pb.ChainRequest() if into is None else into
    _, log_id, chain, birth = replica
    _REQUESTS.fill[type(request)](message, request, log_id, chain, birth)
    if wait_ms:
        message.wait_ms = wait_ms
    if not isinstance(request, core.Write):
        return message, b""
    if request.proof:
        message.proof = request.proof
    return message, request.block.batch


def request_from_wire(
    message: pb.ChainRequest, node_id: NodeId, payload: memoryview
) -> tuple[Replica, Request]:
    """Return the replica and the request, with blocks verified and bounds checked, but without the
    proof of a block's ticket."""
    decode = _REQUESTS.from_wire.get(message.kind)
    if decode is None:
        raise InvalidArgument(f"no request of kind {message.kind} is known here: upgrade this node")
    replica = Replica(node_id, message.loglet_id, message.chain, message.birth)
    return replica, decode(message, payload)


# ---- from a replica


def _extents(blocks: Sequence[Block]) -> list[pb.BlockExtent]:
    return [
        pb.BlockExtent(first=block.first, count=block.count, size=len(block.batch))
        for block in blocks
    ]


def _blocks(message: pb.ChainAnswer, payload: memoryview) -> list[Block]:
    return [
        _block(extent.first, extent.count, batch)
        for extent, batch in with_batches(message.extents, payload)
    ]


def _only_block(message: pb.ChainAnswer, payload: memoryview) -> Block:
    (block,) = _blocks(message, payload)
    if not message.acknowledged:
        return block
    return block._replace(acknowledged=tuple(message.acknowledged))


_EXTENT: Final = Shape(Extent, pb.BlockExtent, "first", "count")

_ANSWERS: Final = Family[Answer, pb.ChainAnswer](
    pb.ChainAnswer,
    {
        _Tell.KIND_UNSPECIFIED: (Lost,),
        _Tell.STORED: (core.Stored,),
        _Tell.WRITTEN: (core.Written,),
        _Tell.DONE: (core.Done,),
        _Tell.FOUND: (core.Found, Field("extents", _only_block, lambda block: _extents([block]))),
        _Tell.MISSING: (core.Missing, "position"),
        _Tell.TRIMMED_TO: (core.TrimmedTo, "position"),
        _Tell.LISTED: (
            core.Listed,
            repeated("extents", _EXTENT),
            "more",
            "position",
            Field("acknowledged", lambda message, _: tuple(message.acknowledged)),
        ),
        _Tell.MEASURED: (core.MeasuredBlocks, "position", "size"),
        _Tell.FETCHED: (core.Fetched, Field("extents", _blocks, _extents), "more"),
        _Tell.PULLED: (core.Pulled, "end", "size", "more"),
        _Tell.SEALED_AT: (core.SealedAt, "end", "position", "life"),
        _Tell.BEYOND: (core.Beyond, "end"),
        _Tell.EPOCH_OVER: (core.EpochOver, "epoch"),
        _Tell.REFUSED: (core.Refused, "reason"),
    },
)


def answer_to_wire(
    answer: Answer, into: pb.ChainAnswer | None = None
) -> tuple[pb.ChainAnswer, Sequence[Buffer]]:
    """Return the message, which is `into` if that is given, and its payload."""
    message = pb.ChainAnswer() if into is None else into
    _ANSWERS.fill[type(answer)](message, answer)
    if isinstance(answer, core.Found):
        if answer.block.acknowledged:
            message.acknowledged.extend(answer.block.acknowledged)
        return message, [answer.block.batch]
    if isinstance(answer, core.Fetched):
        return message, list(padded(block.batch for block in answer.blocks))
    return message, ()


def answer_frame(request_id: int, answer: Answer) -> tuple[pb.Frame, Sequence[Buffer]]:
    """Return the answer to a request, and its payload."""
    frame = pb.Frame()
    frame.id, frame.reply = request_id, True
    return frame, answer_to_wire(answer, frame.chain_answer)[1]


def answer_from_wire(message: pb.ChainAnswer, payload: memoryview) -> Answer:
    """Return the answer with its blocks verified; they are views into the payload."""
    decode = _ANSWERS.from_wire.get(message.kind)
    if decode is None:
        return Lost()  # from a newer node; the request may have been carried out
    try:
        return decode(message, payload)
    except (LoomError, ValueError) as error:
        return core.Refused(f"the answer cannot be used: {error}")


# ---- to the sequencer, and from it


def _ticket(message: pb.SequencerAnswer, _: memoryview) -> Ticket:
    return Ticket(message.first, message.count, message.epoch, message.proof)


def _expected_tail(message: pb.SequencerRequest, _: memoryview) -> Glsn | None:
    return message.expected_tail if message.HasField("expected_tail") else None


_SEQUENCER_REQUESTS: Final = Family[Request, pb.SequencerRequest](
    pb.SequencerRequest,
    {
        pb.SequencerRequest.NEXT: (
            core.Next,
            "epoch",
            "count",
            Field("expected_tail", _expected_tail),
            "proves",
        ),
        pb.SequencerRequest.HOLDING: (core.FindTicket, "epoch", "position"),
        pb.SequencerRequest.FIND_END: (core.FindEnd, "epoch"),
    },
    more=("loglet_id",),
)
_SEQUENCER_ANSWERS: Final = Family[Answer, pb.SequencerAnswer](
    pb.SequencerAnswer,
    {
        pb.SequencerAnswer.HANDED_OUT: (
            core.HandedOut,
            Parts({name: name for name in ("first", "count", "epoch", "proof")}, _ticket),
        ),
        pb.SequencerAnswer.FORGOTTEN: (core.Forgotten,),
        pb.SequencerAnswer.BEYOND: (core.Beyond, "end"),
        pb.SequencerAnswer.EPOCH_OVER: (core.EpochOver, "epoch"),
        pb.SequencerAnswer.REFUSED: (core.Refused, "reason"),
    },
)


def sequencer_request_to_wire(
    loglet_id: LogId, request: Request, into: pb.SequencerRequest | None = None
) -> pb.SequencerRequest:
    """Return the message, which is `into` if that is given."""
    message = pb.SequencerRequest() if into is None else into
    _SEQUENCER_REQUESTS.fill[type(request)](message, request, loglet_id)
    return message


def sequencer_request_from_wire(message: pb.SequencerRequest) -> tuple[LogId, Request]:
    decode = _SEQUENCER_REQUESTS.from_wire.get(message.kind)
    if decode is None:
        raise InvalidArgument(
            f"no request of kind {message.kind} is known here: upgrade the metadata repository"
        )
    return message.loglet_id, decode(message)


def sequencer_answer_to_wire(
    answer: Answer, into: pb.SequencerAnswer | None = None
) -> pb.SequencerAnswer:
    """Return the message, which is `into` if that is given."""
    message = pb.SequencerAnswer() if into is None else into
    _SEQUENCER_ANSWERS.fill[type(answer)](message, answer)
    return message


def sequencer_answer_from_wire(message: pb.SequencerAnswer) -> Answer:
    decode = _SEQUENCER_ANSWERS.from_wire.get(message.kind)
    return Lost() if decode is None else decode(message)


class TicketProofs:
    """Creates the proofs of tickets, by which replicas verify what the sequencer handed out.
    Clients pass them on, but cannot create any, because they do not know the cluster's secret."""

    def __init__(self, cluster_secret: str) -> None:
        self._key = hmac.digest(cluster_secret.encode(), b"tickets of chained logs", "sha256")

    def make(self, loglet: LogId, chain: int, epoch: int, first: Glsn, count: int) -> bytes:
        """Return the proof that the positions of a block on this chain were handed out."""
        content = _TICKET.pack(loglet, chain, epoch, first, count)
        return hashlib.blake2b(content, digest_size=16, key=self._key).digest()

    def is_right(
        self, proof: bytes, loglet: LogId, chain: int, epoch: int, first: Glsn, count: int
    ) -> bool:
        """Return whether it is the proof of these positions."""
        return hmac.compare_digest(proof, self.make(loglet, chain, epoch, first, count))


_TICKET: Final = Struct("<IIQQI")  # as wide as the fields of messages

# ---- projections


def projection_to_wire(projection: Projection, addresses: Mapping[NodeId, str]) -> pb.Projection:
    """Convert a projection, with the known addresses of its nodes."""
    return pb.Projection(
        loglet_id=projection.log_id,
        epoch=projection.epoch,
        first=projection.first,
        start=projection.start,
        chains=[
            pb.Chain(
                replicas=[
                    pb.ChainReplica(
                        storage_node_id=replica.node_id,
                        address=addresses.get(replica.node_id, ""),
                        birth=replica.birth,
                    )
                    for replica in chain
                ]
            )
            for chain in projection.chains
        ],
        sequencer=projection.sequencer,
        closed=projection.closed,
        lost=projection.lost,
        least=projection.least,
        lost_from=projection.lost_from,
    )


def projection_from_wire(message: pb.Projection) -> tuple[Projection, dict[NodeId, str]]:
    """Return the projection and the addresses of its nodes."""
    if not message.chains or not all(chain.replicas for chain in message.chains):
        raise InvalidArgument(f"a projection of loglet {message.loglet_id} without replicas")
    addresses = {
        replica.storage_node_id: replica.address
        for chain in message.chains
        for replica in chain.replicas
        if replica.address
    }
    chains = tuple(
        tuple(
            Replica(replica.storage_node_id, message.loglet_id, index, replica.birth)
            for replica in chain.replicas
        )
        for index, chain in enumerate(message.chains)
    )
    projection = Projection(
        message.loglet_id,
        message.epoch,
        message.first,
        message.start,
        chains,
        message.sequencer,
        message.closed,
        tuple(message.lost),
        message.least,
        tuple(message.lost_from),
    )
    return projection, addresses
