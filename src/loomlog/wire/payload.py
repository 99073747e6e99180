"""Batches in the payload of a frame, one after the other, each from a multiple of 64 bytes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeVar

from loomlog.batch import Header, aligned, check
from loomlog.errors import Corrupt
from loomlog.limits import ALIGNMENT
from loomlog.types import Buffer, Glsn

_PADDING: Final = bytes(ALIGNMENT)


class Head(Protocol):
    """A message about a batch of the payload."""

    first: int
    size: int  # of the batch; 0: it has none


HeadT = TypeVar("HeadT", bound=Head)


def padded(batches: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the buffers of a payload. Batches are padded themselves, so this adds nothing."""
    for batch in batches:
        yield batch
        if padding := -len(batch) % ALIGNMENT:
            yield _PADDING[:padding]


def with_batches(heads: Iterable[HeadT], payload: memoryview) -> Iterator[tuple[HeadT, memoryview]]:
    """Yield each head with its batch, which is a view into the payload."""
    offset = 0
    for head in heads:
        size = head.size
        batch = payload[offset : offset + size]
        if len(batch) != size:
            raise Corrupt(f"the batch at {head.first} is cut off")
        yield head, batch
        offset += aligned(size)


def check_at(first: Glsn, count: int, batch: Buffer) -> Header:
    """Return the header of a verified batch; raise if the batch does not belong there."""
    header = check(batch)
    if (header.first_position, header.first_llsn, header.count) != (first, first, count):
        raise Corrupt(
            f"the batch of {first} has {header.count} records from position "
            f"{header.first_position} and LLSN {header.first_llsn} on, not {count}"
        )
    return header
