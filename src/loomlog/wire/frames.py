"""Encodes and decodes frames (loomlog.proto describes the layout). Pure: bytes in, frames out.

The reader owns its receive buffer and hands out payloads as views into it, without a copy. A
buffer with a payload that was handed out is never overwritten; it lives as long as its views.
Frames and payloads start at multiples of 64 bytes in memory, which keeps copies fast.

The checksum of a prefix begins with the number of the frame in its direction of the connection. So
a frame that got lost, doubled or swapped on the way is found like a damaged one, at no cost.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence

from crc32c import crc32c
from google.protobuf.message import DecodeError

from loomlog import limits
from loomlog.errors import Corrupt
from loomlog.types import Buffer
from loomlog.wire import loomlog_pb2 as pb

MAGIC = 0x32464D4C  # "LMF2"
_PREFIX = struct.Struct("<IIIII")
_SIZES = struct.Struct("<III")
_CHECKSUMS = struct.Struct("<II")
_PADDING = bytes(limits.ALIGNMENT)
_NO_PAYLOAD = memoryview(b"")
_BUFFER_BYTES_MIN = 64 * limits.KIB
_BUFFER_BYTES_MAX = 512 * limits.KIB
_CLAIMED_BYTES_MAX = limits.MIB  # the buffer of a larger frame grows as its bytes arrive
_NUMBER_MASK = 0xFFFFFFFF


def _padding(size: int) -> int:
    return -size % limits.ALIGNMENT


class FrameWriter:
    """Encodes the frames of one direction of a connection."""

    def __init__(self) -> None:
        self._number = 0  # number of the next frame

    def encode(self, frame: pb.Frame, payload: Sequence[Buffer] = ()) -> list[Buffer]:
        """Return the buffers of a frame, in order."""
        header = frame.SerializeToString()
        size = sum(map(len, payload)) if payload else 0
        sizes = _SIZES.pack(MAGIC, len(header), size)
        number = self._number
        self._number = (number + 1) & _NUMBER_MASK
        checksum = crc32c(sizes, number)
        checksums = _CHECKSUMS.pack(checksum, crc32c(header, checksum))
        padding = _PADDING[: -(_PREFIX.size + len(header)) % limits.ALIGNMENT]
        head = b"".join((sizes, checksums, header, padding))
        if not size % limits.ALIGNMENT:
            return [head, *payload]
        return [head, *payload, _PADDING[: -size % limits.ALIGNMENT]]


class FrameReader:
    """Collects received bytes and yields complete frames.

    Until `accept_all` it accepts only a frame of the size of a greeting and uses little memory.
    """

    def __init__(self) -> None:
        self._number = 0  # number of the next frame
        self._header_bytes_max = limits.GREETING_BYTES_MAX
        self._payload_bytes_max = 0
        self._begin = 0  # of the first byte not yet consumed, from the aligned start
        self._end = 0  # of what has arrived
        self._needed = 0  # known size of the incomplete frame
        self._shared = False  # a payload in this buffer was handed out
        self._space = _aligned(2 * limits.GREETING_BYTES_MAX)

    def accept_all(self) -> None:
        """Accept frames of any allowed size: the peer has greeted."""
        self._header_bytes_max = limits.FRAME_HEADER_BYTES_MAX
        self._payload_bytes_max = limits.FRAME_PAYLOAD_BYTES_MAX
        self._move(_BUFFER_BYTES_MIN)

    def writable(self) -> memoryview:
        """Return the space for the next bytes; never empty."""
        return self._space[self._end :]

    def received(self, count: int) -> Iterator[tuple[pb.Frame, memoryview]]:
        """Yield the frames that are complete now that `count` bytes were put into `writable()`.

        Raises Corrupt for bytes that are no frame; the connection must then be closed. The caller
        may stop early, and go on later with `received(0)`, before it asks for room again.
        """
        self._end += count
        while (found := self._next()) is not None:
            yield found
        self._make_room(self._needed)

    def _next(self) -> tuple[pb.Frame, memoryview] | None:
        """Return a complete frame, if any; otherwise note how many bytes it needs."""
        begin, space = self._begin, self._space
        available = self._end - begin
        if available < _PREFIX.size:
            self._needed = limits.ALIGNMENT
            return None
        magic, header_size, payload_size, sizes_crc, crc = _PREFIX.unpack_from(space, begin)
        if sizes_crc != crc32c(space[begin : begin + _SIZES.size], self._number):
            raise _no_frame(magic)
        if header_size > self._header_bytes_max or payload_size > self._payload_bytes_max:
            raise _too_large(header_size, payload_size)
        header_at = begin + _PREFIX.size
        header_end = header_at + header_size
        payload_at = header_end + -(header_end - begin) % limits.ALIGNMENT
        payload_end = payload_at + payload_size
        size = payload_end + -payload_size % limits.ALIGNMENT - begin
        if available < size:
            self._needed = size
            return None
        header = space[header_at:header_end]
        if crc != crc32c(header, sizes_crc):
            raise Corrupt("a frame's header does not match its checksum: connection closed")
        self._begin += size
        self._number = (self._number + 1) & _NUMBER_MASK
        if not payload_size:
            return _parse(header), _NO_PAYLOAD
        self._shared = True
        return _parse(header), space[payload_at:payload_end]

    def _make_room(self, needed: int) -> None:
        """Make room for the rest of a frame of `needed` bytes, and for more if much arrives."""
        left = self._end - self._begin
        space = len(self._space)
        if not left and not self._shared:
            self._begin = self._end = 0
            return
        if self._begin + needed <= space:
            if self._end < space - space // 4 or needed > space // 2:
                return
        elif needed > space >= _CLAIMED_BYTES_MAX and not self._begin and self._end < space:
            return  # it is large and grows when the space is full
        needed = min(needed, max(_CLAIMED_BYTES_MAX, 4 * left))
        self._move(max(needed, min(2 * space, _BUFFER_BYTES_MAX) if self._shared else space))

    def _move(self, size: int) -> None:
        """Continue in a new buffer."""
        left = self._end - self._begin
        fresh = _aligned(max(size, left + limits.ALIGNMENT))
        fresh[:left] = self._space[self._begin : self._end]
        self._space, self._begin, self._end, self._shared = fresh, 0, left, False


def _aligned(size: int) -> memoryview:
    """Return a writable buffer that starts at a multiple of 64 bytes."""
    room = bytearray(size + limits.ALIGNMENT)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    begin = _padding(address)
    return memoryview(room)[begin : begin + size]


def _no_frame(magic: int) -> Corrupt:
    if magic != MAGIC:
        return Corrupt("not a loomlog frame: connection closed")
    return Corrupt("a frame is damaged, missing or out of order: connection closed")


def _too_large(header_size: int, payload_size: int) -> Corrupt:
    return Corrupt(
        f"a frame of {header_size} + {payload_size} bytes is over the limit: connection closed"
    )


def _parse(header: memoryview) -> pb.Frame:
    try:
        return pb.Frame.FromString(header)  # type: ignore[arg-type]
    except DecodeError as error:
        raise Corrupt("a frame's header is no protobuf message: connection closed") from error
