"""Pieces: the records of a log as they are stored, and the gaps between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from loomlog import references
from loomlog.batch import FLAG_REFERENCE, Header
from loomlog.references import Reference
from loomlog.types import Buffer, Entry, Gap, Glsn, Llsn, StreamId

if TYPE_CHECKING:
    from loomlog.columns import Batch


class Piece(NamedTuple):
    """Consecutive records: `rows` records of a batch after the first `skip`."""

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
    """Consecutive rows named by a reference: `rows` of them after the first `skip`."""

    header: Header
    reference: Reference
    skip: int
    rows: int


Stored: TypeAlias = Piece | Referred | Gap
"""A piece of a log as it is stored. Gaps are delivered only on request."""


class Rows(Protocol):
    """Consecutive records from the log or its archive."""

    @property
    def rows(self) -> int: ...

    @property
    def last_position(self) -> Glsn: ...

    def entries(self) -> list[Entry]: ...

    def to_arrow(self) -> Any: ...


Shown: TypeAlias = Rows | Gap
"""A piece as users see it, without references."""

T_co = TypeVar("T_co", covariant=True)


class Pieces(Protocol[T_co]):
    """A sequence of pieces, for one consumer at a time."""

    async def next(self) -> T_co | None:
        """Return the next piece, waiting until it is written; None at the end."""

    def next_ready(self) -> T_co | None:
        """Return the next piece if it has arrived, else None."""

    def close(self) -> None: ...


def decode(content: Buffer, refers: bool, skip: int, rows: int) -> Piece | Referred:
    """Decode a part of a stored batch; `refers`: the batch is a reference."""
    from loomlog import columns

    if refers:
        return Referred(*references.decode(content), skip, rows)
    return Piece(columns.decode(content), skip, rows)


def blank(stream: StreamId, first: Glsn, rows: int, epoch: int, timestamp_us: int) -> Piece:
    """Return records without payloads, in a stream whose LLSNs are positions."""
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
