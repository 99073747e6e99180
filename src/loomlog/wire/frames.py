"""Frames as bytes: see loomlog.proto for the layout. Pure: bytes in, frames out, no I/O.

The reader owns its receive buffer and hands out payloads as views into it, without a copy. A
buffer out of which a payload was handed is never written again; it lives as long as its views.
Frames and payloads start at multiples of 64 bytes in memory, which keeps copies fast.
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

MAGIC = 0x31464D4C  # "LMF1"
_PREFIX = struct.Struct("<IIII")
_SIZES = struct.Struct("<III")
_PADDING = bytes(limits.ALIGNMENT)
_NO_PAYLOAD = memoryview(b"")
_BUFFER_BYTES_MIN = 64 * limits.KIB
_BUFFER_BYTES_MAX = 512 * limits.KIB
_HEADER_BYTES_MAX = limits.FRAME_HEADER_BYTES_MAX
_PAYLOAD_BYTES_MAX = limits.FRAME_PAYLOAD_BYTES_MAX


def _padding(size: int) -> int:
    return -size % limits.ALIGNMENT


def encode(frame: pb.Frame, payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """The buffers of a frame, to be written one after the other."""
    header = frame.SerializeToString()
    size = sum(map(len, payload)) if payload else 0
    sizes = _SIZES.pack(MAGIC, len(header), size)
    checksum = crc32c(header, crc32c(sizes))
    padding = _PADDING[: -(_PREFIX.size + len(header)) % limits.ALIGNMENT]
    head = b"".join((sizes, checksum.to_bytes(4, "little"), header, padding))
    if not size % limits.ALIGNMENT:
        return [head, *payload]
    return [head, *payload, _PADDING[: -size % limits.ALIGNMENT]]


class FrameReader:
    """Takes what arrives and yields whole frames."""

    def __init__(self) -> None:
        self._begin = 0  # of the first byte not yet consumed, from the aligned start
        self._end = 0  # of what has arrived
        self._needed = 0  # bytes of the frame that is not complete, as far as is known
        self._shared = False  # a payload out of this buffer was handed out
        self._space = _aligned(_BUFFER_BYTES_MIN)

    def writable(self) -> memoryview:
        """Room for what arrives next; never empty."""
        return self._space[self._end :]

    def received(self, count: int) -> Iterator[tuple[pb.Frame, memoryview]]:
        """`count` bytes were put into `writable()`: the frames that are now complete.

        Raises Corrupt for bytes that are no frame; the connection must then be closed."""
        self._end += count
        while (found := self._next()) is not None:
            yield found
        self._make_room(self._needed)

    def _next(self) -> tuple[pb.Frame, memoryview] | None:
        """A whole frame, if there is one; else how many bytes it needs is noted."""
        begin, space = self._begin, self._space
        available = self._end - begin
        if available < _PREFIX.size:
            self._needed = limits.ALIGNMENT
            return None
        magic, header_size, payload_size, checksum = _PREFIX.unpack_from(space, begin)
        if magic != MAGIC or header_size > _HEADER_BYTES_MAX or payload_size > _PAYLOAD_BYTES_MAX:
            raise _no_frame(magic, header_size, payload_size)
        header_at = begin + _PREFIX.size
        header_end = header_at + header_size
        payload_at = header_end + -(header_end - begin) % limits.ALIGNMENT
        payload_end = payload_at + payload_size
        size = payload_end + -payload_size % limits.ALIGNMENT - begin
        if available < size:
            self._needed = size
            return None
        header = space[header_at:header_end]
        if checksum != crc32c(header, crc32c(space[begin : begin + _SIZES.size])):
            raise Corrupt("a frame's header does not match its checksum: connection closed")
        self._begin += size
        if not payload_size:
            return _parse(header), _NO_PAYLOAD
        self._shared = True
        return _parse(header), space[payload_at:payload_end]

    def _make_room(self, needed: int) -> None:
        """Room for the rest of a frame of `needed` bytes, and more if much arrives at once."""
        left = self._end - self._begin
        space = len(self._space)
        if not left and not self._shared:
            self._begin = self._end = 0
            return
        if self._begin + needed <= space and self._end < space - space // 4:
            return
        wanted = max(needed, min(2 * space, _BUFFER_BYTES_MAX) if self._shared else space)
        fresh = _aligned(wanted)
        fresh[:left] = self._space[self._begin : self._end]
        self._space, self._begin, self._end, self._shared = fresh, 0, left, False


def _aligned(size: int) -> memoryview:
    """A writable buffer that starts at a multiple of 64 bytes."""
    room = bytearray(size + limits.ALIGNMENT)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    begin = _padding(address)
    return memoryview(room)[begin : begin + size]


def _no_frame(magic: int, header_size: int, payload_size: int) -> Corrupt:
    if magic != MAGIC:
        return Corrupt("not a loomlog frame: connection closed")
    return Corrupt(
        f"a frame of {header_size} + {payload_size} bytes is over the limit: connection closed"
    )


def _parse(header: memoryview) -> pb.Frame:
    try:
        return pb.Frame.FromString(header)  # type: ignore[arg-type]
    except DecodeError as error:
        raise Corrupt("a frame's header is no protobuf message: connection closed") from error
