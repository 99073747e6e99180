"""The body of a reference: a batch that refers to records of another log.

Rows are staged in a staging log, as many batches in any of its streams. One reference in the target
log then takes as many positions as it names rows, atomically. Servers never decode it.
docs/batch-format.md describes every byte. Do not import pyarrow here.

Invariants: `decode` accepts what `encode` returns and raises `Corrupt` or `VersionMismatch` for
anything else; the ranges of a reference contain exactly as many rows as its header counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from loomlog import batch
from loomlog.batch import HEADER_BYTES, Header
from loomlog.errors import Corrupt, InvalidArgument, VersionMismatch
from loomlog.limits import REFERENCE_RECORDS_MAX
from loomlog.types import Buffer, Glsn, Llsn, StreamId

VERSION: Final = 1

LLSN_MAX: Final = (1 << 63) - 1
_STREAM_MAX: Final = (1 << 31) - 1


class Range(NamedTuple):
    """Consecutive rows of one stream of a staging log."""

    stream: StreamId
    first: Llsn
    rows: int

    @property
    def end(self) -> Llsn:
        """The LLSN after the last row."""
        return self.first + self.rows


class Reference(NamedTuple):
    """The referenced rows in order, and the writer that published them."""

    staging: str  # the name of the staging log
    writer: str
    sequence: int
    needed_from: Glsn  # no reference at or after this one needs an earlier position of `staging`
    ranges: tuple[Range, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.ranges)

    def clipped(self, skip: int, rows: int) -> Iterator[Range]:
        """Yield the ranges of `rows` rows after the first `skip`."""
        for piece in self.ranges:
            if skip >= piece.rows:
                skip -= piece.rows
                continue
            wanted = min(piece.rows - skip, rows)
            if not wanted:
                return
            yield Range(piece.stream, piece.first + skip, wanted)
            skip, rows = 0, rows - wanted


def joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield the same rows in the same order, with adjacent ranges merged."""
    last: Range | None = None
    for piece in ranges:
        if last is not None and (piece.stream, piece.first) == (last.stream, last.end):
            last = last._replace(rows=last.rows + piece.rows)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


# ---- writing ----------------------------------------------------------------------


def encode(
    reference: Reference, *, producer_id: int, min_timestamp_us: int, max_timestamp_us: int
) -> bytearray:
    """Return the batch; the timestamps are those of the rows."""
    rows = reference.rows
    if not 0 < rows <= REFERENCE_RECORDS_MAX:
        raise InvalidArgument(
            f"{rows} rows cannot be published at once: publish 1 to {REFERENCE_RECORDS_MAX}"
        )
    body = encode_body(reference)
    return batch.build(
        body,
        codec=batch.CODEC_NONE,
        flags=batch.FLAG_REFERENCE,
        count=rows,
        raw_size=len(body),
        producer_id=producer_id,
        sequence=reference.sequence,
        min_timestamp_us=min_timestamp_us,
        max_timestamp_us=max_timestamp_us,
    )


def encode_body(reference: Reference) -> bytes:
    out = bytearray([VERSION])
    for text in (reference.staging, reference.writer):
        data = text.encode()
        _put(out, len(data))
        out += data
    _put(out, reference.sequence)
    _put(out, reference.needed_from)
    _put(out, len(reference.ranges))
    ends: dict[StreamId, Llsn] = {}
    for piece in reference.ranges:
        _put(out, piece.stream)
        _put_signed(out, piece.first - ends.get(piece.stream, 0))
        _put(out, piece.rows)
        ends[piece.stream] = piece.end
    return bytes(out)


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_signed(out: bytearray, number: int) -> None:
    _put(out, number << 1 if number >= 0 else (-number << 1) - 1)


# ---- reading ----------------------------------------------------------------------


def decode(buffer: Buffer) -> tuple[Header, Reference]:
    """Return the header and the reference in `buffer`."""
    header = batch.check(buffer)
    if header.flags != batch.FLAG_REFERENCE or header.codec != batch.CODEC_NONE:
        raise Corrupt("the batch is no reference")
    reference = decode_body(memoryview(buffer)[HEADER_BYTES : HEADER_BYTES + header.body_size])
    if reference.rows != header.count or reference.sequence != header.sequence:
        raise Corrupt(
            f"reference {reference.sequence} of {reference.rows} rows: the header says "
            f"{header.sequence} and {header.count}"
        )
    return header, reference


def decode_body(body: Buffer) -> Reference:
    if not len(body):
        raise Corrupt("reference: it is empty")
    if body[0] != VERSION:
        raise VersionMismatch(
            f"reference: format version {body[0]}, this software reads {VERSION}; "
            "upgrade the software"
        )
    source = _Source(body)
    staging, writer = source.text(), source.text()
    sequence, needed_from = source.number(), source.number()
    ends: dict[StreamId, Llsn] = {}
    ranges = []
    for _ in range(source.number()):
        stream = source.number()
        first = ends.get(stream, 0) + source.signed()
        piece = Range(stream, first, source.number())
        if not (stream <= _STREAM_MAX and first >= 1 and piece.rows >= 1 and piece.end <= LLSN_MAX):
            raise Corrupt(f"reference: no stream has the rows {piece}")
        ends[stream] = piece.end
        ranges.append(piece)
    source.require_end()
    return Reference(staging, writer, sequence, needed_from, tuple(ranges))


class _Source:
    """Reads the fields of a body, after its version byte."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: Buffer) -> None:
        self._body = body
        self._at = 1

    def number(self) -> int:
        number = shift = 0
        while True:
            if self._at >= len(self._body) or shift > 63:
                raise Corrupt(f"reference of {len(self._body)} bytes: a number is cut off")
            byte = self._body[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def signed(self) -> int:
        number = self.number()
        return -(number + 1 >> 1) if number & 1 else number >> 1

    def text(self) -> str:
        size = self.number()
        data = bytes(self._body[self._at : self._at + size])
        self._at += size
        try:
            if len(data) == size:
                return data.decode()
        except UnicodeDecodeError:
            pass
        raise Corrupt(f"reference of {len(self._body)} bytes: a name is cut off or not text")

    def require_end(self) -> None:
        if self._at != len(self._body):
            raise Corrupt(f"reference of {len(self._body)} bytes: its parts end at {self._at}")
