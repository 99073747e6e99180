"""The record batch as servers see it: a header of fixed size and the integrity of all its bytes.

A batch is the unit of an append, a disk write, a replication message and a read. Servers never look
at its records: they verify it, fill in positions and update the header's CRC. columns/ encodes the
body; docs/batch-format.md describes every byte.

Do not import pyarrow here: servers import this module and must stay small.

Invariants: two CRCs cover every byte of a batch, so truncation and flipped bits are detected;
reading raises only `Corrupt` and `VersionMismatch`; a batch that was written here passes `check`.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - `error` says too little
from typing import Final, Literal, NamedTuple

from crc32c import crc32c

from loomlog.errors import Corrupt, InvalidArgument, VersionMismatch
from loomlog.limits import (
    ALIGNMENT,
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    POSITION_MAX,
    REFERENCE_RECORDS_MAX,
)
from loomlog.types import Buffer, Glsn, Llsn, StreamId

HEADER_BYTES: Final = 128
VERSION: Final = 1

Compression = Literal["none", "lz4", "zstd"]
COMPRESSIONS: Final[tuple[Compression, ...]] = ("none", "lz4", "zstd")  # by their numbers below
CODEC_NONE: Final = 0
CODEC_LZ4: Final = 1
CODEC_ZSTD: Final = 2

FLAG_KEYS: Final = 1
FLAG_HEADERS: Final = 2
FLAG_REFERENCE: Final = 4  # refers to records of another log (references.py); excludes other flags

MAGIC: Final = b"LMB1"
_MAGIC: Final = int.from_bytes(MAGIC, "little")
_ALIGNED: Final = ALIGNMENT - 1  # the bits of a number that are 0 at multiples
_MULTIPLE: Final = ~_ALIGNED
_HEADER_AND_PADDING: Final = HEADER_BYTES + _ALIGNED
_CHECKED_BYTES: Final = HEADER_BYTES - 4  # the header's CRC follows the bytes that it covers
_FLAGS: Final = FLAG_KEYS | FLAG_HEADERS
_COUNT_MAX: Final = {
    **dict.fromkeys(range(_FLAGS + 1), BATCH_RECORDS_MAX),
    FLAG_REFERENCE: REFERENCE_RECORDS_MAX,
}
_STREAM_MAX: Final = (1 << 31) - 1  # readers see streams and positions as signed columns

_HEADER: Final = Struct("<IBBHIIIII4xQQqqQQI4xQQQQII")
_COUNT_AT: Final = 12
_COUNT: Final = Struct("<I")
_LATEST: Final = Struct("<I52xq")
_PRODUCER_AT: Final = 32
_PRODUCER: Final = Struct("<QQ")
_POSITION_AT: Final = 64
_POSITION: Final = Struct("<Q")
_LLSN_AT: Final = 72
_LLSN: Final = Struct("<QI4xQ")
_CELL_AT: Final = 96
_CELL: Final = Struct("<QQQI")
_CRC: Final = Struct("<I")


class Cell(NamedTuple):
    """The place where it is decided whether a batch counts (core/transactions.py)."""

    transaction: int = 0  # a random number; 0: none, the batch counts as it is
    position: Glsn = 0  # in the log of decisions,
    epoch: int = 0  # as it was handed out
    stream: StreamId = 0  # of that log


class Header(NamedTuple):
    """The header of a batch, in the order of its bytes."""

    codec: int
    flags: int
    size: int
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    body_size: int
    raw_size: int
    body_crc: int
    producer_id: int
    sequence: int
    min_timestamp_us: int
    max_timestamp_us: int
    first_position: Glsn
    first_llsn: Llsn
    stream_id: StreamId
    epoch: int
    transaction: int = 0
    cell_position: Glsn = 0
    cell_epoch: int = 0
    cell_stream: StreamId = 0

    @property
    def cell(self) -> Cell | None:
        """The place where it is decided whether the batch counts; None: it does."""
        return Cell(*self[-4:]) if self.transaction else None

    @property
    def last_llsn(self) -> Llsn:
        """The LLSN of the last record; 0 while the batch has no LLSNs."""
        return self.first_llsn + self.count - 1 if self.first_llsn else 0

    @property
    def last_position(self) -> Glsn:
        """The position of the last record; 0 while the batch has no positions."""
        return self.first_position + self.count - 1 if self.first_position else 0


def aligned(size: int) -> int:
    """Return `size` rounded up to the alignment of batches."""
    return size + -size % ALIGNMENT


# ---- reading ----------------------------------------------------------------------


def read_header(buffer: Buffer, offset: int = 0) -> Header:
    """Return the verified header of the batch at `offset`. The body may be missing."""
    try:
        fields = _HEADER.unpack_from(buffer, offset)
    except StructError:
        raise Corrupt(f"batch at {offset}: cut off within its header") from None
    if fields[0] != _MAGIC:
        raise Corrupt(f"batch at {offset}: no batch starts here")
    if crc32c(memoryview(buffer)[offset : offset + _CHECKED_BYTES]) != fields[-1]:
        raise Corrupt(f"batch at {offset}: the header does not match its checksum")
    if fields[1] != VERSION:
        raise VersionMismatch(
            f"batch at {offset}: format version {fields[1]}, this software reads {VERSION}; "
            "upgrade the software"
        )
    header = tuple.__new__(Header, fields[2:-1])  # Header._make without a Python frame
    if not _is_sane(header):
        raise Corrupt(f"batch at {offset}: the header contradicts itself: {header}")
    return header


def count_in(buffer: Buffer) -> int:
    """Return the number of records that a batch claims to have; nothing is verified."""
    count: int = _COUNT.unpack_from(buffer, _COUNT_AT)[0]
    return count


def latest_in(buffer: Buffer) -> int:
    """Return the latest timestamp in a batch that was checked before, in microseconds."""
    try:
        magic, latest_us = _LATEST.unpack_from(buffer)
    except StructError:
        magic, latest_us = 0, 0
    if magic != _MAGIC:
        raise Corrupt("no batch starts here")
    return int(latest_us)


def producer_in(buffer: Buffer) -> tuple[int, int]:
    """Return the producer and the sequence number of a batch that was checked before."""
    producer_id, sequence = _PRODUCER.unpack_from(buffer, _PRODUCER_AT)
    return producer_id, sequence


def _is_sane(header: Header) -> bool:
    # Protects readers' allocations and arithmetic from a header with a valid CRC and bad fields.
    codec, flags, size, count, body_size, raw_size, _, _, _, earliest_us, latest_us, *rest = header
    position, llsn, stream, _, transaction, cell_position, _, cell_stream = rest
    return (
        (raw_size == body_size if codec == CODEC_NONE else codec <= CODEC_ZSTD)
        and 0 < count <= _COUNT_MAX.get(flags, 0)
        and size == body_size + _HEADER_AND_PADDING & _MULTIPLE
        and size <= BATCH_BYTES_MAX
        and raw_size <= BATCH_BYTES_MAX
        and earliest_us <= latest_us
        # Both limits are all ones, so combined bits are above them if one number is.
        and position + count | llsn + count | cell_position <= POSITION_MAX
        and stream | cell_stream <= _STREAM_MAX
        and (not transaction) is (not cell_position)
    )


def check(buffer: Buffer, header: Header | None = None) -> Header:
    """Return the header of `buffer`, which must be exactly one complete, valid batch; `header`, if
    the caller has read it."""
    header = header or read_header(buffer)
    if len(buffer) != header.size:
        raise Corrupt(f"batch of {header.size} bytes: {len(buffer)} bytes are here")
    if crc32c(memoryview(buffer)[HEADER_BYTES:]) != header.body_crc:
        raise _damaged_body(header)
    return header


def check_at(buffer: Buffer, first: Glsn, count: int) -> Header:
    """Like `check`; raise Corrupt also if the batch does not have these positions, and equal
    LLSNs."""
    header = check(buffer)
    if (header.first_position, header.first_llsn, header.count) != (first, first, count):
        raise Corrupt(
            f"the batch of {first} has {header.count} records from position "
            f"{header.first_position} and LLSN {header.first_llsn} on, not {count}"
        )
    return header


def split(buffer: Buffer) -> list[tuple[Header, memoryview]]:
    """Return the concatenated batches of `buffer`, verified; it may contain nothing else."""
    view = memoryview(buffer)
    batches = []
    offset = 0
    while offset < len(view):
        header = read_header(view, offset)
        one = view[offset : offset + header.size]
        if len(one) != header.size:
            raise Corrupt(f"batch at {offset}: cut off after {len(one)} of {header.size} bytes")
        if crc32c(one[HEADER_BYTES:]) != header.body_crc:
            raise _damaged_body(header)
        batches.append((header, one))
        offset += header.size
    return batches


def _damaged_body(header: Header) -> Corrupt:
    return Corrupt(f"batch of {header.size} bytes: the body does not match its checksum")


# ---- filled in by servers ---------------------------------------------------------


def assign_llsn(
    view: bytearray | memoryview, stream_id: StreamId, epoch: int, first_llsn: Llsn
) -> None:
    """Set the batch's position in its log stream."""
    _LLSN.pack_into(view, _LLSN_AT, first_llsn, stream_id, epoch)
    _renew_header_crc(view)


def with_llsn(header: Header, stream_id: StreamId, epoch: int, first_llsn: Llsn) -> Header:
    """Return the header of a batch after `assign_llsn`."""
    numbers = (*header[:12], first_llsn, stream_id, epoch, *header[15:])
    return tuple.__new__(Header, numbers)


def assign_position(view: bytearray | memoryview, first_position: Glsn) -> None:
    """Set the batch's position in its log."""
    _POSITION.pack_into(view, _POSITION_AT, first_position)
    _renew_header_crc(view)


def assign_place(
    view: bytearray | memoryview, stream_id: StreamId, epoch: int, first: Glsn
) -> None:
    """Set both numbers of a batch whose LLSNs equal its positions."""
    _LLSN.pack_into(view, _LLSN_AT, first, stream_id, epoch)
    _POSITION.pack_into(view, _POSITION_AT, first)
    _renew_header_crc(view)


def assign_cell(view: bytearray | memoryview, cell: Cell) -> None:
    """Let the batch count only if its cell says so. Its writer does this."""
    _CELL.pack_into(view, _CELL_AT, *cell)
    _renew_header_crc(view)


def _renew_header_crc(view: bytearray | memoryview) -> None:
    _CRC.pack_into(view, _CHECKED_BYTES, crc32c(memoryview(view)[:_CHECKED_BYTES]))


# ---- writing ----------------------------------------------------------------------


def build(
    body: Buffer,
    *,
    codec: int,
    flags: int,
    count: int,
    raw_size: int,
    producer_id: int,
    sequence: int,
    min_timestamp_us: int,
    max_timestamp_us: int,
) -> bytearray:
    """Return a batch with a body that is already encoded (and compressed)."""
    buffer = allocate(len(body))
    memoryview(buffer)[HEADER_BYTES : HEADER_BYTES + len(body)] = body
    write_header(
        buffer,
        body_size=len(body),
        codec=codec,
        flags=flags,
        count=count,
        raw_size=raw_size,
        producer_id=producer_id,
        sequence=sequence,
        min_timestamp_us=min_timestamp_us,
        max_timestamp_us=max_timestamp_us,
    )
    return buffer


def allocate(body_size: int) -> bytearray:
    """Return a zeroed batch; the caller writes the body in place, from HEADER_BYTES on."""
    size = aligned(HEADER_BYTES + body_size)
    if size > BATCH_BYTES_MAX:
        raise InvalidArgument(
            f"a batch of {size} bytes is above the limit of {BATCH_BYTES_MAX}; "
            "append fewer records at once"
        )
    return bytearray(size)


def write_header(
    buffer: bytearray,
    *,
    body_size: int,
    codec: int,
    flags: int,
    count: int,
    raw_size: int,
    producer_id: int,
    sequence: int,
    min_timestamp_us: int,
    max_timestamp_us: int,
) -> None:
    """Write the header of a batch whose body and padding are in place, without positions."""
    header = Header(
        codec=codec,
        flags=flags,
        size=len(buffer),
        count=count,
        body_size=body_size,
        raw_size=raw_size,
        body_crc=crc32c(memoryview(buffer)[HEADER_BYTES:]),
        producer_id=producer_id,
        sequence=sequence,
        min_timestamp_us=min_timestamp_us,
        max_timestamp_us=max_timestamp_us,
        first_position=0,
        first_llsn=0,
        stream_id=0,
        epoch=0,
    )
    if not _is_sane(header):
        raise InvalidArgument(f"no batch can have this header: {header}")
    try:
        _HEADER.pack_into(buffer, 0, _MAGIC, VERSION, *header, 0)
    except StructError as problem:
        raise InvalidArgument(f"no batch can have this header: {problem}: {header}") from None
    _renew_header_crc(buffer)
