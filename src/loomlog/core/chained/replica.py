"""Decide the answers of a replica, and the changes to its store. Pure.

A change must be durable before the answer is sent, and before readers can see it: they write the
blocks that they find down the chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeAlias

from loomlog.core.chained.chain import Block, Extent
from loomlog.core.chained.messages import (
    ACKNOWLEDGED_MAX,
    Acknowledge,
    Answer,
    Before,
    Beyond,
    Check,
    Copy,
    Create,
    Done,
    EpochOver,
    Fetch,
    Fetched,
    FindEnd,
    Found,
    List,
    Listed,
    Measure,
    MeasuredBlocks,
    Missing,
    Read,
    Refused,
    Remove,
    Request,
    Seal,
    SealedAt,
    Stored,
    Trim,
    TrimmedTo,
    Write,
    Written,
)
from loomlog.errors import Corrupt
from loomlog.limits import POSITION_MAX
from loomlog.types import Glsn


class Standing(NamedTuple):
    """The durable state of a replica besides its blocks."""

    epoch: int = 0  # the epoch at which it is sealed, and which it serves; 0: none yet
    trimmed: Glsn = 0  # everything up to here is trimmed
    written: int = 0  # the newest epoch in which it stored a block; it was in that projection


@dataclass(frozen=True, slots=True)
class Put:
    """Store a block."""

    block: Block


@dataclass(frozen=True, slots=True)
class SetAcknowledged:
    """Replace `Block.acknowledged` of a stored block."""

    extent: Extent
    latest_us: int
    size: int
    acknowledged: tuple[Glsn, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """Delete the replica and its blocks."""


# A Standing with a higher trim also deletes the blocks up to there.
Change: TypeAlias = Put | SetAcknowledged | Standing | Gone


class Blocks(Protocol):
    """The blocks of a replica. They do not overlap."""

    def find(self, position: Glsn) -> Extent | None:
        """Return the first block that ends above `position`: it covers it, or is the next one."""

    def find_before(self, position: Glsn) -> Extent | None:
        """Return the last block that ends at or before `position`."""

    def last(self) -> Extent | None: ...

    def scan(self, position: Glsn, blocks_max: int) -> list[Extent]:
        """Return blocks from `find(position)` on, in order."""

    def load(self, extent: Extent) -> Block:
        """Return the block; raise Corrupt if it is damaged."""

    def latest_us(self, extent: Extent) -> int:
        """Return the timestamp of the youngest entry of the block."""

    def size_of(self, extent: Extent) -> int:
        """Return the size of the block's batch in bytes; 0 for junk."""

    def acknowledged_in(self, extent: Extent) -> tuple[Glsn, ...]:
        """Return `Block.acknowledged` of the block."""


Decision: TypeAlias = tuple[Answer, tuple[Change, ...]]

FETCH_BLOCKS_MAX: Final = 256  # in one answer, however small they are
REACH: Final = 1 << 32  # how far above the known positions a block may be; far more than a block
DAMAGED: Final = Refused("blocks of this replica cannot be read: its disk is damaged")
FORGETFUL: Final = Refused("this node crashed, and may have forgotten blocks: a new epoch begins")
NOT_HERE: Final = Refused("this replica is not here: its disk was lost, or it was removed")


def decide(request: Request, standing: Standing | None, blocks: Blocks) -> Decision:
    """Return the answer, and the changes that must be durable before it is sent."""
    if standing is None:
        return _decide_without(request)
    if isinstance(request, Write):
        return _write(request, standing, blocks)
    match request:
        case Create():
            return Refused("this replica was made before: use another birth"), ()
        case Remove():
            return Done(), (Gone(),)
        case Copy(block):
            return _store(block, standing, blocks)
        case Seal(epoch=epoch):
            return _seal(epoch, standing, blocks)
        case Acknowledge(epoch, addresses):
            refusal = _check_epoch(epoch, standing)
            if refusal is not None:
                return refusal, ()
            return _acknowledge(addresses, standing, blocks)
        case Trim(epoch, position):
            refusal = _check_epoch(epoch, standing)
            return _trim(position, standing) if refusal is None else (refusal, ())
    return look_up(request, standing, blocks), ()


def _decide_without(request: Request) -> Decision:
    """Answer a request for a replica that does not exist."""
    match request:
        case Create():
            return Done(), (Standing(),)
        case Remove():
            return Done(), ()
    return NOT_HERE, ()


def look_up(request: Request, standing: Standing | None, blocks: Blocks) -> Answer:
    """Return the answer to a request that changes nothing."""
    if standing is None:
        return NOT_HERE
    refusal = _check_epoch(getattr(request, "epoch", 0), standing)
    if refusal is not None:
        return refusal
    match request:
        case Check():
            return Done()
        case FindEnd():
            return Beyond(_end(standing, blocks))
        case (
            Read(_, position)
            | Before(_, position)
            | List(_, position)
            | Measure(_, position)
            | Fetch(_, position)
        ) if position <= standing.trimmed:
            return TrimmedTo(standing.trimmed)
        case Read():
            return _read(request, standing, blocks)
        case Before(_, position):
            extent = _covering(position, blocks) or blocks.find_before(position)
            return _found(extent, standing, blocks)
        case List():
            return _list(request, blocks)
        case Measure():
            return _measure(request, blocks)
        case Fetch():
            return _fetch(request, blocks)
    return Refused(f"a replica does not answer {type(request).__name__}")


def _check_epoch(epoch: int, standing: Standing) -> Answer | None:
    if epoch < standing.epoch:
        return EpochOver(standing.epoch)
    if epoch > standing.epoch:  # it was sealed before that epoch began, and has forgotten it
        return Refused(f"this replica was never sealed at epoch {epoch}")
    return None


def _acknowledge(addresses: tuple[Glsn, ...], standing: Standing, blocks: Blocks) -> Decision:
    """Store with each of these blocks its own address.

    Trimmed blocks are left out, even if they are still in the table: a trim of the same commit has
    not deleted them yet, and a row written after it would stay."""
    answer: Answer = Done()
    changes: list[Change] = []
    for address in addresses:
        extent = blocks.find(address)
        if extent is not None and extent.first == address and blocks.size_of(extent):
            if extent.last > standing.trimmed:
                changes += _add_acknowledged(extent, (address,), blocks, ACKNOWLEDGED_MAX + 1)
        elif address > standing.trimmed:
            answer = Missing(standing.trimmed)
    return answer, tuple(changes)


def _add_acknowledged(
    extent: Extent, addresses: tuple[Glsn, ...], blocks: Blocks, most: int
) -> tuple[Change, ...]:
    """Return the change that adds addresses to `Block.acknowledged` of a stored block. It keeps at
    most `most`, because a writer may send its block repeatedly, each time with other addresses."""
    if not addresses:
        return ()
    stored = blocks.acknowledged_in(extent)
    merged = (*stored, *(address for address in addresses if address not in stored))[:most]
    if len(merged) <= len(stored):
        return ()
    return (SetAcknowledged(extent, blocks.latest_us(extent), blocks.size_of(extent), merged),)


def _trim(position: Glsn, standing: Standing) -> Decision:
    if position > POSITION_MAX:
        return Refused(f"there is no position {position}"), ()
    return Done(), (standing._replace(trimmed=max(position, standing.trimmed)),)


def _seal(epoch: int, standing: Standing, blocks: Blocks) -> Decision:
    if epoch < standing.epoch:
        return EpochOver(standing.epoch), ()
    sealed_at = SealedAt(_end(standing, blocks), standing.trimmed)
    return sealed_at, (standing._replace(epoch=epoch),)


def _end(standing: Standing, blocks: Blocks) -> Glsn:
    last = blocks.last()
    return max(last.end if last else 0, standing.trimmed + 1 if standing.trimmed else 0)


def _write(request: Write, standing: Standing, blocks: Blocks) -> Decision:
    refusal = _check_epoch(request.epoch, standing)
    if refusal is not None:
        return refusal, ()
    answer, changes = _store(request.block, standing, blocks)
    if standing.written == request.epoch or not isinstance(answer, Stored):
        return answer, changes
    return answer, (*changes, standing._replace(written=request.epoch))


def _store(block: Block, standing: Standing, blocks: Blocks) -> Decision:
    if not block.is_sane:
        return Refused(f"no block can be at [{block.first}, {block.end})"), ()
    if block.last <= standing.trimmed:
        return TrimmedTo(standing.trimmed), ()
    extent = blocks.find(block.first)
    if extent is None or extent.first > block.last:
        return Stored(), (Put(block),)
    if extent == block.extent and blocks.load(extent).is_same(block):
        # A reader may have written it first, without these addresses.
        return Stored(), _add_acknowledged(extent, block.acknowledged, blocks, ACKNOWLEDGED_MAX)
    return Written(), ()


def _covering(position: Glsn, blocks: Blocks) -> Extent | None:
    extent = blocks.find(position)
    return extent if extent is not None and extent.first <= position else None


def _found(extent: Extent | None, standing: Standing, blocks: Blocks) -> Answer:
    return Missing(standing.trimmed) if extent is None else Found(blocks.load(extent))


def _read(request: Read, standing: Standing, blocks: Blocks) -> Answer:
    extent = _covering(request.position, blocks)
    found = _found(extent, standing, blocks)
    if extent is None or not request.with_acknowledged or not isinstance(found, Found):
        return found
    acknowledged = blocks.acknowledged_in(extent)[-ACKNOWLEDGED_MAX:]  # the limit of a request
    return Found(found.block._replace(acknowledged=acknowledged))


def _list(request: List, blocks: Blocks) -> Listed:
    extents = blocks.scan(request.position, request.blocks_max + 1)
    if request.without_junk:
        extents = _without_junk(request, extents, blocks)
    listed, before_us = extents[: request.blocks_max], request.before_us
    if before_us is not None:
        for index, extent in enumerate(listed):
            if blocks.latest_us(extent) >= before_us:
                return Listed(listed[:index], more=False, young=extent.first)
    acknowledged: tuple[Glsn, ...] = ()
    if request.with_acknowledged:
        acknowledged = tuple(chain.from_iterable(map(blocks.acknowledged_in, listed)))
    return Listed(listed, more=len(extents) > request.blocks_max, acknowledged=acknowledged)


def _without_junk(request: List, scanned: list[Extent], blocks: Blocks) -> list[Extent]:
    """Return more than `blocks_max` blocks without junk, if there are that many."""
    kept = [extent for extent in scanned if blocks.size_of(extent)]
    while len(kept) <= request.blocks_max < len(scanned):
        scanned = blocks.scan(scanned[-1].end, request.blocks_max + 1)
        kept += [extent for extent in scanned if blocks.size_of(extent)]
    return kept


def _measure(request: Measure, blocks: Blocks) -> MeasuredBlocks:
    """Measure blocks by their first positions: a block that began earlier does not count."""
    extents = blocks.scan(request.position, request.blocks_max + 1)
    through = request.last
    if len(extents) > request.blocks_max:
        through = min(through, extents.pop().first - 1)
    begun = [extent for extent in extents if request.position <= extent.first <= through]
    return MeasuredBlocks(through, sum(map(blocks.size_of, begun)))


def _fetch(request: Fetch, blocks: Blocks) -> Fetched:
    fetched: list[Block] = []
    size, position, more = 0, request.position, True
    while more and not fetched:  # all blocks of a scan may be damaged
        extents = blocks.scan(position, FETCH_BLOCKS_MAX)
        more = len(extents) == FETCH_BLOCKS_MAX
        for extent in extents:
            if request.last and extent.end > request.last + 1:
                return Fetched(fetched, more=False)
            if size >= request.bytes_max:
                return Fetched(fetched, more=True)
            position = extent.end
            try:
                fetched.append(blocks.load(extent))
            except Corrupt:
                if not request.salvage:
                    raise
            else:
                size += len(fetched[-1].batch)
    return Fetched(fetched, more)
