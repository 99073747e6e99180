"""What a reader is given: records in pieces, as they are stored, and the gaps between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from loomlog import references
from loomlog.batch import FLAG_REFERENCE, Header
from loomlog.references import Reference
from loomlog.types import Buffer, Entry, Gap, Glsn, Llsn, StreamId

if TYPE_CHECKING:
    from loomlog.columns import Batch


class Piece(NamedTuple):
    """The next records of the sequence: `rows` records of a batch after the first `skip`."""

    batch: Batch
    skip: int
    rows: int

    @property
    def header(self) -> Header:
        return self.batch.header

    @property
    def first_llsn(self) -> Llsn:
        return self.batch.header.first_llsn + self.skip

    @property
    def last_position(self) -> Glsn:
        return self.batch.header.first_position + self.skip + self.rows - 1

    def entries(self) -> list[Entry]:
        found = self.batch.entries(self.skip)
        return found if len(found) == self.rows else found[: self.rows]

    def to_arrow(self) -> Any:
        found = self.batch.to_arrow(self.skip)
        return found if found.num_rows == self.rows else found.slice(0, self.rows)


class Referred(NamedTuple):
    """The same of a reference: `rows` of the rows that it names, after the first `skip`."""

    header: Header
    reference: Reference
    skip: int
    rows: int


Stored: TypeAlias = Piece | Referred | Gap
"""What comes next in a log as it is stored. Gaps come only to who asked for them."""


class StoredPieces(Protocol):
    """A sequence of records as they are stored, for one consumer at a time."""

    async def next(self) -> Stored | None:
        """What comes next; None at the end. Waits for what is not written yet."""

    def next_ready(self) -> Stored | None:
        """The same, if it is here already."""

    def close(self) -> None: ...


def decode(content: Buffer, refers: bool, skip: int, rows: int) -> Piece | Referred:
    """A part of a batch as it is stored; `refers`: the batch is a reference."""
    from loomlog import columns

    if refers:
        return Referred(*references.decode(content), skip, rows)
    return Piece(columns.decode(content), skip, rows)


def blank(stream: StreamId, first: Glsn, rows: int, epoch: int, timestamp_us: int) -> Piece:
    """Records of which only places and time are known, in a stream whose LLSNs are positions."""
    from loomlog import columns

    numbers = dict.fromkeys(Header._fields, 0) | {
        "count": rows,
        "min_timestamp_us": timestamp_us,
        "max_timestamp_us": timestamp_us,
        "first_position": first,
        "first_llsn": first,
        "stream_id": stream,
        "epoch": epoch,
    }
    return Piece(columns.blank(Header(**numbers)), 0, rows)


def refers(header: Header) -> bool:
    return header.flags == FLAG_REFERENCE
