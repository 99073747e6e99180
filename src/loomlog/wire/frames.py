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


def _padding(size: int) -> int:
    return -size % limits.ALIGNMENT


def encode(frame: pb.Frame, payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """The buffers of a frame, to be written one after the other."""
    header = frame.SerializeToString()
    size = sum(map(len, payload))
    sizes = _SIZES.pack(MAGIC, len(header), size)
    checksum = crc32c(header, crc32c(sizes))
    head = b"".join(
        (
            sizes,
            checksum.to_bytes(4, "little"),
            header,
            _PADDING[: _padding(_PREFIX.size + len(header))],
        )
    )
    padding = _padding(size)
    return [head, *payload, _PADDING[:padding]] if padding else [head, *payload]


class FrameReader:
    """Takes what arrives and yields whole frames."""

    def __init__(self) -> None:
        self._begin = 0  # of the first byte not yet consumed, from the aligned start
        self._end = 0  # of what has arrived
        self._shared = False  # a payload out of this buffer was handed out
        self._space = _aligned(_BUFFER_BYTES_MIN)

    def writable(self) -> memoryview:
        """Room for what arrives next; never empty."""
        return self._space[self._end :]

    def received(self, count: int) -> Iterator[tuple[pb.Frame, memoryview]]:
        """`count` bytes were put into `writable()`: the frames that are now complete.

        Raises Corrupt for bytes that are no frame; the connection must then be closed."""
        self._end += count
        needed = 0
        while not needed:
            needed, found = self._next()
            if found is not None:
                yield found
        self._make_room(needed)

    def _next(self) -> tuple[int, tuple[pb.Frame, memoryview] | None]:
        """A whole frame, or how many bytes the next one needs in all."""
        begin, available = self._begin, self._end - self._begin
        if available < _PREFIX.size:
            return limits.ALIGNMENT, None
        magic, header_size, payload_size, checksum = _PREFIX.unpack_from(self._space, begin)
        _check_sizes(magic, header_size, payload_size)
        payload_at = _PREFIX.size + header_size
        payload_at += _padding(payload_at)
        size = payload_at + payload_size + _padding(payload_size)
        if available < size:
            return size, None
        header = self._space[begin + _PREFIX.size : begin + _PREFIX.size + header_size]
        if checksum != crc32c(header, crc32c(self._space[begin : begin + _SIZES.size])):
            raise Corrupt("a frame's header does not match its checksum: connection closed")
        payload = _NO_PAYLOAD
        if payload_size:
            payload = self._space[begin + payload_at : begin + payload_at + payload_size]
            self._shared = True
        self._begin += size
        return 0, (_parse(header), payload)

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


def _check_sizes(magic: int, header_size: int, payload_size: int) -> None:
    if magic != MAGIC:
        raise Corrupt("not a loomlog frame: connection closed")
    if header_size > limits.FRAME_HEADER_BYTES_MAX or payload_size > limits.FRAME_PAYLOAD_BYTES_MAX:
        raise Corrupt(
            f"a frame of {header_size} + {payload_size} bytes is over the limit: connection closed"
        )


def _parse(header: memoryview) -> pb.Frame:
    try:
        return pb.Frame.FromString(header)  # type: ignore[arg-type]
    except DecodeError as error:
        raise Corrupt("a frame's header is no protobuf message: connection closed") from error
