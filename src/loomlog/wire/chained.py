"""Converts between the types of core/chained and wire messages. Pure.

The core's `log_id` is the id of a loglet; a log may have several. A request that makes
no sense raises InvalidArgument. An answer raises nothing: one that cannot be used becomes `Refused`
if something was read, else `Lost`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from loomlog.batch import aligned, check
from loomlog.core.chained.chain import Block, Extent, Projection, Replica, junk
from loomlog.core.chained.messages import (
    LIST_MAX,
    Answer,
    Before,
    Beyond,
    Check,
    Create,
    Done,
    EpochOver,
    Fetch,
    Fetched,
    FindEnd,
    Forgotten,
    Found,
    HandedOut,
    Holding,
    List,
    Listed,
    Missing,
    Next,
    Pull,
    Pulled,
    Read,
    Refused,
    Remove,
    Request,
    Seal,
    SealedAt,
    Stored,
    Ticket,
    Trim,
    TrimmedTo,
    Write,
    Written,
)
from loomlog.core.requests import Lost
from loomlog.errors import Corrupt, InvalidArgument, LoomError
from loomlog.limits import ALIGNMENT, MIB
from loomlog.types import Buffer, Glsn, LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb

FETCH_BYTES_MAX: Final = MIB  # of one answer; the last block goes over it

_Ask = pb.ChainRequest
_Tell = pb.ChainAnswer
# Needed by every append. Looked up once, because that is slow.
_WRITE: Final = _Ask.WRITE
_NEXT: Final = pb.SequencerRequest.NEXT
_HANDED_OUT: Final = pb.SequencerAnswer.HANDED_OUT

_PADDING: Final = bytes(ALIGNMENT)

# Of the metadata repository, over the connection that a node made to it.
ORDERS: Final = frozenset({_Ask.TRIM, _Ask.SEAL, _Ask.CREATE, _Ask.PULL, _Ask.REMOVE})


# ---- to a replica


def request_to_wire(
    replica: Replica, request: Request, *, wait_ms: int = 0
) -> tuple[pb.ChainRequest, Buffer]:
    """Return the message and its payload. A `Fetch` that finds nothing may wait."""
    if isinstance(request, Write):
        return _write_to_wire(replica, request.epoch, request.block), request.block.batch
    message = pb.ChainRequest(
        loglet_id=replica.log_id,
        chain=replica.chain,
        birth=replica.birth,
        epoch=getattr(request, "epoch", 0),
        wait_ms=wait_ms,
    )
    match request:
        case Read(_, position):
            message.kind, message.position = _Ask.READ, position
        case Before(_, position):
            message.kind, message.position = _Ask.BEFORE, position
        case List(_, position, blocks_max, before_us):
            message.kind, message.position, message.limit = _Ask.LIST, position, blocks_max
            if before_us is not None:
                message.before_us = before_us
        case Fetch(_, position, bytes_max, salvage):
            message.kind, message.position, message.limit = _Ask.FETCH, position, bytes_max
            message.salvage = salvage
        case Pull(_, source, position, bytes_max, salvage):
            message.kind, message.position, message.limit = _Ask.PULL, position, bytes_max
            message.salvage = salvage
            message.source.storage_node_id, message.source.birth = source.node_id, source.birth
        case Check():
            message.kind = _Ask.CHECK
        case FindEnd():
            message.kind = _Ask.END
        case Trim(_, position):
            message.kind, message.position = _Ask.TRIM, position
        case Seal(_, salvage):
            message.kind, message.salvage = _Ask.SEAL, salvage
        case Create():
            message.kind = _Ask.CREATE
        case Remove():
            message.kind = _Ask.REMOVE
        case _:
            raise InvalidArgument(f"{type(request).__name__} is nothing to ask of a replica")
    return message, b""


def _write_to_wire(replica: Replica, epoch: int, block: Block) -> pb.ChainRequest:
    """Build the message at once: most requests are writes."""
    return pb.ChainRequest(
        kind=_WRITE,
        loglet_id=replica.log_id,
        chain=replica.chain,
        birth=replica.birth,
        epoch=epoch,
        position=block.first,
        count=block.count,
    )


def request_from_wire(
    message: pb.ChainRequest, node_id: NodeId, payload: memoryview
) -> tuple[Replica, Request]:
    """Return the replica and the request, with blocks verified and bounds checked."""
    make = _REQUESTS.get(message.kind)
    if make is None:
        raise InvalidArgument(f"no request of kind {message.kind} is known here: upgrade this node")
    replica = Replica(node_id, message.loglet_id, message.chain, message.birth)
    return replica, make(message, payload)


def _block_sent(message: pb.ChainRequest, payload: memoryview) -> Block:
    try:
        return _block(message.position, message.count, payload)
    except LoomError as error:
        raise InvalidArgument(f"a block for {message.position}: {error}") from None


def _block(first: Glsn, count: int, batch: Buffer) -> Block:
    """Return the block; raise if its batch does not match its place."""
    if not len(batch):
        return junk(first, count)
    header = check(batch)
    if (header.first_position, header.first_llsn, header.count) != (first, first, count):
        raise Corrupt(
            f"its batch has {header.count} records from position {header.first_position} and "
            f"LLSN {header.first_llsn} on, not {count} from {first} on"
        )
    return Block(first, count, header.producer_id, header.sequence, batch)


def _fetched_max(message: pb.ChainRequest) -> int:
    return max(1, min(message.limit, FETCH_BYTES_MAX))


_REQUESTS: Final[Mapping[int, Callable[[pb.ChainRequest, memoryview], Request]]] = {
    _Ask.WRITE: lambda message, payload: Write(message.epoch, _block_sent(message, payload)),
    _Ask.READ: lambda message, _: Read(message.epoch, message.position),
    _Ask.BEFORE: lambda message, _: Before(message.epoch, message.position),
    _Ask.LIST: lambda message, _: List(
        message.epoch,
        message.position,
        max(1, min(message.limit, LIST_MAX)),
        message.before_us if message.HasField("before_us") else None,
    ),
    _Ask.FETCH: lambda message, _: Fetch(
        message.epoch, message.position, _fetched_max(message), message.salvage
    ),
    _Ask.CHECK: lambda message, _: Check(message.epoch),
    _Ask.END: lambda message, _: FindEnd(message.epoch),
    _Ask.TRIM: lambda message, _: Trim(message.epoch, message.position),
    _Ask.SEAL: lambda message, _: Seal(message.epoch, message.salvage),
    _Ask.CREATE: lambda message, _: Create(),
    _Ask.PULL: lambda message, _: Pull(
        message.epoch,
        Replica(
            message.source.storage_node_id, message.loglet_id, message.chain, message.source.birth
        ),
        message.position,
        _fetched_max(message),
        message.salvage,
    ),
    _Ask.REMOVE: lambda message, _: Remove(),
}


# ---- from a replica

# Answers that are nothing but a word. Frames get copies of these messages.
_WORDS_FROM_WIRE: Final[Mapping[int, Answer]] = {
    _Tell.STORED: Stored(),
    _Tell.WRITTEN: Written(),
    _Tell.DONE: Done(),
}
_WORDS_TO_WIRE: Final = {
    Stored: _Tell(kind=_Tell.STORED),
    Written: _Tell(kind=_Tell.WRITTEN),
    Done: _Tell(kind=_Tell.DONE),
}


def answer_to_wire(answer: Answer) -> tuple[pb.ChainAnswer, Sequence[Buffer]]:
    """Return the message, which must not be changed, and its payload."""
    word = _WORDS_TO_WIRE.get(type(answer))
    if word is not None:
        return word, ()
    match answer:
        case Found(block):
            return _Tell(kind=_Tell.FOUND, extents=_extents([block])), [block.batch]
        case Missing(trimmed):
            return _Tell(kind=_Tell.MISSING, position=trimmed), ()
        case TrimmedTo(position):
            return _Tell(kind=_Tell.TRIMMED_TO, position=position), ()
        case Listed(extents, more, young):
            listed = [pb.BlockExtent(first=first, count=count) for first, count in extents]
            return _Tell(kind=_Tell.LISTED, extents=listed, more=more, position=young), ()
        case Fetched(blocks, more):
            fetched = _Tell(kind=_Tell.FETCHED, extents=_extents(blocks), more=more)
            return fetched, list(_padded(blocks))
        case Pulled(end, size, more):
            return _Tell(kind=_Tell.PULLED, end=end, size=size, more=more), ()
        case SealedAt(end, trimmed):
            return _Tell(kind=_Tell.SEALED_AT, end=end, position=trimmed), ()
        case Beyond(end):
            return _Tell(kind=_Tell.BEYOND, end=end), ()
        case EpochOver(epoch):
            return _Tell(kind=_Tell.EPOCH_OVER, epoch=epoch), ()
        case Refused(reason):
            return _Tell(kind=_Tell.REFUSED, reason=reason), ()
        case Lost():
            return _Tell(), ()
    raise InvalidArgument(f"{type(answer).__name__} is no answer of a replica")


def _extents(blocks: Sequence[Block]) -> list[pb.BlockExtent]:
    return [
        pb.BlockExtent(first=block.first, count=block.count, size=len(block.batch))
        for block in blocks
    ]


def _padded(blocks: Sequence[Block]) -> Iterator[Buffer]:
    """Batches are padded themselves, so this adds nothing to them."""
    for block in blocks:
        yield block.batch
        if padding := -len(block.batch) % ALIGNMENT:
            yield _PADDING[:padding]


def answer_from_wire(message: pb.ChainAnswer, payload: memoryview) -> Answer:
    """Return the answer with its blocks verified; they are views into the payload."""
    word = _WORDS_FROM_WIRE.get(message.kind)
    if word is not None:
        return word
    match message.kind:
        case _Tell.FOUND | _Tell.LISTED | _Tell.FETCHED:
            return _read_from_wire(message, payload)
        case _Tell.MISSING:
            return Missing(message.position)
        case _Tell.TRIMMED_TO:
            return TrimmedTo(message.position)
        case _Tell.PULLED:
            return Pulled(message.end, message.size, message.more)
        case _Tell.SEALED_AT:
            return SealedAt(message.end, message.position)
        case _Tell.BEYOND:
            return Beyond(message.end)
        case _Tell.EPOCH_OVER:
            return EpochOver(message.epoch)
        case _Tell.REFUSED:
            return Refused(message.reason)
    return Lost()  # it says so; or it is of a newer node, and may mean that it was done


def _read_from_wire(message: pb.ChainAnswer, payload: memoryview) -> Answer:
    if message.kind == _Tell.LISTED:
        extents = [Extent(extent.first, extent.count) for extent in message.extents]
        return Listed(extents, message.more, message.position)
    try:
        blocks = list(_blocks(message, payload))
        if message.kind == _Tell.FETCHED:
            return Fetched(blocks, message.more)
        (block,) = blocks
    except (LoomError, ValueError) as error:
        return Refused(f"the answer cannot be used: {error}")
    return Found(block)


def _blocks(message: pb.ChainAnswer, payload: memoryview) -> Iterator[Block]:
    offset = 0
    for extent in message.extents:
        batch = payload[offset : offset + extent.size]
        if len(batch) != extent.size:
            raise Corrupt(f"the block at {extent.first} is cut off")
        yield _block(extent.first, extent.count, batch)
        offset += aligned(extent.size)


# ---- to the sequencer, and from it


def sequencer_request_to_wire(loglet_id: LogId, request: Request) -> pb.SequencerRequest:
    if isinstance(request, Next):
        return pb.SequencerRequest(
            kind=_NEXT, loglet_id=loglet_id, epoch=request.epoch, count=request.count
        )
    match request:
        case Holding(epoch, position):
            kind = pb.SequencerRequest.HOLDING
            return pb.SequencerRequest(
                kind=kind, loglet_id=loglet_id, epoch=epoch, position=position
            )
        case FindEnd(epoch):
            kind = pb.SequencerRequest.FIND_END
            return pb.SequencerRequest(kind=kind, loglet_id=loglet_id, epoch=epoch)
    raise InvalidArgument(f"{type(request).__name__} is nothing to ask of a sequencer")


def sequencer_request_from_wire(message: pb.SequencerRequest) -> tuple[LogId, Request]:
    if message.kind == _NEXT:
        return message.loglet_id, Next(message.epoch, message.count)
    match message.kind:
        case pb.SequencerRequest.HOLDING:
            return message.loglet_id, Holding(message.epoch, message.position)
        case pb.SequencerRequest.FIND_END:
            return message.loglet_id, FindEnd(message.epoch)
    raise InvalidArgument(
        f"no request of kind {message.kind} is known here: upgrade the metadata repository"
    )


def sequencer_answer_to_wire(answer: Answer) -> pb.SequencerAnswer:
    tell = pb.SequencerAnswer
    if isinstance(answer, HandedOut):
        first, count, epoch = answer.ticket
        return tell(kind=_HANDED_OUT, first=first, count=count, epoch=epoch)
    match answer:
        case Forgotten():
            return tell(kind=tell.FORGOTTEN)
        case Beyond(end):
            return tell(kind=tell.BEYOND, end=end)
        case EpochOver(epoch):
            return tell(kind=tell.EPOCH_OVER, epoch=epoch)
        case Refused(reason):
            return tell(kind=tell.REFUSED, reason=reason)
    raise InvalidArgument(f"{type(answer).__name__} is no answer of a sequencer")


def sequencer_answer_from_wire(message: pb.SequencerAnswer) -> Answer:
    if message.kind == _HANDED_OUT:
        return HandedOut(Ticket(message.first, message.count, message.epoch))
    match message.kind:
        case pb.SequencerAnswer.FORGOTTEN:
            return Forgotten()
        case pb.SequencerAnswer.BEYOND:
            return Beyond(message.end)
        case pb.SequencerAnswer.EPOCH_OVER:
            return EpochOver(message.epoch)
        case pb.SequencerAnswer.REFUSED:
            return Refused(message.reason)
    return Lost()


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
    )
    return projection, addresses
