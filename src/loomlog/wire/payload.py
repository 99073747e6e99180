"""Splits the payload of a frame into batches, each of which begins at a multiple of 64 bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeVar

from loomlog.batch import aligned
from loomlog.errors import Corrupt
from loomlog.limits import ALIGNMENT
from loomlog.types import Buffer

_PADDING: Final = bytes(ALIGNMENT)


class PayloadHead(Protocol):
    """A message about a batch of the payload."""

    first: int
    size: int  # of the batch; 0: it has none


HeadT = TypeVar("HeadT", bound=PayloadHead)


def padded(batches: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the buffers of a payload. Batches are already padded, so nothing is added."""
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
