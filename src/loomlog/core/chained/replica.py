"""What a replica answers, and what it changes. Pure.

The change must be durable before the answer is given, and before anybody can read it: a reader
carries what it finds down the chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from loomlog.core.chained.block import POSITION_MAX, Block, Extent
from loomlog.core.chained.messages import (
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
from loomlog.types import Glsn


class Standing(NamedTuple):
    """What a replica knows of itself besides its blocks."""

    epoch: int = 0  # that it is sealed at, and serves; 0: none yet
    trimmed: Glsn = 0  # all up to here is gone


@dataclass(frozen=True, slots=True)
class Put:
    block: Block


@dataclass(frozen=True, slots=True)
class Gone:
    """The replica and its blocks."""


Change: TypeAlias = Put | Standing | Gone  # a standing that trims more takes blocks along


class Blocks(Protocol):
    """The blocks of a replica. They do not overlap."""

    def find(self, position: Glsn) -> Extent | None:
        """The first that ends behind `position`: it covers it, or comes next."""

    def find_before(self, position: Glsn) -> Extent | None:
        """The last that ends at `position` or before it."""

    def last(self) -> Extent | None: ...

    def scan(self, position: Glsn, blocks_max: int) -> list[Extent]:
        """Those from `find(position)` on, in order."""

    def load(self, extent: Extent) -> Block: ...


Decision: TypeAlias = tuple[Answer, Change | None]

FETCH_BLOCKS_MAX: Final = 256  # in one answer, however small they are
NOT_HERE: Final = Refused("this replica is not here: its disk was lost, or it was removed")


def decide(request: Request, standing: Standing | None, blocks: Blocks) -> Decision:
    """The answer, and the change that must be durable before it is given."""
    if standing is None:
        return _decide_without(request)
    if isinstance(request, Write):
        refusal = _check_epoch(request.epoch, standing)
        return _store(request.block, standing, blocks) if refusal is None else (refusal, None)
    match request:
        case Create():
            return Refused("this replica was made before: use another birth"), None
        case Remove():
            return Done(), Gone()
        case Copy(block):
            return _store(block, standing, blocks)
        case Seal(epoch):
            return _seal(epoch, standing, blocks)
        case Trim(epoch, position):
            refusal = _check_epoch(epoch, standing)
            return _trim(position, standing) if refusal is None else (refusal, None)
    return look_up(request, standing, blocks), None


def _decide_without(request: Request) -> Decision:
    """There is no such replica."""
    match request:
        case Create():
            return Done(), Standing()
        case Remove():
            return Done(), None
    return NOT_HERE, None


def look_up(request: Request, standing: Standing | None, blocks: Blocks) -> Answer:
    """The answer to a request that changes nothing."""
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
        case Read(_, position) | Before(_, position) | List(_, position) | Fetch(_, position) if (
            position <= standing.trimmed
        ):
            return TrimmedTo(standing.trimmed)
        case Read(_, position):
            return _found(_covering(position, blocks), standing, blocks)
        case Before(_, position):
            extent = _covering(position, blocks) or blocks.find_before(position)
            return _found(extent, standing, blocks)
        case List(_, position, blocks_max):
            extents = blocks.scan(position, blocks_max + 1)
            return Listed(extents[:blocks_max], len(extents) > blocks_max)
        case Fetch(_, position, bytes_max):
            return _fetch(position, bytes_max, blocks)
    return Refused(f"a replica does not answer {type(request).__name__}")


def _check_epoch(epoch: int, standing: Standing) -> Answer | None:
    if epoch < standing.epoch:
        return EpochOver(standing.epoch)
    if epoch > standing.epoch:  # it was sealed before that epoch began, and does not remember
        return Refused(f"this replica was never sealed at epoch {epoch}")
    return None


def _trim(position: Glsn, standing: Standing) -> Decision:
    if position > POSITION_MAX:
        return Refused(f"there is no position {position}"), None
    return Done(), standing._replace(trimmed=max(position, standing.trimmed))


def _seal(epoch: int, standing: Standing, blocks: Blocks) -> Decision:
    if epoch < standing.epoch:
        return EpochOver(standing.epoch), None
    sealed_at = SealedAt(_end(standing, blocks), standing.trimmed)
    return sealed_at, standing._replace(epoch=epoch)


def _end(standing: Standing, blocks: Blocks) -> Glsn:
    last = blocks.last()
    return max(last.end if last else 0, standing.trimmed + 1 if standing.trimmed else 0)


def _store(block: Block, standing: Standing, blocks: Blocks) -> Decision:
    if not block.is_sane:
        return Refused(f"no block can be at [{block.first}, {block.end})"), None
    if block.last <= standing.trimmed:
        return TrimmedTo(standing.trimmed), None
    extent = blocks.find(block.first)
    if extent is None or extent.first > block.last:
        return Stored(), Put(block)
    if extent == block.extent and blocks.load(extent).is_same(block):
        return Stored(), None
    return Written(), None


def _covering(position: Glsn, blocks: Blocks) -> Extent | None:
    extent = blocks.find(position)
    return extent if extent is not None and extent.first <= position else None


def _found(extent: Extent | None, standing: Standing, blocks: Blocks) -> Answer:
    return Missing(standing.trimmed) if extent is None else Found(blocks.load(extent))


def _fetch(position: Glsn, bytes_max: int, blocks: Blocks) -> Fetched:
    found: list[Block] = []
    size = 0
    extents = blocks.scan(position, FETCH_BLOCKS_MAX)
    for extent in extents:
        if size >= bytes_max:
            return Fetched(found, more=True)
        found.append(blocks.load(extent))
        size += len(found[-1].batch)
    return Fetched(found, more=len(extents) == FETCH_BLOCKS_MAX)
